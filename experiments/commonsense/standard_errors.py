"""Standard errors of lm-eval's scores, over the items of a set."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


def of_mean(values: Sequence[float]) -> float:
    """Of a mean, such as an accuracy."""
    return float(np.std(np.asarray(values, dtype=float), ddof=1) / math.sqrt(len(values)))


def of_perplexity(nats: Sequence[float]) -> float:
    """Of ``exp(-mean)`` of log-probabilities, to first order."""
    return math.exp(-float(np.mean(nats))) * of_mean(nats)


def of_ratio(parts: Sequence[tuple[float, float]]) -> float:
    """Of a sum of log-probabilities over a sum of sizes, to first order."""
    nats, sizes = np.asarray(parts, dtype=float).T
    return of_mean(nats - nats.sum() / sizes.sum() * sizes) / float(sizes.mean())


def of_weighted_perplexity(parts: Sequence[tuple[float, float]]) -> float:
    """Of ``exp`` of minus that ratio, to first order."""
    nats, sizes = np.asarray(parts, dtype=float).T
    return math.exp(-nats.sum() / sizes.sum()) * of_ratio(parts)


def of_bits(parts: Sequence[tuple[float, float]]) -> float:
    """Of that ratio in bits."""
    return of_ratio(parts) / math.log(2)


RULES: Mapping[str, Callable[[Sequence[Any]], float]] = {
    "acc": of_mean,
    "acc_norm": of_mean,
    "perplexity": of_perplexity,
    "word_perplexity": of_weighted_perplexity,
    "byte_perplexity": of_weighted_perplexity,
    "bits_per_byte": of_bits,
}
"""By the name that lm-eval gives a score."""


def of_average(errors: Sequence[float]) -> float:
    """Of the plain mean of independent scores."""
    return math.sqrt(sum(error**2 for error in errors)) / len(errors)
