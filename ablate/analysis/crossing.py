"""Where two scaling curves cross, as the set of sizes at which they cannot be told apart.

The two curves' intervals of log L at a size combine into one for their difference by recovering
variances (MOVER, Zou & Donner 2008, Statistics in Medicine 27, eq. 5-6); the sizes whose interval
holds zero are the interval of the crossing, as in Fieller's theorem, and may have no end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ablate.analysis.power_law import Floats
from ablate.analysis.scaling import ScalingFit, log_losses
from ablate.errors import UserError

POINTS = 49
REACH = 10.0
"""How far beyond the sizes that were run, as a factor, a crossing is looked for."""


@dataclass(frozen=True)
class Crossing:
    """Where the first curve meets the second.

    `verdict` is "crosses" (the first is better on one side and the second on the other, both
    beyond doubt), "first below", "second below" (throughout `searched`, beyond doubt), or
    "undecided". `low` is 0 and `high` infinite where the curves cannot be told apart up to the
    end of `searched`. `estimates` are the crossings of the fitted curves; `extrapolated` says
    that one of them lies outside the sizes that both curves have run.
    """

    verdict: str
    estimates: tuple[float, ...]
    low: float | None
    high: float | None
    searched: tuple[float, float]
    extrapolated: bool


def crossing(
    first: ScalingFit, second: ScalingFit, *, search: tuple[float, float] | None = None
) -> Crossing:
    """Find where two curves over the same single size cross, within `search`.

    Without `search`, a factor of `REACH` beyond the smallest and largest size of either. Seeds
    that the curves share are not paired, which makes the interval wider than it need be.

    Raises:
        UserError: if a fit has two sizes, or the two fits have different ones.
    """
    if first.variables != second.variables or len(first.variables) != 1:
        raise UserError(
            f"a crossing needs two curves over the same single size; got {first.variables} and "
            f"{second.variables}."
        )
    smallest = [fit.sizes.min() for fit in (first, second)]
    largest = [fit.sizes.max() for fit in (first, second)]
    low, high = search or (min(smallest) / REACH, max(largest) * REACH)
    if not 0 < low < high < math.inf:
        raise UserError(f"crossing is searched from {low:g} to {high:g}; 0 < low < high needed.")
    grid = np.linspace(math.log(low), math.log(high), POINTS)
    difference, lower, upper = difference_interval(first, second, grid)
    roots = [math.exp(root) for root in _roots(grid, difference)]
    shared = max(smallest), min(largest)
    outside = any(not shared[0] <= root <= shared[1] for root in roots)
    verdict = _verdict(lower, upper)
    if verdict in ("first below", "second below"):
        return Crossing(verdict, (), None, None, (low, high), extrapolated=False)
    return Crossing(verdict, tuple(roots), *_ends(grid, lower, upper), (low, high), outside)


def difference_interval(
    first: ScalingFit, second: ScalingFit, logs: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return log L of `first` minus that of `second` at log sizes `logs`, with its interval."""
    mine = log_losses(first, (logs - first.center[0])[:, None])
    return recover(mine, log_losses(second, (logs - second.center[0])[:, None]))


def recover(
    first: tuple[Floats, Floats, Floats], second: tuple[Floats, Floats, Floats]
) -> tuple[Floats, Floats, Floats]:
    """Return the difference of two independent estimates, each (estimate, low, high), as MOVER."""
    (mine, low, high), (other, other_low, other_high) = first, second
    difference = mine - other
    below = np.sqrt((mine - low) ** 2 + (other_high - other) ** 2)
    above = np.sqrt((high - mine) ** 2 + (other - other_low) ** 2)
    return difference, difference - below, difference + above


def _verdict(lower: Floats, upper: Floats) -> str:
    first, second = bool((upper < 0).any()), bool((lower > 0).any())
    if first and second:
        return "crosses"
    if (upper < 0).all():
        return "first below"
    return "second below" if (lower > 0).all() else "undecided"


def _roots(grid: Floats, values: Floats) -> list[float]:
    change = np.flatnonzero(np.sign(values[:-1]) * np.sign(values[1:]) < 0)
    share = values[change] / (values[change] - values[change + 1])
    return list(grid[change] + share * (grid[change + 1] - grid[change]))


def _ends(grid: Floats, lower: Floats, upper: Floats) -> tuple[float, float]:
    """Return the hull of the sizes at which the interval of the difference holds zero."""
    edges = sorted(_roots(grid, lower) + _roots(grid, upper))
    unsure = (lower <= 0) & (upper >= 0)
    low = 0.0 if unsure[0] or not edges else math.exp(edges[0])
    high = math.inf if unsure[-1] or not edges else math.exp(edges[-1])
    return low, high
