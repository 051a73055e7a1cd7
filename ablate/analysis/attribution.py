"""What each factor of a study contributes, where its design identifies that.

A full or fractional design has main effects and interactions, a full design of two-level factors
Shapley values too, a search the importance of its axes. Other designs have none of these.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

from ablate.analysis.factorial import Factorial, factorial_effects
from ablate.analysis.frame import Cell, Scalar, StudyResults
from ablate.analysis.shapley import MOST, Shapley, Subset, shapley_values
from ablate.analysis.surrogate import Surrogate, surrogate_importance
from ablate.errors import UserError

FACTORIAL = ("full", "fractional")
SEARCH = "search"


def varied(results: StudyResults) -> dict[str, list[Scalar]]:
    """Return the levels of every factor that has at least two, in the order of the plan."""
    levels: dict[str, list[Scalar]] = {}
    for cell in results.cells:
        for axis, level in cell.axes.items():
            known = levels.setdefault(axis, [])
            if level not in known:
                known.append(level)
    return {axis: found for axis, found in levels.items() if len(found) > 1}


def factorial(results: StudyResults) -> Factorial:
    """Return main effects and two-way interactions on the primary measure, the seed as block.

    Of a fractional design that cannot tell all interactions apart, the main effects alone, with
    the interactions that they stand or fall with as `assumed_zero`.

    Raises:
        UserError: if the design, or what is left of it after failures, does not identify them, or
            a factor does not apply in some cells.
    """
    factors = varied(results)
    nested = [axis for axis, levels in factors.items() if None in levels]
    if nested:
        raise UserError(
            f"{', '.join(nested)} does not apply in some cells, so it is not crossed with the "
            "other factors: main effects averaged over all cells do not exist."
        )
    runs = [
        (cell, seed, value)
        for cell in results.cells
        for seed, value in sorted(results.values[cell.id].items())
    ]
    columns = {axis: [cell.axes[axis] for cell, _, _ in runs] for axis in factors}
    values, seeds = [value for _, _, value in runs], [seed for _, seed, _ in runs]
    try:
        return factorial_effects(values, columns, seeds)
    except UserError:
        if results.design != "fractional":
            raise
        return factorial_effects(values, columns, seeds, interactions=())


def shapley(results: StudyResults) -> Shapley:
    """Return the share of each factor in what all first levels together change.

    A factor is "on" at the baseline's level; a share is what having it on adds to the measure.

    Raises:
        UserError: if a factor has more than two levels, there are too many, or a cell is missing.
    """
    factors = varied(results)
    more = [f"{axis} has {len(levels)}" for axis, levels in factors.items() if len(levels) != 2]
    if more:
        raise UserError(f"Shapley values need factors of two levels: {', '.join(more)}.")
    if len(factors) > MOST:
        raise UserError(f"Shapley values need at most {MOST} factors, got {len(factors)}.")
    table: dict[Subset, Mapping[Hashable, float]] = {}
    for cell in results.cells:
        on = frozenset(axis for axis, levels in factors.items() if cell.axes[axis] == levels[0])
        table[on] = {seed: value for seed, value in results.values[cell.id].items()}
    return shapley_values(table, list(factors))


def importance(results: StudyResults) -> Surrogate:
    """Return the share of each axis of a search in the variance of the primary measure.

    One row for each configuration, the mean over its seeds: rows that repeat a configuration would
    let the forest be tested on what it has learnt by heart. Where a range does not apply it stands
    below its smallest value, so that one cut tells these configurations apart.

    Raises:
        UserError: if finished trials are too few, or the forest predicts no better than the mean.
    """
    space = results.search.get("space") or {}
    log = {axis for axis, choice in space.items() if choice.get("log")}
    columns = {
        axis: _numeric([cell.axes[axis] for cell in results.cells], log=axis in log)
        for axis in varied(results)
    }
    values = [_mean(results, cell) for cell in results.cells]
    return surrogate_importance(columns, values)


def _mean(results: StudyResults, cell: Cell) -> float:
    """The mean over the seeds of a configuration; NaN if one that ended has no value."""
    values = results.values[cell.id]
    ended = [t for t in results.by_cell[cell.id] if t.state in ("done", "diverged", "pruned")]
    return sum(values.values()) / len(ended) if ended and len(values) == len(ended) else math.nan


def _numeric(column: list[Scalar], *, log: bool) -> list[Any]:
    """A column of numbers, by logarithm or not, with what does not apply below them all."""
    known = [value for value in column if value is not None]
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in known):
        return column
    numbers = [math.log(float(value)) if log else float(value) for value in known]
    below = min(numbers) - (max(numbers) - min(numbers) or 1.0)
    rest = iter(numbers)
    return [below if value is None else next(rest) for value in column]
