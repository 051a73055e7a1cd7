"""How soon each cell learns: area under the log-token curve, value half-way, time to a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from ablate.analysis.comparisons import common_span
from ablate.analysis.effects import Summary, summarise
from ablate.analysis.frame import Cell, Curve, StudyResults
from ablate.analysis.interval import Interval
from ablate.analysis.learning_curves import area_under_log_curve, band
from ablate.analysis.targets import Reach, loss_at_budget, median_time, time_to_target


@dataclass(frozen=True)
class Learning:
    """How one cell learns.

    `area` is the mean height of its curves over log tokens in the range that all cells share, and
    `halfway` the value after half of the largest token count in it, both over the seeds that are
    done. `reached` of `runs` trials met the target; `median` is Kaplan and Meier's median of the
    tokens that they needed, where the other trials are censored at their last finite point.
    """

    cell: Cell
    area: Summary
    halfway: Summary
    reached: int
    runs: int
    median: Interval | None


@dataclass(frozen=True)
class Learnability:
    """All cells in plan order, and the target: what `reference` has after half of its tokens."""

    rows: tuple[Learning, ...]
    reference: Cell
    target: float
    half: float
    span: tuple[float, float]


def learnability(results: StudyResults) -> Learnability | None:
    """Return how soon each cell learns; None where no two curves cover a common range."""
    span = common_span(results)
    reference = next((cell for cell in results.cells if results.learning_curves(cell.id)), None)
    if span is None or reference is None:
        return None
    baseline = results.cell(results.baseline)
    if baseline is not None and results.learning_curves(baseline.id):
        reference = baseline
    half = span[1] / 2
    mean = band(list(results.learning_curves(reference.id).values()))
    target = None if mean is None else loss_at_budget(mean.tokens, mean.mean, half)
    if target is None or half <= span[0]:
        return None
    rows = tuple(_learning(results, cell, span, half, target) for cell in results.cells)
    return Learnability(rows, reference, target, half, span)


def attempts(results: StudyResults, cell: Cell) -> list[Curve]:
    """Return the curve of every trial of `cell` that has one, however it ended.

    A trial that diverged or was pruned did not meet the target by then, which is worth knowing;
    results of other code than today's are left out.
    """
    trials = [trial for trial in results.by_cell[cell.id] if trial.state != "stale"]
    curves = [results.curves.get(trial.id, {}).get(results.curve_metric) for trial in trials]
    return [curve for curve in curves if curve is not None and curve.tokens.size]


def _learning(
    results: StudyResults, cell: Cell, span: tuple[float, float], half: float, target: float
) -> Learning:
    done = results.learning_curves(cell.id).values()
    goal = cast(Literal["min", "max"], results.goal)
    reached = [
        time_to_target(c.tokens, c.values, target, goal=goal) for c in attempts(results, cell)
    ]
    return Learning(
        cell=cell,
        area=_summary([area_under_log_curve(curve, *span) for curve in done]),
        halfway=_summary([loss_at_budget(curve.tokens, curve.values, half) for curve in done]),
        reached=sum(one.reached for one in reached),
        runs=len(reached),
        median=_median(reached),
    )


def _median(reached: Sequence[Reach]) -> Interval | None:
    if not reached:
        return None
    return median_time([one.tokens for one in reached], [one.reached for one in reached])


def _summary(values: Sequence[float | None]) -> Summary:
    return summarise([value for value in values if value is not None and math.isfinite(value)])
