"""Statistics on plain arrays: intervals, exact paired tests, Holm's correction, effect sizes.

Nothing here knows what a study is. Every function takes the values of the seeds and gives back
numbers, or ``None`` where the data cannot carry the number (one seed has no interval).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

LEVEL = 0.05
"""Family-wise error rate at which a comparison may be called significant."""

EXACT_LIMIT = 20
"""Up to this many pairs every sign flip is enumerated; above it they are sampled."""

SAMPLED_FLIPS = 100_000
"""Number of random sign flips above `EXACT_LIMIT` pairs."""


@dataclass(frozen=True)
class Summary:
    """A mean over `n` seeds with its 95 % t-interval; None where `n` does not allow the number."""

    n: int
    mean: float | None
    deviation: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class PairedEffect:
    """The mean of `n` paired differences, and what can be said about it.

    `low` and `high` bound the 95 % t-interval, `p` is the exact two-sided sign-flip p-value,
    `smallest_p` the smallest p-value that `n` pairs can reach, `size` Hedges' g of the paired
    differences. `identical` says that every pair is equal to the last bit.
    """

    n: int
    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    smallest_p: float | None
    size: float | None
    identical: bool


def finite(values: ArrayLike) -> NDArray[np.float64]:
    """Return `values` as a flat float array.

    Raises:
        ValueError: if a value is NaN or infinite; such trials are counted, never averaged.
    """
    array = np.asarray(values, dtype=np.float64).reshape(-1)
    if not np.isfinite(array).all():
        raise ValueError(f"values must be finite, got {array.tolist()}")
    return array


def summarise(values: ArrayLike) -> Summary:
    """Return mean, sample standard deviation and 95 % t-interval of the seeds' `values`."""
    array = finite(values)
    n = array.size
    if n == 0:
        return Summary(0, None, None, None, None)
    mean = float(array.mean())
    if n == 1:
        return Summary(1, mean, None, None, None)
    deviation = float(array.std(ddof=1))
    half = half_width(deviation, n)
    return Summary(n, mean, deviation, mean - half, mean + half)


def half_width(deviation: float, n: int, level: float = LEVEL) -> float:
    """Return half the width of the t-interval of a mean over `n` >= 2 values."""
    return float(stats.t.ppf(1 - level / 2, n - 1)) * deviation / math.sqrt(n)


def paired_effect(values: ArrayLike, reference: ArrayLike) -> PairedEffect:
    """Compare two cells on the same seeds: `values` minus `reference`, pair by pair.

    Raises:
        ValueError: if the two differ in length or hold a value that is not finite.
    """
    left, right = finite(values), finite(reference)
    if left.size != right.size:
        raise ValueError(f"pairs need equal lengths, got {left.size} and {right.size}")
    differences = left - right
    n = differences.size
    if n == 0:
        return PairedEffect(0, None, None, None, None, None, None, identical=False)
    summary = summarise(differences)
    identical = bool((differences == 0).all())
    if n == 1:
        return PairedEffect(1, summary.mean, None, None, None, None, None, identical)
    return PairedEffect(
        n=n,
        difference=summary.mean,
        low=summary.low,
        high=summary.high,
        p=sign_flip_p(differences),
        smallest_p=smallest_p(n),
        size=None if identical else hedges_g(differences),
        identical=identical,
    )


def sign_flip_p(differences: ArrayLike, *, seed: int = 0) -> float:
    """Return the two-sided p-value of the paired permutation test of the mean.

    Under the null hypothesis the two cells of a pair are exchangeable, so each difference is as
    likely to have either sign. Up to `EXACT_LIMIT` pairs all 2^n sign patterns are enumerated;
    above, `SAMPLED_FLIPS` patterns are drawn from `seed` and the observed one is counted in.

    Raises:
        ValueError: if there is no difference at all, or one is not finite.
    """
    array = finite(differences)
    if array.size == 0:
        raise ValueError("a sign-flip test needs at least one pair, got none")
    observed = abs(float(array.sum()))
    # Equal sums that were added up in another order may differ in the last bits.
    reached = observed - 1e-12 * float(np.abs(array).sum())
    if array.size > EXACT_LIMIT:
        flips = np.random.default_rng(seed).integers(0, 2, (SAMPLED_FLIPS, array.size))
        hits = int((np.abs((2 * flips - 1) @ array) >= reached).sum())
        return (hits + 1) / (SAMPLED_FLIPS + 1)
    # The first sign may stay as it is: flipping all signs leaves the absolute sum alone.
    sums = array[:1]
    for difference in array[1:]:
        sums = np.concatenate([sums + difference, sums - difference])
    return float((np.abs(sums) >= reached).mean())


def smallest_p(pairs: int) -> float:
    """Return the smallest two-sided p-value that the sign-flip test can give for `pairs` pairs."""
    return 1 / (SAMPLED_FLIPS + 1) if pairs > EXACT_LIMIT else 2.0 ** (1 - pairs)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values, in the order given (Holm 1979, step-down Bonferroni)."""
    total = len(p_values)
    adjusted = [1.0] * total
    running = 0.0
    for rank, index in enumerate(sorted(range(total), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (total - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def seeds_needed(comparisons: int, level: float = LEVEL) -> int:
    """Return the fewest paired seeds with which one of `comparisons` can pass Holm at `level`."""
    return max(2, math.ceil(1 + math.log2(max(1, comparisons) / level)))


def hedges_g(differences: ArrayLike) -> float | None:
    """Return the paired effect size d_z = mean / deviation with Hedges' small-sample correction.

    None with fewer than three pairs, and when all differences are equal, where d_z has no
    finite value.
    """
    array = finite(differences)
    if array.size < 3:
        return None
    mean, deviation = float(array.mean()), float(array.std(ddof=1))
    if deviation <= 1e-12 * abs(mean):
        return None
    degrees = array.size - 1
    logarithm = special.gammaln(degrees / 2) - special.gammaln((degrees - 1) / 2)
    correction = math.exp(float(logarithm)) / math.sqrt(degrees / 2)
    return correction * mean / deviation
