"""Honesty about cells that were tuned: what the best of m settings owes to luck.

The best of m noisy numbers is better than the setting it picks. Here are the expected best of m
(Dodge et al. 2019, arXiv:1909.03004, in the unbiased form of Tang et al. 2020, arXiv:2004.13796),
and an estimate of the picked setting by seeds that did not take part in picking it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from ablate.analysis.interval import CONFIDENCE, Interval, mean_interval
from ablate.analysis.power_law import Floats
from ablate.errors import UserError

Goal = Literal["min", "max"]


def expected_best(values: ArrayLike, *, goal: Goal = "min") -> Floats:
    """Return the expected best of m = 1 .. n of the n `values`, each m without bias.

    The mean of the best over all subsets of size m, sum_i y_(i) C(n - i, m - 1) / C(n, m) with
    y_(1) the best. Values that are not finite count as the worst outcome there is, so the curve
    starts infinite where subsets without a finite value exist.

    Raises:
        ValueError: if there is no value.
    """
    array = np.asarray(values, dtype=float).reshape(-1)
    n = array.size
    if n == 0:
        raise ValueError("the expected best needs at least one value, got none")
    sign = 1.0 if goal == "min" else -1.0
    ordered = np.sort(np.where(np.isfinite(array), sign * array, np.inf))
    m, curve = np.arange(1, n + 1), np.zeros(n)
    weights = m / n  # C(n - i, m - 1) / C(n, m) at i = 1; each next i follows from the last
    for i, value in enumerate(ordered, start=1):
        curve[weights > 0] += weights[weights > 0] * value
        if i < n:
            weights = weights * np.maximum(n - i - m + 1, 0) / (n - i)
    return sign * curve


@dataclass(frozen=True)
class TunedBest:
    """The best of `settings` settings, as it looks and as it is.

    `chosen` is the setting with the best mean over all seeds and `naive` that mean, which is
    too good. `honest` is the mean of `held_out`: each seed's value of the setting that the other
    seeds choose. `optimism` is how much better `naive` looks than `honest`, never hidden.
    """

    chosen: Hashable
    settings: int
    seeds: int
    naive: float
    honest: Interval
    held_out: tuple[float, ...]
    optimism: float
    label: str


def tuned_best(
    scores: ArrayLike,
    settings: Sequence[Hashable],
    *,
    goal: Goal = "min",
    confidence: float = CONFIDENCE,
) -> TunedBest:
    """Estimate a tuned cell from `scores` ``[settings, seeds]`` without the luck of the draw.

    Leave-one-seed-out: unbiased for a setting chosen by one seed fewer than there are. The held
    out values share choosing seeds, so their interval is approximate. Scores that are not finite
    lose against any that is; if a held-out one is not finite, there is no interval.

    Raises:
        UserError: with one seed, where nothing is left to judge the choice by.
    """
    table = np.asarray(scores, dtype=float)
    if table.ndim != 2 or table.shape[0] != len(settings) or table.size == 0:
        raise ValueError(f"scores need shape [{len(settings)} settings, seeds], got {table.shape}")
    count, seeds = table.shape
    if seeds < 2:
        raise UserError(
            f"the best of {count} settings cannot be judged on the one seed that chose it: run "
            "the chosen setting on fresh seeds, or give two or more seeds."
        )
    sign = 1.0 if goal == "min" else -1.0
    losses = np.where(np.isfinite(table), sign * table, np.inf)
    means = losses.mean(axis=1)
    best = int(means.argmin())
    held = np.array(
        [losses[np.delete(losses, j, axis=1).mean(axis=1).argmin(), j] for j in range(seeds)]
    )
    if np.isfinite(held).all():
        honest = mean_interval(sign * held, confidence)
    else:
        honest = Interval(sign * math.inf, None, None)
    naive = sign * float(means[best])
    return TunedBest(
        settings[best], count, seeds, naive, honest, tuple((sign * held).tolist()),
        sign * (honest.estimate - naive), f"best of {count}",
    )  # fmt: skip


def fresh_evaluation(values: ArrayLike, *, confidence: float = CONFIDENCE) -> Interval:
    """Return the mean of the chosen setting on seeds that took no part in choosing: exact."""
    return mean_interval(values, confidence)
