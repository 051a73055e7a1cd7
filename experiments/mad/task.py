"""The MAD task: one of six variants, scored per token and as the reference scores it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from ablate.errors import UserError, unknown
from ablate.experiments.answers import Predictor, accuracy, loss, macro_batch_mean, read_answers
from ablate.experiments.mad.recall import fuzzy_recall, in_context_recall
from ablate.experiments.mad.sequences import compression, memorization, selective_copying
from ablate.experiments.rows import Rows, check_disjoint, epochs, fingerprint, seeded, to_rows
from ablate.experiments.task import Batch, at_least, check_limits

REFERENCE_BATCH = 128
"""Rows over which the reference averages its macro accuracy."""


class _Sizes(NamedTuple):
    vocab: int
    length: int
    train_rows: int


# The vocabularies are the paper's; lengths and rows are small enough for a CPU.
TOY = {
    "in_context_recall": _Sizes(16, 64, 1_600),
    "noisy_recall": _Sizes(32, 64, 1_600),
    "fuzzy_recall": _Sizes(16, 64, 1_600),
    "selective_copying": _Sizes(16, 64, 1_600),
    "compression": _Sizes(16, 32, 1_600),
    "memorization": _Sizes(256, 32, 256),
}


@dataclass(frozen=True, kw_only=True)
class MADTask:
    """Mechanistic architecture design (Poli et al. 2024; Atlas Table 4).

    Args:
        variant: which of the six tasks.
        vocab: tokens; 0 takes the variant's baseline in the paper.
        length: tokens of a row before the shift by one; 0 takes the variant's toy length.
        train_rows: different training rows; 0 takes the variant's toy number.
        test_rows: rows scored.
        noise: share of pairs that are noise (noisy_recall).
        noise_vocab: tokens of the vocabulary that are noise (noisy_recall).
        copies: tokens to copy (selective_copying).
        data_seed: seed of both sets of rows, the same in all trials of a study.
        batch: rows of a batch.
        tokens: training budget in tokens.

    Raises:
        UserError: sizes that do not fit together.
    """

    variant: Literal[
        "in_context_recall",
        "noisy_recall",
        "fuzzy_recall",
        "selective_copying",
        "compression",
        "memorization",
    ] = "in_context_recall"
    vocab: int = 0
    length: int = 0
    train_rows: int = 0
    test_rows: int = 256
    noise: float = 0.2
    noise_vocab: int = 16
    copies: int = 8
    data_seed: int = 0
    batch: int = 32
    tokens: int = 2_048_000

    name: ClassVar[str] = "mad"
    metrics: ClassVar[tuple[str, ...]] = (
        "val/loss",
        "val/accuracy",
        "val/accuracy_macro_batch_mean",
    )

    def __post_init__(self) -> None:
        if self.variant not in TOY:
            raise unknown("variant of MAD", self.variant, TOY, where="task_args.variant")
        for field, value in TOY[self.variant]._asdict().items():
            if not getattr(self, field):
                object.__setattr__(self, field, value)
        check_limits(self, at_least(1, "train_rows", "test_rows", "batch", "tokens"))
        self._rows(np.random.default_rng(0), 1, train=False)  # refuses sizes that do not fit

    @property
    def reconstructs(self) -> bool:
        """Whether rows are said again by an auto-encoder, and not predicted."""
        return self.variant == "compression"

    @property
    def context(self) -> int:
        """Tokens that the model reads: one less than `length` in plain and noisy recall."""
        return self.length - (self.variant in ("in_context_recall", "noisy_recall"))

    @cached_property
    def data(self) -> tuple[Rows, Rows]:
        """Training and test rows, from different streams and without overlap."""
        train_stream, test_stream = seeded(self.data_seed, 2)
        train = self._rows(train_stream, self.train_rows, train=True)
        test = self._rows(test_stream, self.test_rows, train=False)
        check_disjoint([train], [test])
        return train, test

    def _rows(self, generator: np.random.Generator, rows: int, *, train: bool) -> Rows:
        vocab, length = self.vocab, self.length
        match self.variant:
            case "in_context_recall":
                drawn = in_context_recall(generator, rows, vocab=vocab, length=length, train=train)
            case "noisy_recall":
                drawn = in_context_recall(
                    generator,
                    rows,
                    vocab=vocab,
                    length=length,
                    train=train,
                    noise=self.noise,
                    noise_vocab=self.noise_vocab,
                )
            case "fuzzy_recall":
                drawn = fuzzy_recall(generator, rows, vocab=vocab, length=length, train=train)
            case "selective_copying":
                drawn = selective_copying(
                    generator, rows, vocab=vocab, length=length, copies=self.copies
                )
            case "compression":
                drawn = compression(generator, rows, vocab=vocab, length=length)
            case "memorization":
                drawn = memorization(generator, rows, vocab=vocab, length=length)
        return to_rows(*drawn)

    def data_identity(self) -> str:
        """Hash of the arguments, and of two rows that the generator makes with them."""
        (stream,) = seeded(self.data_seed, 1)
        probe = self._rows(stream, 2, train=True)
        args = {key: value for key, value in asdict(self).items() if key not in ("batch", "tokens")}
        return fingerprint(args, *(part.numpy() for part in probe))

    def info(self) -> dict[str, float | str]:
        """What a model scores that always says the same possible answer."""
        recall = (self.vocab - (self.noise_vocab if self.variant == "noisy_recall" else 0)) // 2
        answers = {
            "in_context_recall": self.vocab - recall,
            "noisy_recall": recall,
            "fuzzy_recall": self.vocab - 1 - (self.vocab - 1) // 2,
            "selective_copying": self.vocab - 2,
            "compression": self.vocab - 1,
            "memorization": (self.vocab - 1) // 2,
        }[self.variant]
        return {"variant": self.variant, "chance_accuracy": 1 / answers}

    def batches(self, generator: np.random.Generator) -> Iterator[Batch]:
        """Shuffled passes over the training rows, without end."""
        return epochs([self.data[0]], self.batch, generator)

    def score(self, model: Predictor) -> dict[str, float]:
        """Accuracy per scored token, the reference's macro accuracy per batch, and the loss.

        Raises:
            UserError: compression with a model that does not say that it reconstructs.
        """
        if self.reconstructs and not getattr(model, "reconstructs", False):
            raise UserError(
                "task_args.variant='compression': its score says nothing about a model that sees "
                "each token while it repeats it. It needs an auto-encoder, which says the row from "
                "its last hidden state: model_args.backbone=autoencoder, or your own model with "
                "the attribute reconstructs = True."
            )
        found = read_answers(model, self.data[1], batch=self.batch)
        return {
            "val/loss": loss(found),
            "val/accuracy": accuracy(found),
            "val/accuracy_macro_batch_mean": macro_batch_mean(found, REFERENCE_BATCH),
        }


TASK = MADTask
