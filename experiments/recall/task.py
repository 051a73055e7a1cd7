"""The recall task: read a document, then say what it said; scored by what the answer contains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import ClassVar, Literal, TypeAlias

import numpy as np
import torch

from ablate.errors import UserError, unknown
from ablate.experiments.answers import Predictor, loss, read_answers
from ablate.experiments.hub import AUTO
from ablate.experiments.recall.documents import KEYS, NAMES, Document, Sizes, draw, toy_words
from ablate.experiments.recall.questions import SAMPLED, TOY, Asked, Reader, published
from ablate.experiments.recall.scoring import NEW_TOKENS, complete, contains
from ablate.experiments.recall.sets import SETS
from ablate.experiments.recall.window import ROOM
from ablate.experiments.recall.words import ByteTokenizer, Tokenizer
from ablate.experiments.rows import Rows, fingerprint, seeded
from ablate.experiments.task import UNSCORED, Batch

TOY_ROWS = 40
"""Toy documents of each set that are scored, if nothing else is said."""
_TRIED = 8
_NO_DATA = ("batch", "tokens", "data")
_WARNING = "made-up rows that come with Ablate, NOT the published set"

Lesson: TypeAlias = tuple[list[int], list[int]]
"""Tokens, and which of them are scored: the token itself, or `UNSCORED`."""


@dataclass(frozen=True, kw_only=True)
class RecallTask:
    """In-context recall (Arora et al. 2024; Atlas Table 5).

    Args:
        rows: what is scored: the published ``sets``, or ``toy`` documents made here. Training is
            on toy documents in any case.
        sets: which of the six.
        data: of the published sets: ``auto``, ``cache``, ``hub``, ``sample``, or a folder with a
            folder for each set (`ablate.experiments.hub`).
        tokenizer: ``bytes``; or ``words``, the vocabulary of the toy documents.
        window: tokens that a document is cut to, less 50 for the answer.
        model_length: tokens of prompt and answer together; a longer prompt loses its beginning.
        test_rows: rows of each set that are scored; 0 is all of a published set, and 40 toy ones.
        facts: facts of a toy document.
        fillers: sentences in it that say nothing.
        keys: different things that a toy fact may be about.
        values: different answers of toy documents.
        length: tokens of a training row.
        data_seed: seed of the scored toy documents, the same in all trials of a study.
        batch: rows of a batch.
        tokens: training budget in tokens.

    Raises:
        UserError: sizes that do not fit together, or unknown sets.
    """

    rows: Literal["sets", "toy"] = "sets"
    sets: tuple[str, ...] = tuple(SETS)
    data: str = AUTO
    tokenizer: Literal["bytes", "words"] = "bytes"
    window: int = 2048
    model_length: int = 2048
    test_rows: int = 0
    facts: int = 4
    fillers: int = 0
    keys: int = 12
    values: int = 32
    length: int = 384
    data_seed: int = 0
    batch: int = 32
    tokens: int = 2_048_000

    name: ClassVar[str] = "recall"

    def __post_init__(self) -> None:
        for name in self.sets:
            if name not in SETS:
                raise unknown("set of recall", name, SETS, where="task_args.sets")
        if not self.sets or len(set(self.sets)) < len(self.sets):
            raise UserError(f"task_args.sets={list(self.sets)}: at least one set, each once.")
        if self.tokenizer == "words" and self.rows == "sets":
            raise UserError(
                "task_args.tokenizer=words: the words of toy documents cannot say the published "
                "sets. Give task_args.rows=toy, or task_args.tokenizer=bytes."
            )
        for field, (least, most) in self._limits.items():
            given = getattr(self, field)
            if given < least or (most is not None and given > most):
                rule = f"at least {least}" if most is None else f"in [{least}, {most}]"
                raise UserError(f"task_args.{field}={given}: must be {rule}.")
        self._check_length()

    @property
    def _limits(self) -> dict[str, tuple[int, int | None]]:
        return {
            "window": (ROOM + 1, None),
            "model_length": (NEW_TOKENS + 1, None),
            "test_rows": (0, None),
            "keys": (1, len(KEYS)),
            "values": (1, len(NAMES)),
            "facts": (1, min(self.keys, self.values)),
            "fillers": (0, None),
            **dict.fromkeys(("length", "batch", "tokens"), (1, None)),
        }

    def _check_length(self) -> None:
        """Refuse documents that do not fit a training row: such would never be drawn.

        Raises:
            UserError: says how long they are.
        """
        (stream,) = seeded(0, 1)
        for name in self.sets:
            drawn = [draw(stream, name, self._sizes) for _ in range(_TRIED)]
            longest = max(len(self._lesson(stream, name, one)[0]) for one in drawn) - 1
            if longest > self.length:
                raise UserError(
                    f"task_args.length={self.length}: documents of {name} with all their questions "
                    f"take up to {longest} tokens or more. Give a larger length, or fewer "
                    "task_args.facts or task_args.fillers."
                )

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return self._tokenizer.vocab

    @property
    def context(self) -> int:
        """Tokens of a training row."""
        return self.length

    @property
    def _tokenizer(self) -> Tokenizer:
        return toy_words() if self.tokenizer == "words" else ByteTokenizer()

    @property
    def _reader(self) -> Reader:
        return Reader(self._tokenizer, self.window, self.model_length)

    @property
    def _sizes(self) -> Sizes:
        return Sizes(self.facts, self.fillers, self.keys, self.values)

    @cached_property
    def asked(self) -> dict[str, Asked]:
        """The scored questions of each set."""
        if self.rows == "sets":
            return {
                name: published(SETS[name], self._reader, self.data, self.test_rows)
                for name in self.sets
            }
        return {name: self._toy(name) for name in self.sets}

    @cached_property
    def _scored(self) -> dict[str, list[tuple[Document, int]]]:
        """Toy documents of each set that are scored, and which of their facts is asked for."""
        if self.rows != "toy":
            return {}
        streams = seeded(self.data_seed, len(SETS))
        return {
            name: [
                (draw(stream, name, self._sizes), int(stream.integers(self.facts)))
                for _ in range(self.test_rows or TOY_ROWS)
            ]
            for name, stream in zip(SETS, streams, strict=True)
            if name in self.sets
        }

    def _toy(self, name: str) -> Asked:
        rows = [document.rows[fact] for document, fact in self._scored[name]]
        questions = self._reader.questions(rows, SETS[name])
        return Asked("toy documents made by Ablate", TOY, "", len(rows), questions)

    def _lesson(self, generator: np.random.Generator, name: str, document: Document) -> Lesson:
        """A document, all its questions in random order, and their answers, which are scored."""
        tokens: list[int] = []
        targets: list[int] = []
        for fact in generator.permutation(self.facts):
            asked = self._tokenizer.encode(document.asked[fact])
            if not tokens:
                first = self._reader.questions([document.rows[fact]], SETS[name])
                asked = first[0].tokens
            answer = self._answer(document.golds[fact])
            tokens += [*asked, *answer]
            targets += [*[UNSCORED] * len(asked), *answer]
        return tokens, targets

    def _answer(self, gold: str) -> list[int]:
        return self._tokenizer.encode(f" {gold}\n")

    def data_identity(self) -> str:
        """Hash of the arguments, of the published rows, and of what the generator makes."""
        args = {key: value for key, value in asdict(self).items() if key not in _NO_DATA}
        (stream,) = seeded(self.data_seed, 1)
        made = [draw(stream, name, self._sizes).identity for name in self.sets]
        digests = [found.digest for found in self.asked.values()]
        return fingerprint(args, "\n".join([*made, *digests]).encode())

    def info(self) -> dict[str, float | str]:
        """Where the rows are from, what can be had of them, and what one answer for all scores."""
        facts: dict[str, float | str] = {}
        for name, found in self.asked.items():
            sample = f" ({_WARNING})" if found.kind == SAMPLED else ""
            facts[f"{name}_source"] = found.source + sample
            facts[f"{name}_questions"] = float(len(found.questions))
            facts[f"{name}_dropped"] = float(found.rows - len(found.questions))
            facts[f"{name}_reachable"] = found.reachable
            facts[f"{name}_best_constant"] = _best_constant(found)
        if self.rows == "toy":
            facts["guess_in_document"] = 100 / self.facts
        return facts

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what `score` gives."""
        names = [_metric(found.kind, name) for name, found in self.asked.items()]
        return (*names, *self._together)

    @property
    def _together(self) -> tuple[str, ...]:
        """The mean over sets, if all are of one kind; toy documents also have a loss."""
        kinds = {found.kind for found in self.asked.values()}
        means = (_metric(kinds.pop()),) if len(kinds) == 1 else ()
        return (*means, "val/loss") if self.rows == "toy" else means

    def batches(self, generator: np.random.Generator) -> Iterator[Batch]:
        """Batches of toy documents of all sets, without end; none that is scored is among them."""
        scored = {one.identity for some in self._scored.values() for one, _ in some}
        while True:
            lessons: list[Lesson] = []
            while len(lessons) < self.batch:
                name = self.sets[generator.integers(len(self.sets))]
                document = draw(generator, name, self._sizes)
                lesson = self._lesson(generator, name, document)
                if document.identity not in scored and len(lesson[0]) <= self.length + 1:
                    lessons.append(lesson)
            yield Batch(*to_rows(lessons, self.length))

    def score(self, model: Predictor) -> dict[str, float]:
        """Share of each set's questions, in percent, to which the model says an answer."""
        questions = [one for found in self.asked.values() for one in found.questions]
        prompts = [one.tokens for one in questions]
        said = iter(complete(model, prompts, self._tokenizer, batch=self.batch))
        metrics = {}
        for name, found in self.asked.items():
            right = [contains(next(said), one.golds) for one in found.questions]
            metrics[_metric(found.kind, name)] = 100 * sum(right) / len(right)
        means = {name: sum(metrics.values()) / len(metrics) for name in self._together}
        if self.rows == "toy":
            means["val/loss"] = self._loss(model)
        return {**metrics, **means}

    def _loss(self, model: Predictor) -> float:
        """Of the toy answers and the line ends after them, in nats a token."""
        lessons = []
        for found in self.asked.values():
            for one in found.questions:
                answer = self._answer(one.golds[0])
                asked = [UNSCORED] * len(one.tokens)
                lessons.append(([*one.tokens, *answer], [*asked, *answer]))
        longest = max(len(tokens) for tokens, _ in lessons) - 1
        return loss(read_answers(model, to_rows(lessons, longest), batch=self.batch))


def to_rows(lessons: Sequence[Lesson], length: int) -> Rows:
    """Rows of `length` inputs; what is behind a lesson's end is unscored and reads as token 0."""
    inputs = torch.zeros(len(lessons), length, dtype=torch.int64)
    targets = torch.full_like(inputs, UNSCORED)
    for row, (tokens, due) in enumerate(lessons):
        inputs[row, : len(tokens) - 1] = torch.tensor(tokens[:-1])
        targets[row, : len(due) - 1] = torch.tensor(due[1:])
    return Rows(inputs, targets)


def _metric(kind: str, name: str = "") -> str:
    return f"val/contains{kind}" + (f"@{name}" if name else "")


def _best_constant(found: Asked) -> float:
    """What the best single answer to all questions of a set scores, in percent."""
    counts = Counter(gold.lower() for one in found.questions for gold in set(one.golds))
    return 100 * max(counts.values()) / len(found.questions)


TASK = RecallTask
