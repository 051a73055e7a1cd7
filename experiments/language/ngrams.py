"""Scores of predictors that remember nothing, or one byte: what a model must get under."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

VOCAB = 256


def unigram_bits(
    train: NDArray[np.integer], targets: NDArray[np.integer], vocab: int = VOCAB
) -> float:
    """Cross-entropy in bits per token of `targets` under the frequencies of `train`.

    p(b) = (count(b) + 1) / (tokens + vocab); a token is a byte, unless `vocab` says otherwise.
    """
    return float(-np.log2(_unigram(train, vocab))[targets.ravel()].mean())


def bigram_bits(
    train: NDArray[np.integer], previous: NDArray[np.integer], targets: NDArray[np.integer]
) -> float:
    """Cross-entropy in bits per byte of `targets`, each predicted from the byte before it.

    p(b | a) = (count(ab) + p(b)) / (count(a.) + 1): one imagined byte, spread like the unigram.
    """
    pairs = train[:-1].astype(np.int64) * VOCAB + train[1:]
    counts = np.bincount(pairs, minlength=VOCAB * VOCAB).reshape(VOCAB, VOCAB)
    p = (counts + _unigram(train)) / (counts.sum(axis=1, keepdims=True) + 1)
    return float(-np.log2(p[previous.ravel(), targets.ravel()]).mean())


def _unigram(train: NDArray[np.integer], vocab: int = VOCAB) -> NDArray[np.float64]:
    return (np.bincount(train, minlength=vocab) + 1) / (len(train) + vocab)
