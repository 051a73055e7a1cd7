"""Predict the next token of text: bits per byte, comparable across models and tokenizers."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ablate.components.newton_schulz import NewtonSchulz, set_steps
from ablate.errors import UserError
from ablate.experiments.answers import device_of
from ablate.experiments.hub import corpora_folder
from ablate.experiments.language.corpus import load_corpus
from ablate.experiments.language.data import Data, HeldOut, PackedData, RawData
from ablate.experiments.language.packing import build
from ablate.experiments.language.shards import FORMAT, INDEX, Packed, open_packed
from ablate.experiments.language.sources import declared_key, is_text, open_source
from ablate.experiments.language.tokenizer import (
    BPE,
    BYTES,
    HUB,
    Tokenizer,
    check_spec,
    load_published,
    make_tokenizer,
    vocab_of,
)
from ablate.experiments.task import UNSCORED, Batch, at_least, check_limits

SHORTEST_CONTEXT = 8
BYTES_PER_TOKEN = 4
LOGITS = 2**26
"""At most about so many logits are scored at a time, or one row."""


@dataclass(frozen=True, kw_only=True)
class LanguageTask:
    """Language modelling.

    Args:
        corpus: ``stdlib`` (the running Python's standard library); ``fineweb``, ``fineweb_edu`` or
            ``c4``, with ``:CONFIG`` behind if it is not the usual one; ``sample`` (a few documents
            that come with Ablate); or the path of a text file, of a folder of text files, or of
            parquet or JSON-lines files with a column ``text``.
        tokenizer: ``bytes``; ``bpe:SIZE``, trained on the corpus's training part; or ``hf:NAME``,
            a published one or a folder with a ``tokenizer.json``.
        corpus_bytes: at most about so many bytes are taken of a corpus that is prepared.
        context: tokens that a row predicts, and the model's longest context.
        batch: rows of a training batch.
        tokens: training budget in tokens.
        validation_bytes: at most so many held-out bytes are scored.
        scored_steps: also score with so many Newton-Schulz steps in place of those trained with
            (Atlas section 5, as test-time compute); needs a memory that has them.

    Plain text in bytes is read as it is. All else is prepared: tokens are packed on the disk once
    (`prepare`), for all trials.

    Raises:
        UserError: a number is too small, or the corpus is missing or shorter than one row.
    """

    corpus: str = "stdlib"
    tokenizer: str = BYTES
    corpus_bytes: int | None = None
    context: int = 256
    batch: int = 8
    tokens: int = 500_000
    validation_bytes: int = 32_768
    scored_steps: tuple[int, ...] = ()

    name: ClassVar[str] = "language"

    def __post_init__(self) -> None:
        check_limits(self, at_least(SHORTEST_CONTEXT, "context"))
        check_limits(self, at_least(1, "corpus_bytes", "batch", "tokens"))
        check_limits(self, at_least(self.context, "validation_bytes"))
        if any(steps < 0 for steps in self.scored_steps):
            raise UserError(f"task_args.scored_steps={self.scored_steps}: numbers of at least 0.")
        check_spec(self.tokenizer)
        if self._is_raw and self.corpus_bytes is not None:
            raise UserError(
                "task_args.corpus_bytes is for a corpus that is prepared; plain text in bytes is "
                "read whole."
            )
        if self.is_prepared:
            self._check_size()

    def _check_size(self) -> None:
        for split in ("train", "validation"):
            size = self._data.size(split)
            if size < self.context + 1 and (self._is_raw or split == "train"):
                raise UserError(
                    f"task_args.corpus={self.corpus!r}: its {split} split has {size} "
                    f"{'bytes' if self._is_raw else 'tokens'}, but "
                    f"task_args.context={self.context} needs at least {self.context + 1}."
                )
        scored = int((self._held_out.targets != UNSCORED).sum())
        if scored < self.context:
            raise UserError(
                f"task_args.validation_bytes={self.validation_bytes}: that scores {scored} tokens, "
                f"fewer than the {self.context} of one row."
            )

    @cached_property
    def vocab(self) -> int:
        """Number of tokens."""
        return vocab_of(self.tokenizer)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what `score` gives."""
        steps = tuple(f"val/bits_per_byte@{steps}_steps" for steps in self.scored_steps)
        return (
            "val/loss",
            *(() if self.tokenizer == BYTES else ("val/perplexity",)),
            "val/bits_per_byte",
            "val/bits_per_byte_first_quarter",
            "val/bits_per_byte_last_quarter",
            *steps,
        )

    @cached_property
    def _is_raw(self) -> bool:
        return self.tokenizer == BYTES and is_text(self.corpus)

    @cached_property
    def folder(self) -> Path | None:
        """Where the prepared corpus is, or will be; None for plain text in bytes."""
        return None if self._is_raw else self._place

    @cached_property
    def _place(self) -> Path:
        tokenizer = self.tokenizer
        if tokenizer.startswith(HUB):
            tokenizer = load_published(tokenizer).digest
        key = [FORMAT, self.corpus, declared_key(self.corpus), tokenizer, self.corpus_bytes]
        digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:10]
        words = re.findall(r"[A-Za-z0-9]+", f"{Path(self.corpus).name} {self.tokenizer}")
        return corpora_folder() / f"{'-'.join(words)[:60]}-{digest}"

    @property
    def is_prepared(self) -> bool:
        """Whether there is nothing to prepare."""
        return self._is_raw or (self._place / INDEX).is_file()

    def prepare(self, progress: Callable[[int, str], None] = lambda done, what: None) -> None:
        """Pack the corpus's tokens, unless that is done; `progress` is told bytes and what is done.

        Raises:
            UserError: the corpus or tokenizer is not to be had, or too small.
            Failure: the hub did not answer, or the disk is full.
        """
        if self.is_prepared:
            return
        build(
            self._place,
            lambda: open_source(self.corpus),
            self.tokenizer,
            limit=self.corpus_bytes,
            progress=progress,
        )
        self._check_size()

    @property
    def _data(self) -> Data:
        return RawData(load_corpus(self.corpus)) if self._is_raw else PackedData(self.packed())

    def packed(self) -> Packed:
        """The prepared corpus; it is prepared now, or waited for, if it is not there yet.

        Raises:
            UserError, Failure: as `prepare`; or a file of it is damaged.
        """
        self.prepare()
        return open_packed(self._place)

    def text_tokenizer(self) -> Tokenizer:
        """What turns text into this task's tokens; only one that is trained needs the corpus.

        Raises:
            UserError, Failure: as `prepare`.
        """
        if self.tokenizer.startswith(BPE):
            return self.packed().tokenizer()
        return make_tokenizer(self.tokenizer, tuple)

    def data_identity(self) -> str:
        """Hash of the tokens of both splits, the tokenizer and the split.

        Before a corpus is prepared it is another one, of the arguments alone.
        """
        return self._data.digest if self.is_prepared else f"unprepared-{self._place.name[-10:]}"

    def info(self) -> dict[str, float | str]:
        """What the text is, and what predictors without memory score on the very bytes scored."""
        return self._data.facts(self._held_out)

    def prepared_info(self) -> dict[str, float | str]:
        """What the text is: here that is all there is."""
        return self.info()

    def batches(self, generator: np.random.Generator) -> Iterator[Batch]:
        """Training rows without end, see `ablate.experiments.language.data`."""
        for rows in self._data.batches(self.context, self.batch, generator):
            yield Batch(*map(torch.from_numpy, rows))

    def score(self, model: nn.Module) -> dict[str, float]:
        """Loss on fixed held-out rows, and bits per byte over the row and at its two ends.

        Bits per byte are those of all tokens over the bytes of the text. The first and last quarter
        of the positions tell whether more context helps; their bits are per token, and turned into
        bits per byte by the bytes per token of all that is scored.
        """
        nats = self._nats(model)
        scored = torch.from_numpy(self._held_out.targets) != UNSCORED
        quarter = self.context // 4
        loss = nats.sum().item() / scored.sum().item()
        own = {} if self.tokenizer == BYTES else {"val/perplexity": _exp(loss)}
        return {
            "val/loss": loss,
            **own,
            "val/bits_per_byte": self._bits(nats, scored),
            "val/bits_per_byte_first_quarter": self._bits(nats[:, :quarter], scored[:, :quarter]),
            "val/bits_per_byte_last_quarter": self._bits(nats[:, -quarter:], scored[:, -quarter:]),
            **self._with_other_steps(model),
        }

    def _bits(self, nats: Tensor, scored: Tensor) -> float:
        held_out = self._held_out
        per_byte = (held_out.targets != UNSCORED).sum() / held_out.bytes
        return float(nats.sum().item() / scored.sum().item() / math.log(2) * per_byte)

    def scored_tokens(self) -> int:
        """Tokens that a model reads each time it is scored.

        Before a corpus is prepared a guess: about as many bytes per token as usual in English.
        """
        if self.is_prepared:
            once = self._held_out.inputs.size
        else:
            once = self.validation_bytes // (1 if self.tokenizer == BYTES else BYTES_PER_TOKEN)
        return once * (1 + len(self.scored_steps))

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
                scored = torch.from_numpy(self._held_out.targets) != UNSCORED
                bits = self._bits(self._nats(model), scored)
                found[f"val/bits_per_byte@{steps}_steps"] = bits
        finally:
            for part, steps in own.items():
                part.steps = steps
        return found

    def _nats(self, model: nn.Module) -> Tensor:
        """Loss of every held-out token, ``[rows context]``, 0 where none is scored."""
        inputs, targets = map(torch.from_numpy, self._held_out[:2])
        size = max(1, min(self.batch, LOGITS // (self.context * self.vocab)))
        rows = zip(torch.split(inputs, size), torch.split(targets, size), strict=True)
        return torch.cat([_losses(model, *some) for some in rows])

    @cached_property
    def _held_out(self) -> HeldOut:
        return self._data.held_out(self.context, self.validation_bytes)


def _losses(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Loss of each token in nats, float64 on the CPU, shape ``[b t]``."""
    device = device_of(model)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            logits, _ = model(inputs.to(device))
            losses = cross_entropy(
                logits.double().transpose(1, 2),
                targets.to(device),
                ignore_index=UNSCORED,
                reduction="none",
            )
    finally:
        model.train(training)
    return losses.cpu()


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


TASK = LanguageTask
