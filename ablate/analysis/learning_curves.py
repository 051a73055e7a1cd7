"""Learning curves over seeds: mean, 95 % band, area under the log-token curve."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ablate.analysis.effects import LEVEL
from ablate.analysis.frame import Curve
from ablate.analysis.targets import FEW, simultaneous_band

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Band:
    """Mean over `n` seeds at each of `tokens`; `low` and `high` are NaN where n < 2.

    From `FEW` seeds on the band holds the whole curve at once. With fewer, such a band is too wide
    to show anything, and it holds each point by itself.
    """

    tokens: Floats
    mean: Floats
    low: Floats
    high: Floats
    n: int


def band(curves: Sequence[Curve]) -> Band | None:
    """Return the mean and the 95 % band of `curves` on their common token grid.

    Points at zero tokens and points that are not finite are left out. None if nothing remains.
    """
    kept = [curve for curve in map(clean, curves) if curve.tokens.size]
    grid = common_grid(kept)
    if grid.size == 0:
        return None
    return _band(grid, np.stack([on_grid(curve, grid) for curve in kept]))


def paired_band(curves: Mapping[int, Curve], reference: Mapping[int, Curve]) -> Band | None:
    """Return the band of `curves` minus `reference`, seed by seed, over their common seeds."""
    seeds = sorted(set(curves) & set(reference))
    pairs = [(clean(curves[seed]), clean(reference[seed])) for seed in seeds]
    pairs = [(left, right) for left, right in pairs if left.tokens.size and right.tokens.size]
    grid = common_grid([curve for pair in pairs for curve in pair])
    if grid.size == 0:
        return None
    return _band(
        grid, np.stack([on_grid(left, grid) - on_grid(right, grid) for left, right in pairs])
    )


def clean(curve: Curve) -> Curve:
    """Return the points of `curve` that are finite and lie after the first token.

    Of several points at one number of tokens the last one stays.
    """
    good = np.isfinite(curve.values) & (curve.tokens > 0)
    tokens, values = curve.tokens[good], curve.values[good]
    last = np.append(np.diff(tokens) > 0, True)[: tokens.size]
    return Curve(tokens[last], values[last])


def common_grid(curves: Sequence[Curve]) -> Floats:
    """Return all token counts of `curves` that lie in the range which every curve covers."""
    if not curves:
        return np.empty(0)
    start = max(curve.tokens[0] for curve in curves)
    end = min(curve.tokens[-1] for curve in curves)
    grid: Floats = np.unique(np.concatenate([curve.tokens for curve in curves]))
    kept: Floats = grid[(grid >= start) & (grid <= end)]
    return kept


def on_grid(curve: Curve, grid: Floats) -> Floats:
    """Return `curve` at each point of `grid`, interpolated linearly in the log of the tokens."""
    values: Floats = np.interp(np.log(grid), np.log(curve.tokens), curve.values)
    return values


def area_under_log_curve(curve: Curve, start: float, end: float) -> float | None:
    """Return the mean height of `curve` against log tokens between `start` and `end` tokens.

    It is the area under the log-token curve divided by the width log(end / start), so it has the
    unit of the metric. None if the curve does not cover the range or the range is empty.
    """
    cleaned = clean(curve)
    tokens = cleaned.tokens
    if not 0 < start < end or tokens.size < 2 or tokens[0] > start or tokens[-1] < end:
        return None
    inside = tokens[(tokens > start) & (tokens < end)]
    grid = np.concatenate([[start], inside, [end]])
    area = np.trapezoid(on_grid(cleaned, grid), np.log(grid))
    return float(area) / math.log(end / start)


def _band(grid: Floats, values: Floats) -> Band:
    n = values.shape[0]
    mean = values.mean(axis=0)
    if n < 2:
        gap = np.full_like(mean, np.nan)
        return Band(grid, mean, gap, gap, n)
    if n >= FEW:
        whole = simultaneous_band(values)
        assert whole.low is not None
        assert whole.high is not None
        return Band(grid, mean, whole.low, whole.high, n)
    quantile = float(stats.t.ppf(1 - LEVEL / 2, n - 1))
    half = quantile * values.std(axis=0, ddof=1) / math.sqrt(n)
    return Band(grid, mean, mean - half, mean + half, n)
