"""The questions of a set, ready to be asked: rows found, documents cut, prompts in tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ablate.errors import Failure, UserError
from ablate.experiments.hub import AUTO, Dataset, how_to_get, keep_rows, open_rows, part_of
from ablate.experiments.recall.scoring import NEW_TOKENS
from ablate.experiments.recall.sets import RecallSet, Row
from ablate.experiments.recall.window import cut
from ablate.experiments.recall.words import Tokenizer

SAMPLES = Path(__file__).parent / "sample"
REAL, SAMPLED, TOY = "", "sample_", "toy_"
NEVER_SAMPLE = "real"
"""What takes the cache or the hub, and fails where neither has a set."""


class Question(NamedTuple):
    """What a model is asked: tokens of the prompt, its text, and answers any of which will do."""

    tokens: list[int]
    text: str
    golds: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """The rows of one set, and where they are from.

    Args:
        name: where they are from.
        kind: `REAL`, `SAMPLED` or `TOY`, which stands in its metrics' names.
        rows: all that are scored.
    """

    name: str
    kind: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Reader:
    """How rows become questions.

    Args:
        tokenizer: of the model.
        window: tokens that a document is cut to, less the room for an answer.
        model_length: tokens of prompt and answer together.
    """

    tokenizer: Tokenizer
    window: int
    model_length: int

    def question(self, row: Row, one: RecallSet) -> Question | None:
        """The question of a row, or None if the protocol drops it or no answer is given.

        A prompt that leaves the answer no room in `model_length` loses its beginning, as in
        lm-evaluation-harness.
        """
        short = cut(row, one, self.tokenizer, self.window)
        golds = tuple(gold for gold in one.answers(row) if gold)
        if short is None or not golds:
            return None
        tokens = self.tokenizer.encode(one.prompt(short))[-(self.model_length - NEW_TOKENS) :]
        return Question(tokens, self.tokenizer.decode(tokens), golds)

    def questions(self, rows: Iterable[Row], one: RecallSet) -> list[Question]:
        """The questions of rows, without those that are dropped.

        Raises:
            UserError: none is left.
        """
        found = [self.question(row, one) for row in rows]
        kept = [question for question in found if question is not None]
        if not kept:
            raise UserError(f"recall, set {one.name}: none of {len(found)} rows can be asked.")
        return kept


def reachable(questions: Sequence[Question]) -> float:
    """Share of the questions, in percent, whose prompt has an answer in it."""
    kept = [any(gold.lower() in one.text.lower() for gold in one.golds) for one in questions]
    return 100 * sum(kept) / len(kept)


def best_constant(questions: Sequence[Question]) -> float:
    """What the best single answer to all questions scores, in percent."""
    counts = Counter(gold for one in questions for gold in {gold.lower() for gold in one.golds})
    return 100 * max(counts.values()) / len(questions)


def published(one: RecallSet, data: str, limit: int) -> Source:
    """The rows of a set of the hub, or what is had in its place.

    Args:
        one: which set.
        data: `NEVER_SAMPLE`, or as `ablate.experiments.hub.open_rows` takes it; a folder holds one
            folder or file for each set, under its name.
        limit: the first so many rows; 0 is all.

    Raises:
        UserError: there is no data, or rows lack a column, or are Ablate's and not asked for.
        Failure: the hub did not answer.
    """
    sample = None if data == NEVER_SAMPLE else SAMPLES / f"{one.name}.jsonl"
    dataset = Dataset(one.hub, split="validation")
    where = AUTO if data == NEVER_SAMPLE else part_of(data, one.name)
    instead = how_to_get(dataset, "task_args.data=sample")
    try:
        found = keep_rows(open_rows(dataset, where=where, sample=sample, instead=instead))
    except (UserError, Failure) as error:
        raise type(error)(f"recall, set {one.name}: {error}") from error
    rows = []
    for number, row in enumerate(found, 1):
        found.refuse_ours(row)
        if missing := [name for name in one.columns if row.get(name) is None]:
            raise UserError(
                f"recall, set {one.name}, {found.source}: row {number} has no {missing[0]!r}; "
                f"a row needs {', '.join(one.columns)}."
            )
        rows.append(row)
    kind = SAMPLED if found.is_sample else REAL
    return Source(found.source, kind, tuple(rows[: limit or None]))
