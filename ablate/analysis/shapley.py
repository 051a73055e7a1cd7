"""Exact Shapley values of up to six two-level components from a full table of their subsets.

    phi_i = sum over subsets S without i of |S|! (k - |S| - 1)! / k! (v(S + i) - v(S))

Shapley 1953, "A value for n-person games". Every seed gives its own values; the interval is
Student's over the seeds, so nothing is assumed about how components interact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ablate.analysis.interval import CONFIDENCE, Interval, mean_interval
from ablate.errors import UserError

MOST = 6
Subset = frozenset[str]


@dataclass(frozen=True)
class Shapley:
    """Each component's share of `total` = value with all components - value with none.

    The shares add up to the total in every seed. `seeds` ran every subset; `dropped` did not.
    """

    shares: dict[str, Interval]
    total: Interval
    seeds: tuple[Hashable, ...]
    dropped: tuple[Hashable, ...]


def shapley_values(
    table: Mapping[Subset, Mapping[Hashable, float]],
    components: Sequence[str],
    *,
    confidence: float = CONFIDENCE,
) -> Shapley:
    """Attribute the metric to components.

    Args:
        table: for each subset of components that are on, the metric of each seed.
        components: the two-level components, at most `MOST`.
        confidence: of every interval.

    Raises:
        UserError: if there are too many components, a subset is missing, or no seed is complete.
    """
    if not 1 <= len(components) <= MOST:
        raise UserError(
            f"Shapley values need 1 to {MOST} components (2^k cells), got {len(components)}."
        )
    subsets = [
        frozenset(chosen)
        for size in range(len(components) + 1)
        for chosen in itertools.combinations(components, size)
    ]
    absent = [subset_name(subset, components) for subset in subsets if subset not in table]
    if absent:
        shown = ", ".join(absent[:4]) + (f" and {len(absent) - 4} more" if len(absent) > 4 else "")
        raise UserError(
            f"Shapley values need all {len(subsets)} cells of {', '.join(components)}; missing: "
            f"{shown}. Use design.kind: full."
        )
    every = dict.fromkeys(seed for subset in subsets for seed in table[subset])
    seeds = tuple(
        seed
        for seed in every
        if all(math.isfinite(table[subset].get(seed, math.nan)) for subset in subsets)
    )
    if not seeds:
        raise UserError("Shapley values need at least one seed with a finite value in every cell.")
    values = {s: np.array([table[s][seed] for seed in seeds], dtype=float) for s in subsets}
    shares = {
        name: mean_interval(_share(values, name, components), confidence) for name in components
    }
    total = mean_interval(values[frozenset(components)] - values[frozenset()], confidence)
    return Shapley(shares, total, seeds, tuple(seed for seed in every if seed not in seeds))


def _share(values: Mapping[Subset, np.ndarray], name: str, components: Sequence[str]) -> np.ndarray:
    others = [other for other in components if other != name]
    total = np.zeros_like(values[frozenset()])
    for size in range(len(others) + 1):
        weight = 1 / (len(components) * math.comb(len(others), size))
        for chosen in itertools.combinations(others, size):
            without = frozenset(chosen)
            total = total + weight * (values[without | {name}] - values[without])
    return total


def subset_name(subset: Subset, components: Sequence[str]) -> str:
    """Return a subset as a reader says it, in the order of `components`."""
    return " + ".join(name for name in components if name in subset) or "none on"
