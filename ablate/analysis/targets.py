"""How soon a target is met, with censoring; the loss at a budget; a band for a whole curve.

A trial that ends before it meets the target (out of tokens, pruned, diverged) is censored: it
would have needed longer than it ran. Kaplan & Meier 1958 for the curve, order statistics for the
interval of the median, Irwin 1949 for the restricted mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from ablate.analysis.interval import CONFIDENCE, Interval, t_interval
from ablate.analysis.power_law import Floats
from ablate.errors import UserError

Goal = Literal["min", "max"]

BAND_DRAWS = 4000
FEW = 5
"""With fewer seeds than this a band uses Bonferroni's quantile; with two or one there is none."""


@dataclass(frozen=True)
class Reach:
    """The tokens at which a trial met its target, or, not `reached`, up to which it had not."""

    tokens: float
    reached: bool


def time_to_target(
    tokens: ArrayLike, values: ArrayLike, target: float, *, goal: Goal = "min"
) -> Reach:
    """Return when a curve first meets `target`, between two points linearly in log tokens.

    Values that are not finite are left out, so a diverged trial is censored at its last finite
    point. A curve without a finite point is censored at 0.
    """
    x, y = np.asarray(tokens, dtype=float), np.asarray(values, dtype=float)
    kept = np.isfinite(y)
    x, y = x[kept], y[kept]
    if x.size == 0:
        return Reach(0.0, reached=False)
    sign = 1 if goal == "min" else -1
    hits = np.flatnonzero(sign * y <= sign * target)
    if hits.size == 0:
        return Reach(float(x[-1]), reached=False)
    at = int(hits[0])
    if at == 0 or x[at - 1] <= 0:
        return Reach(float(x[at]), reached=True)
    share = (y[at - 1] - target) / (y[at - 1] - y[at])
    between = math.log(x[at - 1]) + share * math.log(x[at] / x[at - 1])
    return Reach(math.exp(between), reached=True)


def loss_at_budget(tokens: ArrayLike, values: ArrayLike, budget: float) -> float | None:
    """Return a curve's value at `budget` tokens, linearly in log tokens; None outside its points.

    A curve that is not finite on either side of the budget has no value there.
    """
    x, y = np.asarray(tokens, dtype=float), np.asarray(values, dtype=float)
    x, y = x[x > 0], y[x > 0]
    if x.size == 0 or not x[0] <= budget <= x[-1]:
        return None
    value = float(np.interp(math.log(budget), np.log(x), y))
    return value if math.isfinite(value) else None


def survival(times: ArrayLike, reached: ArrayLike) -> tuple[Floats, Floats, Floats, Floats]:
    """Return Kaplan-Meier's event times, survival after each, numbers at risk, and events."""
    t, event = np.asarray(times, dtype=float), np.asarray(reached, dtype=bool)
    if t.size == 0 or t.size != event.size:
        raise ValueError(f"times and reached need one length of at least 1: {t.size}, {event.size}")
    points = np.unique(t[event])
    at_risk = (t[None, :] >= points[:, None]).sum(axis=1).astype(float)
    events = ((t[None, :] == points[:, None]) & event).sum(axis=1).astype(float)
    return points, np.cumprod(1 - events / at_risk), at_risk, events


def median_time(
    times: ArrayLike, reached: ArrayLike, *, confidence: float = CONFIDENCE
) -> Interval:
    """Return the median time to the target; infinite if most trials never met it.

    The interval is between two order statistics, by the exact binomial of a median. For its low
    end a censored trial counts as if it had met the target when it was censored, for its high end
    as if it never would: it covers whatever the censoring depends on, divergence included. Below
    six trials no order statistics reach 95 %, and there is no interval.
    """
    points, alive, _, _ = survival(times, reached)
    half = np.flatnonzero(alive <= 0.5 + 1e-12)
    estimate = float(points[half[0]]) if half.size else math.inf
    t, event = np.asarray(times, dtype=float), np.asarray(reached, dtype=bool)
    # The k-th smallest and the k-th largest miss the median with probability P(Bin(n, 1/2) < k).
    tail = (1 - confidence) / 2
    k = int(sum(stats.binom.cdf(np.arange(t.size), t.size, 0.5) <= tail))
    if k == 0:
        return Interval(estimate, None, None)
    low = np.sort(t)[k - 1]
    high = np.sort(np.where(event, t, np.inf))[t.size - k]
    return Interval(estimate, float(low), float(high))


def restricted_mean_time(
    times: ArrayLike,
    reached: ArrayLike,
    *,
    horizon: float | None = None,
    confidence: float = CONFIDENCE,
) -> Interval:
    """Return the mean time to the target up to `horizon`: the area under the survival curve.

    The variance is Greenwood's times n / (n - 1), with Student's quantile: without censoring
    before the horizon, exactly the t-interval of the mean of min(time, horizon). It takes
    censoring before the horizon as uninformative. No interval where no trial met the target.

    Raises:
        UserError: if the last trial still at risk was censored before the horizon.
    """
    points, alive, at_risk, events = survival(times, reached)
    t, event = np.asarray(times, dtype=float), np.asarray(reached, dtype=bool)
    end = float(t.max()) if horizon is None else horizon
    if end > t.max() and not event[t == t.max()].all():
        raise UserError(f"no trial was followed to {end:g} tokens; the longest ran {t.max():g}.")
    inside = points < end
    edges = np.concatenate([[0.0], points[inside], [end]])
    heights = np.concatenate([[1.0], alive[inside]])
    areas = heights * np.diff(edges)
    estimate = float(areas.sum())
    at_risk, events = at_risk[inside], events[inside]
    if t.size < 2 or events.size == 0:
        return Interval(estimate, None, None)
    after = np.cumsum(areas[::-1])[::-1][1:]
    rest = at_risk * (at_risk - events)
    terms = np.where(rest > 0, after**2 * events / np.where(rest > 0, rest, 1), 0)
    error = math.sqrt(float(terms.sum()) * t.size / (t.size - 1))
    return t_interval(estimate, error, t.size - 1, confidence)


@dataclass(frozen=True, eq=False)
class SimultaneousBand:
    """A band that holds the whole mean curve at once; `low` and `high` are None below 3 seeds.

    `critical` multiplies the standard error of each point; `method` names where it comes from.
    """

    mean: Floats
    low: Floats | None
    high: Floats | None
    seeds: int
    critical: float | None
    method: str


def simultaneous_band(
    curves: ArrayLike, *, confidence: float = CONFIDENCE, seed: int = 0
) -> SimultaneousBand:
    """Return the simultaneous band of the mean of `curves` ``[seeds, points]``.

    From `FEW` seeds on, the quantile of the largest |t| over the points is simulated for normal
    curves with the correlation that the seeds show (sup-t, Montiel Olea & Plagborg-Moller 2019),
    and capped by Bonferroni's. Three or four seeds do not show a correlation; Bonferroni's
    quantile holds for any. One or two seeds have no band.

    Raises:
        ValueError: if a value is not finite.
    """
    values = np.asarray(curves, dtype=float)
    if values.ndim != 2 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"a band needs finite curves [seeds, points], got shape {values.shape}")
    n, points = values.shape
    mean = values.mean(axis=0)
    if n < 3:
        return SimultaneousBand(mean, None, None, n, None, "none: fewer than three seeds")
    critical = float(stats.t.ppf(1 - (1 - confidence) / (2 * points), n - 1))
    method = "Bonferroni"
    if n >= FEW:
        simulated = _sup_t(values - mean, confidence, np.random.default_rng(seed))
        if simulated < critical:
            critical, method = simulated, "sup-t"
    half = critical * values.std(axis=0, ddof=1) / math.sqrt(n)
    return SimultaneousBand(mean, mean - half, mean + half, n, critical, method)


def _sup_t(residual: Floats, confidence: float, generator: np.random.Generator) -> float:
    n = len(residual)
    length = np.sqrt((residual**2).sum(axis=0))
    varying = residual[:, length > 0] / length[length > 0]
    if varying.shape[1] == 0:
        return math.inf
    largest = []
    for _ in range(BAND_DRAWS // 200):
        # Normal mixtures of the centred curves have the seeds' correlation.
        draw = generator.standard_normal((200, n, n)) @ varying
        t = draw.mean(axis=1) / draw.std(axis=1, ddof=1) * math.sqrt(n)
        largest.append(np.abs(t).max(axis=1))
    return float(np.quantile(np.concatenate(largest), confidence))
