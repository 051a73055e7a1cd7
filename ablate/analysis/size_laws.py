"""Scaling laws of a study that varies a size, one curve for each combination of other levels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ablate.analysis.crossing import Crossing, crossing
from ablate.analysis.frame import Cell, Scalar, StudyResults
from ablate.analysis.scaling import Extrapolation, ScalingFit, fit_scaling, leave_largest_out
from ablate.errors import UserError

SYMBOLS: Mapping[str, str] = {"N": "parameters", "D": "training tokens", "context": "context"}
"""What each variable of a law stands for."""


@dataclass(frozen=True)
class SizeCurve:
    """The law of one combination of the other factors, or the reason why there is none.

    `points` are the sizes in the order of `variables`, seed and value of every run.
    """

    name: str
    points: tuple[tuple[tuple[float, ...], int, float], ...]
    fit: ScalingFit | None
    largest: Extrapolation | None
    refusal: str


@dataclass(frozen=True)
class SizeLaws:
    """All curves over the same `variables`, and where each other one crosses the first."""

    variables: tuple[str, ...]
    curves: tuple[SizeCurve, ...]
    crossings: tuple[tuple[str, str, Crossing], ...]


def size_laws(results: StudyResults) -> SizeLaws | None:
    """Fit L(N), L(D), L(N, D) or L(context) to what the study ran; None if it varies no size."""
    axes = size_axes(results)
    if not axes:
        return None
    variables = tuple(dict.fromkeys(axes.values()))
    groups: dict[tuple[tuple[str, Scalar], ...], list[Cell]] = {}
    for cell in results.cells:
        others = tuple((axis, level) for axis, level in cell.axes.items() if axis not in axes)
        groups.setdefault(others, []).append(cell)
    names = _names(list(groups))
    curves = tuple(
        _curve(results, names[others], cells, variables)
        for others, cells in groups.items()
        # A one-factor study has many cells at one size only; they are no curve.
        if len({_sizes(cell, axes, variables) for cell in cells}) > 1
    )
    return SizeLaws(variables, curves, tuple(_crossings(curves)))


def size_axes(results: StudyResults) -> dict[str, str]:
    """Return the factors that are a size, with the symbol of the variable that they change."""
    found: dict[str, str] = {}
    for axis in results.cells[0].axes if results.cells else ():
        levels = {cell.axes.get(axis) for cell in results.cells} - {None}
        numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in levels)
        symbol = _symbol(axis)
        if symbol is not None and numeric and len(levels) > 1:
            found[axis] = symbol
    return found


def _symbol(axis: str) -> str | None:
    if axis in ("backbone.dim", "backbone.layers"):
        return "N"
    lengths = dict.fromkeys(("task_args.context", "task_args.length"), "context")
    return {"task_args.tokens": "D", **lengths}.get(axis)


def _names(
    groups: list[tuple[tuple[str, Scalar], ...]],
) -> dict[tuple[tuple[str, Scalar], ...], str]:
    first = dict(groups[0])
    names = {}
    for others in groups:
        changed = [f"{axis}={level}" for axis, level in others if level != first.get(axis)]
        names[others] = ", ".join(changed) or "baseline"
    return names


def _sizes(cell: Cell, axes: Mapping[str, str], variables: tuple[str, ...]) -> tuple[float, ...]:
    found = []
    for variable in variables:
        if variable == "N" and cell.parameters is not None:
            found.append(float(cell.parameters))
        else:
            level = next(cell.axes[axis] for axis, symbol in axes.items() if symbol == variable)
            found.append(float(level or 0))
    return tuple(found)


def _curve(
    results: StudyResults, name: str, cells: list[Cell], variables: tuple[str, ...]
) -> SizeCurve:
    axes = size_axes(results)
    points = tuple(
        (_sizes(cell, axes, variables), seed, value)
        for cell in cells
        for seed, value in sorted(results.values[cell.id].items())
    )
    try:
        if results.goal != "min":
            raise UserError("a scaling law describes a loss that falls; this measure is to rise.")
        sizes = {name: [point[0][k] for point in points] for k, name in enumerate(variables)}
        fit = fit_scaling(sizes, [p[2] for p in points], seeds=[p[1] for p in points])
    except UserError as error:
        return SizeCurve(name, points, None, None, str(error))
    return SizeCurve(name, points, fit, leave_largest_out(fit), "")


def _crossings(curves: tuple[SizeCurve, ...]) -> list[tuple[str, str, Crossing]]:
    fitted = [(curve.name, curve.fit) for curve in curves if curve.fit is not None]
    if len(fitted) < 2 or len(fitted[0][1].variables) != 1:
        return []
    (first, reference), *others = fitted
    return [(name, first, crossing(fit, reference)) for name, fit in others]
