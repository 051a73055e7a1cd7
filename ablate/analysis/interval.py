"""One number with its interval: what every statistic of the platform gives back."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

CONFIDENCE = 0.95
"""Confidence of every interval unless a caller asks for another."""


@dataclass(frozen=True)
class Interval:
    """An estimate and the ends of its interval.

    `low` and `high` are None where the data carry no interval at all (one seed), and infinite
    where the interval is open at that end.
    """

    estimate: float
    low: float | None
    high: float | None

    def __contains__(self, value: float) -> bool:
        return self.low is not None and self.high is not None and self.low <= value <= self.high


def mean_interval(values: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Return the mean of `values` with Student's interval; without ends for a single value.

    Raises:
        ValueError: if there is no value, or one is not finite.
    """
    array = np.asarray(values, dtype=float).reshape(-1)
    if array.size == 0 or not np.isfinite(array).all():
        raise ValueError(f"a mean needs finite values, got {array.tolist()}")
    mean = float(array.mean())
    if array.size == 1:
        return Interval(mean, None, None)
    error = float(array.std(ddof=1)) / math.sqrt(array.size)
    return t_interval(mean, error, array.size - 1, confidence)


def t_interval(
    estimate: float, error: float, degrees: float, confidence: float = CONFIDENCE
) -> Interval:
    """Return `estimate` plus and minus Student's quantile times its standard `error`."""
    half = float(stats.t.ppf(0.5 + confidence / 2, degrees)) * error
    return Interval(estimate, estimate - half, estimate + half)
