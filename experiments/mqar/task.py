"""The MQAR task: one or more (length, pairs) settings, scored by the number of pairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np

from ablate.errors import UserError
from ablate.experiments.answers import Predictor, accuracy, join, loss, read_answers
from ablate.experiments.mqar.generator import check_sizes, mqar_rows
from ablate.experiments.rows import Rows, check_disjoint, epochs, fingerprint, seeded, to_rows
from ablate.experiments.task import Batch

Slice: TypeAlias = tuple[int, int, int]
"""Length, pairs and rows of one setting."""


class _Data(NamedTuple):
    train: list[Rows]
    test: list[Rows]


@dataclass(frozen=True, kw_only=True)
class MQARTask:
    """Multi-query associative recall (Zoology; Atlas section 6.3 and Figure 7).

    Args:
        vocab: tokens; keys are the lower half, values the upper.
        length: tokens of a row.
        pairs: key-value pairs of a row, each asked once.
        train_rows: different training rows; the budget passes over them again and again.
        test_rows: rows scored.
        more_train: further (length, pairs, rows) to train on; batches take turns at random.
        more_test: further (length, pairs, rows) to score.
        power_a: exponent of the law by which the questions are placed; 1 is uniform.
        random_non_queries: fill the blanks with random tokens.
        data_seed: seed of both sets of rows, the same in all trials of a study.
        batch: rows of a batch.
        tokens: training budget in tokens.

    Raises:
        UserError: sizes that do not fit together.
    """

    vocab: int = 64
    length: int = 32
    pairs: int = 4
    train_rows: int = 8_000
    test_rows: int = 1_000
    more_train: tuple[Slice, ...] = ()
    more_test: tuple[Slice, ...] = ()
    power_a: float = 0.01
    random_non_queries: bool = True
    data_seed: int = 0
    batch: int = 64
    tokens: int = 2_048_000

    name: ClassVar[str] = "mqar"

    def __post_init__(self) -> None:
        for length, pairs, rows in (*self._train_slices, *self._test_slices):
            check_sizes(vocab=self.vocab, length=length, pairs=pairs, power_a=self.power_a)
            if rows < 1:
                raise UserError(f"{rows} rows of length {length}: a set needs at least one row.")

    @property
    def context(self) -> int:
        """Tokens of a row of the main setting."""
        return self.length

    @property
    def _train_slices(self) -> tuple[Slice, ...]:
        return ((self.length, self.pairs, self.train_rows), *self.more_train)

    @property
    def _test_slices(self) -> tuple[Slice, ...]:
        return ((self.length, self.pairs, self.test_rows), *self.more_test)

    @cached_property
    def data(self) -> _Data:
        """The rows of all settings, train and test from different streams and without overlap."""
        train_stream, test_stream = seeded(self.data_seed, 2)
        data = _Data(
            [self._rows(train_stream, *wanted) for wanted in self._train_slices],
            [self._rows(test_stream, *wanted) for wanted in self._test_slices],
        )
        check_disjoint(data.train, data.test)
        return data

    def _rows(self, generator: np.random.Generator, length: int, pairs: int, rows: int) -> Rows:
        return to_rows(
            *mqar_rows(
                generator,
                rows,
                vocab=self.vocab,
                length=length,
                pairs=pairs,
                power_a=self.power_a,
                random_non_queries=self.random_non_queries,
            )
        )

    def data_identity(self) -> str:
        """Hash of the arguments, and of two rows that the generator makes with them."""
        (stream,) = seeded(self.data_seed, 1)
        probe = self._rows(stream, self.length, self.pairs, 2)
        args = {key: value for key, value in asdict(self).items() if key not in ("batch", "tokens")}
        return fingerprint(args, *(part.numpy() for part in probe))

    def info(self) -> dict[str, float | str]:
        """What two blind strategies score: any value, and any value of this row's pairs."""
        asked = sum(pairs * rows for _, pairs, rows in self._test_slices)
        listed = sum(rows for _, _, rows in self._test_slices) / asked
        return {"chance_accuracy": 2 / self.vocab, "chance_accuracy_among_pairs": listed}

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what `score` gives."""
        pairs = sorted({pairs for _, pairs, _ in self._test_slices})
        return ("val/loss", "val/accuracy", *(f"val/accuracy@{count}" for count in pairs))

    def batches(self, generator: np.random.Generator) -> Iterator[Batch]:
        """Shuffled passes over the training rows, without end."""
        return epochs(self.data.train, self.batch, generator)

    def score(self, model: Predictor) -> dict[str, float]:
        """Accuracy over all questions and by number of pairs (``val/accuracy@<pairs>``); loss."""
        by_pairs: dict[int, list[Rows]] = {}
        for (_, pairs, _), table in zip(self._test_slices, self.data.test, strict=True):
            by_pairs.setdefault(pairs, []).append(table)
        found = {
            pairs: join(read_answers(model, table, batch=self.batch) for table in tables)
            for pairs, tables in sorted(by_pairs.items())
        }
        together = join(found.values())
        return {
            "val/loss": loss(together),
            "val/accuracy": accuracy(together),
            **{f"val/accuracy@{pairs}": accuracy(part) for pairs, part in found.items()},
        }


TASK = MQARTask
