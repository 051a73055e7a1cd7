"""The recall task: read a document, then say what it said; scored by what the answer contains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from ablate.errors import UserError, unknown
from ablate.experiments.answers import Predictor, loss, read_answers
from ablate.experiments.hub import AUTO, CACHE
from ablate.experiments.language.task import LanguageTask
from ablate.experiments.language.tokenizer import BPE, BYTES, check_spec, make_tokenizer, vocab_of
from ablate.experiments.language.tokenizer import HUB as HF
from ablate.experiments.language.tokenizer import Tokenizer as LanguageTokenizer
from ablate.experiments.recall.documents import KEYS, NAMES, Document, Sizes, draw, toy_words
from ablate.experiments.recall.lessons import Lesson, answered, make_lesson, to_rows
from ablate.experiments.recall.questions import (
    NEVER_SAMPLE,
    REAL,
    SAMPLED,
    TOY,
    Question,
    Reader,
    Source,
    best_constant,
    published,
    reachable,
)
from ablate.experiments.recall.scoring import NEW_TOKENS, complete, contains
from ablate.experiments.recall.sets import SETS
from ablate.experiments.recall.window import ROOM
from ablate.experiments.recall.words import TextTokenizer, Tokenizer
from ablate.experiments.rows import fingerprint, seeded
from ablate.experiments.task import Batch, Limits, at_least, check_limits

WORDS = "words"
TOY_ROWS = 40
"""Toy documents of each set that are scored, if nothing else is said."""
_TRIED = 8
_MANY = 1_000  # about as many rows as a published set has
_NO_DATA = ("batch", "tokens", "data", "corpus_bytes")  # the last is in the text's own identity
_WARNING = "made-up rows that come with Ablate, NOT the published set"


@dataclass(frozen=True, kw_only=True)
class RecallTask:
    """In-context recall (Arora et al. 2024; Atlas Table 5).

    Args:
        rows: what is scored: the published ``sets``, or ``toy`` documents made here.
        sets: which of the six.
        data: of the published sets: ``auto``; ``real``, which is ``auto`` without the packaged
            sample; ``cache``, ``hub`` or ``sample``; or a folder with a folder or file for each set
            (`ablate.experiments.hub`).
        corpus: text to train on, as task language takes it; empty trains on toy documents.
        tokenizer: as task language takes it; or ``words``, the vocabulary of the toy documents.
        corpus_bytes: as task language takes it.
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
    corpus: str = ""
    tokenizer: str = BYTES
    corpus_bytes: int | None = None
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
        self._check_tokenizer()
        check_limits(self, self._limits)
        if not self.corpus:
            if self.corpus_bytes is not None:
                raise UserError("task_args.corpus_bytes is for a task_args.corpus; none is given.")
            self._check_length()

    def _check_tokenizer(self) -> None:
        if self.tokenizer == WORDS:
            if self.rows == "sets" or self.corpus:
                raise UserError(
                    f"task_args.tokenizer={WORDS}: the words of toy documents can say nothing else."
                    f" Give task_args.rows=toy without a corpus, or task_args.tokenizer={BYTES}."
                )
            return
        check_spec(self.tokenizer)
        if self.tokenizer.startswith(BPE) and not self.corpus:
            raise UserError(
                f"task_args.tokenizer={self.tokenizer}: that is trained on task_args.corpus, and "
                "none is given. A trained one is the folder of its model: task_args.tokenizer="
                f"{HF}:FOLDER."
            )

    @property
    def _limits(self) -> Limits:
        return {
            "window": (ROOM + 1, None),
            "model_length": (NEW_TOKENS + 1, None),
            "test_rows": (0, None),
            "keys": (1, len(KEYS)),
            "values": (1, len(NAMES)),
            "facts": (1, min(self.keys, self.values)),
            "fillers": (0, None),
            **at_least(1, "length", "batch", "tokens"),
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

    @cached_property
    def vocab(self) -> int:
        """Number of tokens."""
        return toy_words().vocab if self.tokenizer == WORDS else vocab_of(self.tokenizer)

    @property
    def context(self) -> int:
        """Tokens of a training row."""
        return self.length

    @cached_property
    def _text(self) -> LanguageTask | None:
        """The text to train on, if there is any."""
        if not self.corpus:
            return None
        return LanguageTask(
            corpus=self.corpus, tokenizer=self.tokenizer, corpus_bytes=self.corpus_bytes,
            context=self.length, batch=self.batch, tokens=self.tokens,
            validation_bytes=max(self.length, LanguageTask.validation_bytes),
        )  # fmt: skip

    @property
    def folder(self) -> Path | None:
        """Where the text to train on is kept, if it is text that has to be prepared."""
        return None if self._text is None else self._text.folder

    @property
    def is_prepared(self) -> bool:
        """Whether that text is ready, and ``real`` sets are here."""
        if self._is_real and not all(map(self._digest, self.sets)):
            return False
        return self._text is None or self._text.is_prepared

    def prepare(self, progress: Callable[[int, str], None] = lambda done, what: None) -> None:
        """Find ``real`` sets, then prepare the text to train on.

        Raises:
            UserError: the text or a set is not to be had.
            Failure: the hub did not answer, or the disk is full.
        """
        if self._is_real:
            self._sources  # noqa: B018 - is looked up, and kept
        if self._text is not None:
            self._text.prepare(progress)

    def prepared_info(self) -> dict[str, float | str]:
        """What the text to train on is, if there is any."""
        return {} if self._text is None else self._text.info()

    def scored_tokens(self) -> int:
        """Tokens that a model reads to be scored, if it never ends a line before it has to."""
        if self._is_real or not self.is_prepared:
            return len(self.sets) * (self.test_rows or _MANY) * (self.window + NEW_TOKENS)
        lengths = [len(one.tokens) for questions in self.asked.values() for one in questions]
        again = max(lengths) * len(lengths) if self.rows == "toy" else 0
        return sum(lengths) + NEW_TOKENS * len(lengths) + again

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        found = self.text_tokenizer()
        return toy_words() if found is None else TextTokenizer(found)

    def text_tokenizer(self) -> LanguageTokenizer | None:
        """What turns text into this task's tokens; None for the words of toy documents."""
        if self.tokenizer == WORDS:
            return None
        text = self._text
        return make_tokenizer(self.tokenizer, tuple) if text is None else text.text_tokenizer()

    @property
    def _reader(self) -> Reader:
        return Reader(self._tokenizer, self.window, self.model_length)

    @property
    def _sizes(self) -> Sizes:
        return Sizes(self.facts, self.fillers, self.keys, self.values)

    @cached_property
    def _sources(self) -> dict[str, Source]:
        """What is scored of each set."""
        if self.rows == "sets":
            return {name: published(SETS[name], self.data, self.test_rows) for name in self.sets}
        return {
            name: Source(
                "toy documents made by Ablate",
                TOY,
                tuple(document.rows[fact] for document, fact in self._scored[name]),
            )
            for name in self.sets
        }

    @cached_property
    def asked(self) -> dict[str, list[Question]]:
        """The scored questions of each set."""
        return {
            name: self._reader.questions(found.rows, SETS[name])
            for name, found in self._sources.items()
        }

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

    def _lesson(self, generator: np.random.Generator, name: str, document: Document) -> Lesson:
        return make_lesson(generator, SETS[name], document, self._reader)

    def data_identity(self) -> str:
        """Hash of the arguments, the rows that are scored, and of what is trained on.

        Published sets that have to come from the hub are left out of it until they are here.
        """
        args = {key: value for key, value in asdict(self).items() if key not in _NO_DATA}
        if self._text is None:
            (stream,) = seeded(self.data_seed, 1)
            trained = [draw(stream, name, self._sizes).identity for name in self.sets]
        else:
            trained = [self._text.data_identity()]
        scored = [] if self.rows == "toy" else [self._digest(name) for name in self.sets]
        return fingerprint(args, "\n".join([*trained, *scored]).encode())

    @property
    def _is_real(self) -> bool:
        return self.rows == "sets" and self.data == NEVER_SAMPLE

    def _digest(self, name: str) -> str:
        """Hash of a set's rows; empty if it is ``real`` and not here, for which no hub is asked."""
        if self._is_real and "_sources" not in vars(self):
            try:
                found = published(SETS[name], CACHE, self.test_rows)
            except UserError:
                return ""
        else:
            found = self._sources[name]
        return fingerprint({"kind": found.kind, "rows": found.rows})

    def info(self) -> dict[str, float | str]:
        """Where the rows are from, what can be had of them, and what one answer for all scores."""
        facts: dict[str, float | str] = {}
        for name, found in self._sources.items():
            questions = self.asked[name]
            sample = f" ({_WARNING})" if found.kind == SAMPLED else ""
            facts[f"{name}_source"] = found.name + sample
            facts[f"{name}_questions"] = float(len(questions))
            facts[f"{name}_dropped"] = float(len(found.rows) - len(questions))
            facts[f"{name}_reachable"] = reachable(questions)
            facts[f"{name}_best_constant"] = best_constant(questions)
        if self.rows == "toy":
            facts["guess_in_document"] = 100 / self.facts
        return {**facts, **self.prepared_info()}

    @cached_property
    def _kinds(self) -> dict[str, str]:
        """Whether what is scored of each set is real; known of ``real`` before it is here."""
        if self._is_real:
            return dict.fromkeys(self.sets, REAL)
        return {name: found.kind for name, found in self._sources.items()}

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what `score` gives."""
        means = (*self._mean, "val/loss") if self.rows == "toy" else self._mean
        return (*(_metric(kind, name) for name, kind in self._kinds.items()), *means)

    @property
    def _mean(self) -> tuple[str, ...]:
        """The mean over sets, if all are of one kind."""
        kinds = set(self._kinds.values())
        return (_metric(kinds.pop()),) if len(kinds) == 1 else ()

    def batches(self, generator: np.random.Generator) -> Iterator[Batch]:
        """Batches of text, or of toy documents none of which is scored, without end."""
        if self._text is not None:
            yield from self._text.batches(generator)
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
        prompts = [one.tokens for questions in self.asked.values() for one in questions]
        said = iter(complete(model, prompts, self._tokenizer, batch=self.batch))
        metrics = {}
        for name, questions in self.asked.items():
            right = [contains(next(said), one.golds) for one in questions]
            metrics[_metric(self._kinds[name], name)] = 100 * sum(right) / len(right)
        metrics |= {name: sum(metrics.values()) / len(metrics) for name in self._mean}
        return {**metrics, "val/loss": self._loss(model)} if self.rows == "toy" else metrics

    def _loss(self, model: Predictor) -> float:
        """Of the toy answers and the line ends after them, in nats a token."""
        questions = [one for found in self.asked.values() for one in found]
        lessons = [answered(one, self._tokenizer) for one in questions]
        longest = max(len(tokens) for tokens, _ in lessons) - 1
        return loss(read_answers(model, to_rows(lessons, longest), batch=self.batch))


def _metric(kind: str, name: str = "") -> str:
    return f"val/contains@{kind}{name}" if name else f"val/{kind}contains"


TASK = RecallTask
