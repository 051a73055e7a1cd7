"""Cells of two studies that have the same label, side by side; neither baseline takes part."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from ablate.analysis.comparisons import Row, compare
from ablate.analysis.effects import finite
from ablate.analysis.frame import Cell, StudyResults
from ablate.analysis.interval import Interval, t_interval
from ablate.errors import UserError


@dataclass(frozen=True)
class SidePair:
    """A cell of either study, or of one: `difference` is the second's mean minus the first's.

    `same` says that both cells have the same configuration and data, so that they ought to agree.
    """

    label: str
    first: Row | None
    second: Row | None
    difference: Interval | None
    p: float | None
    same: bool


@dataclass(frozen=True)
class TwoStudies:
    """All cells of both studies: the first's in its order, then those that only the second has."""

    first: StudyResults
    second: StudyResults
    pairs: tuple[SidePair, ...]
    notes: tuple[str, ...]


def side_by_side(first: StudyResults, second: StudyResults) -> TwoStudies:
    """Put the cells of two studies beside each other by their labels.

    Raises:
        UserError: if the studies measure different things.
    """
    if (first.primary, first.goal) != (second.primary, second.goal):
        raise UserError(
            f"{first.study} measures {first.primary} ({first.goal}), {second.study} "
            f"{second.primary} ({second.goal}): their cells cannot be compared."
        )
    mine = {row.cell.label: row for row in compare(first).rows}
    theirs = {row.cell.label: row for row in compare(second).rows}
    labels = dict.fromkeys([*mine, *theirs])
    pairs = tuple(
        _pair(label, mine.get(label), theirs.get(label), first, second) for label in labels
    )
    return TwoStudies(first, second, pairs, tuple(_notes(first, second)))


def welch(values: ArrayLike, reference: ArrayLike) -> tuple[Interval, float | None]:
    """Return the difference of two means of independent seeds with Welch's interval and p-value.

    There is neither with fewer than two values on a side, or without any scatter.
    """
    left, right = finite(values), finite(reference)
    difference = float(left.mean() - right.mean())
    if min(left.size, right.size) < 2:
        return Interval(difference, None, None), None
    parts = np.array([left.var(ddof=1) / left.size, right.var(ddof=1) / right.size])
    total = float(parts.sum())
    if total == 0:
        return Interval(difference, None, None), None
    degrees = total**2 / float((parts**2 / np.array([left.size - 1, right.size - 1])).sum())
    error = math.sqrt(total)
    p = 2 * float(stats.t.sf(abs(difference) / error, degrees))
    return t_interval(difference, error, degrees), p


def _pair(
    label: str,
    mine: Row | None,
    theirs: Row | None,
    first: StudyResults,
    second: StudyResults,
) -> SidePair:
    if mine is None or theirs is None:
        return SidePair(label, mine, theirs, None, None, same=False)
    left, right = first.values[mine.cell.id], second.values[theirs.cell.id]
    same = mine.cell.id == theirs.cell.id
    if not left or not right:
        return SidePair(label, mine, theirs, None, None, same)
    difference, p = welch(list(right.values()), list(left.values()))
    return SidePair(label, mine, theirs, difference, p, same)


def _notes(first: StudyResults, second: StudyResults) -> list[str]:
    notes = []
    if first.task != second.task:
        notes.append(f"The tasks differ: {first.task} and {second.task}.")
    for section in ("task arguments", "training"):
        one, other = _settings(first, section), _settings(second, section)
        changed = [
            f"{name} ({one.get(name, 'unset')} and {other.get(name, 'unset')})"
            for name in sorted({*one, *other})
            if one.get(name) != other.get(name)
        ]
        if changed:
            notes.append(f"The {section} differ: {', '.join(changed)}.")
    return notes


def _settings(results: StudyResults, section: str) -> dict[str, object]:
    if section == "task arguments":
        return dict(results.task_args)
    cell: Cell | None = results.cell(results.baseline) or next(iter(results.cells), None)
    return dict((cell.config.get("train") if cell else None) or {})
