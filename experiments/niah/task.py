"""The S-NIAH task: trained on one length, asked at that length and beyond."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch

from ablate.errors import UserError
from ablate.experiments.answers import (
    Predictor,
    accuracy,
    join,
    loss,
    read_answers,
    rows_correct,
)
from ablate.experiments.niah.generator import (
    ADJECTIVES,
    NUMBER,
    UUID,
    Needle,
    Sample,
    Variant,
    draw_needle,
    hide,
    shortest,
)
from ablate.experiments.niah.scoring import complete, contains
from ablate.experiments.prose import Prose, load_prose
from ablate.experiments.rows import Rows, fingerprint, seeded
from ablate.experiments.task import UNSCORED, Batch, at_least, check_limits


@dataclass(frozen=True, kw_only=True)
class NIAHTask:
    """Single needle in a haystack (RULER; Atlas Table 3), for models trained on it from scratch.

    Args:
        variant: single_1 (number among repeated lines), single_2 (number in prose), single_3 (uuid
            in prose).
        length: bytes that the model reads in training.
        multiples: scored lengths, as multiples of `length`.
        value_length: characters of the value; 0 takes the full number (7) or uuid (36).
        key_words: how many adjectives, and how many nouns, names are made of.
        prose: ``"pydoc"``, or the path of a text file or folder.
        train_on: the loss is taken on the value only, or on every byte.
        test_rows: rows scored at each length.
        generate_rows: so many rows are also completed byte by byte, and scored as RULER does.
        data_seed: seed of the scored rows, the same in all trials of a study.
        batch: rows of a batch.
        tokens: training budget in bytes.

    Raises:
        UserError: sizes that do not fit together, or missing prose.
    """

    variant: Variant = "single_1"
    length: int = 256
    multiples: tuple[int, ...] = (1, 2, 4)
    value_length: int = 4
    key_words: int = 32
    prose: str = "pydoc"
    train_on: Literal["answer", "all"] = "answer"
    test_rows: int = 100
    generate_rows: int = 0
    data_seed: int = 0
    batch: int = 16
    tokens: int = 4_096_000

    name: ClassVar[str] = "niah"
    vocab: ClassVar[int] = 256

    def __post_init__(self) -> None:
        full, few = (UUID, 4) if self.variant == "single_3" else (NUMBER, 1)
        if not self.value_length:
            object.__setattr__(self, "value_length", full)
        if not few <= self.value_length <= full:
            raise UserError(
                f"task_args.value_length={self.value_length}: must be in [{few}, {full}], or 0 for "
                f"{full}."
            )
        check_limits(self, {"key_words": (1, len(ADJECTIVES))})
        least = shortest(self.variant, self.value_length, self.key_words)
        check_limits(self, at_least(least, "length"))
        if not self.multiples or min(self.multiples) < 1:
            raise UserError(f"task_args.multiples={self.multiples}: whole numbers of at least 1.")
        check_limits(self, at_least(1, "test_rows", "batch", "tokens"))
        names = self.key_words**2 * 9 * 10 ** (self.value_length - 1)
        if self.variant != "single_3" and 2 * self.test_rows * len(self.multiples) > names:
            raise UserError(
                f"task_args.value_length={self.value_length} with "
                f"task_args.key_words={self.key_words}: only {names} needles exist, and "
                "those scored must stay out of training."
            )
        load_prose(self.prose)

    @property
    def context(self) -> int:
        """Bytes that the model reads in training."""
        return self.length

    @property
    def _prose(self) -> tuple[Prose, Prose]:
        return load_prose(self.prose).split()

    def _needle(self, generator: np.random.Generator) -> Needle:
        return draw_needle(generator, self.variant, self.value_length, self.key_words)

    @property
    def lengths(self) -> list[int]:
        """Lengths that are scored, in bytes."""
        return sorted({self.length * multiple for multiple in self.multiples})

    @cached_property
    def test(self) -> dict[int, list[Sample]]:
        """The scored samples of each length, in held-out prose."""
        _, held_out = self._prose
        streams = seeded(self.data_seed, len(self.lengths))
        return {
            length: [
                hide(stream, self.variant, self._needle(stream), held_out, length)
                for _ in range(self.test_rows)
            ]
            for length, stream in zip(self.lengths, streams, strict=True)
        }

    def training_samples(self, generator: np.random.Generator) -> Iterator[Sample]:
        """New samples without end; no needle that is scored is ever trained on."""
        scored = {sample.needle for samples in self.test.values() for sample in samples}
        train, _ = self._prose
        while True:
            needle = self._needle(generator)
            if needle not in scored:
                yield hide(generator, self.variant, needle, train, self.length)

    def data_identity(self) -> str:
        """Hash of the arguments, the prose, and one sample that the generator makes of them."""
        (stream,) = seeded(self.data_seed, 1)
        prose = load_prose(self.prose)
        probe = hide(stream, self.variant, self._needle(stream), prose, self.length)
        left_out = ("batch", "tokens", "prose", "generate_rows")
        args = {key: value for key, value in asdict(self).items() if key not in left_out}
        return fingerprint(args, prose.digest.encode(), probe.text.encode())

    def info(self) -> dict[str, float | str]:
        """Where the haystack is from, and what a guess of one character scores."""
        symbols = 16 if self.variant == "single_3" else 10
        source = "repeated line" if self.variant == "single_1" else self.prose
        return {"haystack": source, "chance_accuracy": 1 / symbols}

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what `score` gives."""
        leaves = ["exact_match", "accuracy", "loss", *(["contains"] if self.generate_rows else [])]
        by_length = [f"val/{leaf}@{length}" for length in self.lengths for leaf in leaves]
        return ("val/loss", "val/exact_match", *by_length)

    def batches(self, generator: np.random.Generator) -> Iterator[Batch]:
        """Batches of new samples, without end."""
        samples = self.training_samples(generator)
        while True:
            rows = to_rows([next(samples) for _ in range(self.batch)])
            yield Batch(*(rows if self.train_on == "answer" else next_bytes(rows)))

    def score(self, model: Predictor) -> dict[str, float]:
        """For each length: is the whole value right, read along with it; accuracy and loss."""
        found = {}
        metrics = {}
        for length, samples in self.test.items():
            rows = max(1, self.batch * self.length // length)
            found[length] = read_answers(model, to_rows(samples), batch=rows)
            metrics[f"val/exact_match@{length}"] = (
                rows_correct(found[length]).double().mean().item()
            )
            metrics[f"val/accuracy@{length}"] = accuracy(found[length])
            metrics[f"val/loss@{length}"] = loss(found[length])
            if self.generate_rows:
                asked = samples[: self.generate_rows]
                prompts = [sample.prompt for sample in asked]
                said = complete(model, prompts, self.value_length)
                metrics[f"val/contains@{length}"] = contains(
                    said, [[sample.needle.value] for sample in asked]
                )
        together = join(found.values())
        exact = [metrics[f"val/exact_match@{length}"] for length in found]
        return {
            "val/loss": loss(together),
            "val/exact_match": sum(exact) / len(exact),
            **metrics,
        }


def to_rows(samples: list[Sample]) -> Rows:
    """Bytes read and bytes due; only those of the value are scored."""
    text = torch.tensor([list(sample.text.encode("ascii")) for sample in samples])
    targets = torch.full_like(text[:, 1:], UNSCORED)
    for row, sample in enumerate(samples):
        size = len(sample.needle.value)
        targets[row, -size:] = text[row, -size:]
    return Rows(text[:, :-1].contiguous(), targets)


def next_bytes(rows: Rows) -> Rows:
    """The same rows with every next byte as a target."""
    last = rows.targets[:, -1:]
    return Rows(rows.inputs, torch.cat((rows.inputs[:, 1:], last), dim=1))


TASK = NIAHTask
