"""Predict the next byte of source code: bits per byte, comparable across models and tokenizers."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ablate.components.newton_schulz import NewtonSchulz, set_steps
from ablate.errors import UserError
from ablate.experiments.language.corpus import Bytes, Corpus, load_corpus
from ablate.experiments.language.ngrams import VOCAB, bigram_bits, unigram_bits
from ablate.experiments.task import Batch

SHORTEST_CONTEXT = 8


@dataclass(frozen=True, kw_only=True)
class LanguageTask:
    """Byte-level language modelling.

    Args:
        corpus: ``"stdlib"`` (the running Python's standard library), or the path of a text file or
            of a folder of text files.
        context: bytes that a row predicts, and the model's longest context.
        batch: rows of a training batch.
        tokens: training budget in bytes.
        validation_bytes: at most so many held-out bytes are scored.
        scored_steps: also score with so many Newton-Schulz steps in place of those trained with
            (Atlas section 5, as test-time compute); needs a memory that has them.

    Raises:
        UserError: a number is too small, or the corpus is missing or shorter than one row.
    """

    corpus: str = "stdlib"
    context: int = 256
    batch: int = 8
    tokens: int = 500_000
    validation_bytes: int = 32_768
    scored_steps: tuple[int, ...] = ()

    name: ClassVar[str] = "language"
    vocab: ClassVar[int] = VOCAB

    def __post_init__(self) -> None:
        least = {"context": SHORTEST_CONTEXT, "validation_bytes": self.context}
        for field in fields(self):
            given = getattr(self, field.name)
            if isinstance(given, int) and given < least.get(field.name, 1):
                rule = f"must be at least {least.get(field.name, 1)}"
                raise UserError(f"task_args.{field.name}={given!r}: {rule}.")
        if any(steps < 0 for steps in self.scored_steps):
            raise UserError(f"task_args.scored_steps={self.scored_steps}: numbers of at least 0.")
        for split in ("train", "validation"):
            size = len(getattr(self._data, split))
            if size < self.context + 1:
                raise UserError(
                    f"task_args.corpus={self.corpus!r}: its {split} split has {size} bytes, but "
                    f"task_args.context={self.context} needs at least {self.context + 1}."
                )

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what `score` gives."""
        steps = tuple(f"val/bits_per_byte@{steps}_steps" for steps in self.scored_steps)
        return (
            "val/loss",
            "val/bits_per_byte",
            "val/bits_per_byte_first_quarter",
            "val/bits_per_byte_last_quarter",
            *steps,
        )

    @property
    def _data(self) -> Corpus:
        return load_corpus(self.corpus)

    def data_identity(self) -> str:
        """Hash of the bytes of both splits."""
        return self._data.digest

    def info(self) -> dict[str, float | str]:
        """What the text is, and what predictors without memory score on the very bytes scored."""
        previous, targets = self._held_out
        facts: dict[str, float | str] = {
            "corpus": self.corpus,
            "train_bytes": float(len(self._data.train)),
            "validation_bytes": float(len(self._data.validation)),
            "scored_bytes": float(targets.size),
            "train_files": float(len(self._data.train_files)),
            "validation_files": float(len(self._data.validation_files)),
            "unigram_bits_per_byte": unigram_bits(self._data.train, targets),
            "bigram_bits_per_byte": bigram_bits(self._data.train, previous, targets),
        }
        if self.corpus == "stdlib":
            facts["python"] = platform.python_version()
        return facts

    def batches(self, generator: np.random.Generator) -> Iterator[Batch]:
        """Rows that start at random bytes of the training split, so they may cross documents."""
        text = self._data.train
        while True:
            starts = generator.integers(0, len(text) - self.context, size=self.batch)
            yield Batch(*map(torch.from_numpy, _rows(text, starts, self.context)))

    def score(self, model: nn.Module) -> dict[str, float]:
        """Loss on fixed held-out rows, and bits per byte over the row and at its two ends.

        Rows do not overlap and lie evenly over the validation split. The first and last quarter of
        the positions tell whether more context helps.
        """
        nats = self._nats(model)
        quarter = self.context // 4
        bits = nats.mean(dim=0) / math.log(2)  # t
        return {
            "val/loss": nats.mean().item(),
            "val/bits_per_byte": bits.mean().item(),
            "val/bits_per_byte_first_quarter": bits[:quarter].mean().item(),
            "val/bits_per_byte_last_quarter": bits[-quarter:].mean().item(),
            **self._with_other_steps(model),
        }

    def _with_other_steps(self, model: nn.Module) -> dict[str, float]:
        """Bits per byte with each of `scored_steps`; the model is left as it was.

        Raises:
            UserError: nothing in the model has Newton-Schulz steps.
        """
        own = {part: part.steps for part in model.modules() if isinstance(part, NewtonSchulz)}
        if self.scored_steps and not own:
            raise UserError(
                f"task_args.scored_steps={list(self.scored_steps)}: this model has no "
                "Newton-Schulz steps; only inner_optimizer muon has."
            )
        found = {}
        try:
            for steps in self.scored_steps:
                set_steps(model, steps)
                bits = self._nats(model).mean().item() / math.log(2)
                found[f"val/bits_per_byte@{steps}_steps"] = bits
        finally:
            for part, steps in own.items():
                part.steps = steps
        return found

    def _nats(self, model: nn.Module) -> Tensor:
        """Loss of every held-out byte, ``[rows context]``."""
        inputs, targets = map(torch.from_numpy, self._held_out)
        rows = zip(torch.split(inputs, self.batch), torch.split(targets, self.batch), strict=True)
        return torch.cat([_losses(model, *some) for some in rows])

    @cached_property
    def _held_out(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Inputs and targets of every row that is scored, each ``[rows context]``."""
        text = self._data.validation
        there = (len(text) - 1) // self.context
        rows = min(there, self.validation_bytes // self.context)
        starts = np.linspace(0, there - 1, rows).astype(np.int64) * self.context
        return _rows(text, starts, self.context)


def _rows(
    text: Bytes, starts: NDArray[np.int64], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    rows = text[starts[:, None] + np.arange(length + 1)].astype(np.int64)
    return rows[:, :-1], rows[:, 1:]


def _losses(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Loss of each byte in nats, float64 on the CPU, shape ``[b t]``."""
    parameter = next(model.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits, _ = model(inputs.to(device))
            losses = cross_entropy(
                logits.double().transpose(1, 2), targets.to(device), reduction="none"
            )
    finally:
        model.train(training)
    return losses.cpu()


TASK = LanguageTask
