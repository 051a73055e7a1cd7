"""What a model trains on and is scored on: raw bytes, or the packed tokens of a prepared corpus."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ablate.errors import UserError
from ablate.experiments.language.corpus import STDLIB, Bytes, Corpus
from ablate.experiments.language.ngrams import VOCAB, bigram_bits, unigram_bits
from ablate.experiments.language.shards import Packed
from ablate.experiments.task import UNSCORED

Numbers = NDArray[np.int64]
COUNTED = 2**22
"""Frequencies of a prepared corpus are those of so many of its first training tokens."""


class HeldOut(NamedTuple):
    """Rows that are scored, and how many bytes of text their targets are."""

    inputs: Numbers  # [rows context]
    targets: Numbers  # [rows context]; UNSCORED where the text has ended
    bytes: int


class Data(Protocol):
    """Text that is ready, as tokens."""

    @property
    def digest(self) -> str:
        """Identity of all that is trained on and scored on."""

    def size(self, split: str) -> int:
        """Tokens of ``train`` or ``validation``."""

    def facts(self, scored: HeldOut) -> dict[str, float | str]:
        """What is worth knowing about it."""

    def batches(
        self, context: int, batch: int, generator: np.random.Generator
    ) -> Iterator[tuple[Numbers, Numbers]]:
        """Inputs and targets ``[batch context]`` of training rows, without end."""

    def held_out(self, context: int, limit: int) -> HeldOut:
        """Fixed rows of about `limit` bytes of held-out text."""


@dataclass(frozen=True)
class RawData:
    """Bytes in memory: rows start anywhere, and may cross documents."""

    corpus: Corpus

    @property
    def digest(self) -> str:
        """Hash of both splits."""
        return self.corpus.digest

    def size(self, split: str) -> int:
        """Bytes of a split."""
        return len(getattr(self.corpus, split))

    def facts(self, scored: HeldOut) -> dict[str, float | str]:
        """Sizes, and what predictors without memory score on the very bytes scored."""
        corpus = self.corpus
        facts: dict[str, float | str] = {
            "corpus": corpus.source,
            "data_source": STDLIB if corpus.source == STDLIB else f"folder {corpus.source}",
            "data_is_sample": "no",
            "train_bytes": float(len(corpus.train)),
            "validation_bytes": float(len(corpus.validation)),
            "scored_bytes": float(scored.bytes),
            "train_files": float(len(corpus.train_files)),
            "validation_files": float(len(corpus.validation_files)),
            "unigram_bits_per_byte": unigram_bits(corpus.train, scored.targets),
            "bigram_bits_per_byte": bigram_bits(corpus.train, scored.inputs, scored.targets),
        }
        if corpus.source == STDLIB:
            facts["python"] = platform.python_version()
        return facts

    def batches(
        self, context: int, batch: int, generator: np.random.Generator
    ) -> Iterator[tuple[Numbers, Numbers]]:
        """Rows that start at random bytes."""
        text = self.corpus.train
        while True:
            starts = generator.integers(0, len(text) - context, size=batch)
            yield _rows(text, starts, context)

    def held_out(self, context: int, limit: int) -> HeldOut:
        """Rows that do not overlap and lie evenly over the held-out text, at most `limit` bytes."""
        text = self.corpus.validation
        there = (len(text) - 1) // context
        rows = min(there, limit // context)
        starts = np.linspace(0, there - 1, rows).astype(np.int64) * context
        inputs, targets = _rows(text, starts, context)
        return HeldOut(inputs, targets, targets.size)


@dataclass(frozen=True)
class PackedData:
    """Tokens on disk: rows are cut one after another, and drawn in shuffled passes."""

    packed: Packed

    @property
    def digest(self) -> str:
        """Hash of the tokens, the tokenizer and the split."""
        return self.packed.digest

    def size(self, split: str) -> int:
        """Tokens of a split."""
        return len(getattr(self.packed, split))

    def facts(self, scored: HeldOut) -> dict[str, float | str]:
        """Where the text is from, sizes, and what token frequencies alone score."""
        facts, packed = self.packed.facts, self.packed
        train = packed.train.read(0, min(COUNTED, len(packed.train)))
        real = scored.targets != UNSCORED
        targets = scored.targets[real]
        per_byte = len(targets) / scored.bytes
        found: dict[str, float | str] = {
            "corpus": str(facts["corpus"]),
            "data_source": str(facts["origin"]),
            "data_is_sample": "yes" if facts["is_sample"] else "no",
            "split": str(facts["split"]),
            "tokenizer": f"{facts['tokenizer']} ({facts['tokenizer_digest']})",
            "vocabulary": float(packed.vocab),
            "train_bytes": float(facts["train_bytes"]),
            "train_tokens": float(len(packed.train)),
            "train_documents": float(facts["documents"] - facts["held_out"]),
            "validation_bytes": float(facts["validation_bytes"]),
            "validation_documents": float(facts["held_out"]),
            "scored_bytes": float(scored.bytes),
            "scored_tokens": float(len(targets)),
            "bytes_per_token": 1 / per_byte,
            "unigram_bits_per_byte": unigram_bits(train, targets, packed.vocab) * per_byte,
        }
        if packed.vocab == VOCAB:
            bigram = bigram_bits(train, scored.inputs[real], targets)
            found["bigram_bits_per_byte"] = bigram
        return found

    def batches(
        self, context: int, batch: int, generator: np.random.Generator
    ) -> Iterator[tuple[Numbers, Numbers]]:
        """Each row once in a pass, in an order drawn for that pass.

        Raises:
            UserError: the text does not fill one batch.
        """
        train = self.packed.train
        rows = (len(train) - 1) // context
        if rows < batch:
            raise UserError(
                f"task_args.corpus={self.packed.facts['corpus']!r}: its training part has {rows} "
                f"rows of {context} tokens, fewer than task_args.batch={batch}."
            )
        while True:
            order = generator.permutation(rows)
            for first in range(0, rows - batch + 1, batch):
                starts = order[first : first + batch] * context
                read = np.stack([train.read(start, context + 1) for start in starts.tolist()])
                yield read[:, :-1], read[:, 1:]

    def held_out(self, context: int, limit: int) -> HeldOut:
        """The first held-out documents of together at most `limit` bytes, at least one.

        The same documents whatever the tokenizer, all of their tokens, the first one predicted from
        an end of document. So bits per byte of two tokenizers are about the same text.
        """
        tokens, sizes = self.packed.sizes.cumsum(axis=0).T
        documents = max(1, int(np.searchsorted(sizes, limit, side="right")))
        count = int(tokens[documents - 1])
        text = self.packed.validation.read(0, count)
        rows = -(-count // context)
        inputs = np.full(rows * context, self.packed.end, dtype=np.int64)
        targets = np.full(rows * context, UNSCORED, dtype=np.int64)
        inputs[1:count], targets[:count] = text[:-1], text
        shape = (rows, context)
        return HeldOut(inputs.reshape(shape), targets.reshape(shape), int(sizes[documents - 1]))


def _rows(text: Bytes, starts: Numbers, length: int) -> tuple[Numbers, Numbers]:
    rows = text[starts[:, None] + np.arange(length + 1)].astype(np.int64)
    return rows[:, :-1], rows[:, 1:]
