"""Cells that were tuned: the best of m settings of each, judged by seeds that did not choose it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np

from ablate.analysis.effects import PairedEffect, holm, paired_effect
from ablate.analysis.formatting import level
from ablate.analysis.frame import Cell, Scalar, StudyResults
from ablate.analysis.power_law import Floats
from ablate.analysis.tuned import TunedBest, expected_best, tuned_best
from ablate.errors import UserError

ENDED = ("done", "diverged", "pruned")
"""States with a result that stands; a setting counts once all its seeds are in one of them."""

Key = tuple[tuple[str, Scalar], ...]


@dataclass(frozen=True)
class TunedCell:
    """One cell over all settings that it was tried in.

    Args:
        name: what differs from the baseline, the tuned factors left out.
        settings: those whose seeds have all ended, spelled; the others do not count yet.
        planned: how many settings the plan has.
        best: what the best of them is worth; None where `refusal` says why there is none.
        expected: the expected best mean of m = 1 .. all settings, drawn at random.
        reference: the name of the cell that it is compared with.
        effect: held-out value minus that of the reference, paired by seed.
        p_holm: its p-value, corrected over all tuned cells.
    """

    name: str
    settings: tuple[str, ...]
    planned: int
    best: TunedBest | None
    expected: Floats
    reference: str | None
    effect: PairedEffect | None
    p_holm: float | None
    refusal: str


@dataclass(frozen=True)
class _Group:
    key: Key
    name: str
    cells: tuple[Cell, ...]


def tuned_cells(results: StudyResults) -> tuple[TunedCell, ...]:
    """Return every cell of a tuned study with its best setting; empty if nothing is tuned."""
    if not results.tune:
        return ()
    groups = _groups(results)
    made = {group.key: _tuned(results, group) for group in groups}
    found = [_compared(results, group, made) for group in groups]
    tested = [i for i, one in enumerate(found) if one.effect and one.effect.p is not None]
    adjusted = holm([p for i in tested if (e := found[i].effect) and (p := e.p) is not None])
    for index, p_holm in zip(tested, adjusted, strict=True):
        found[index] = replace(found[index], p_holm=p_holm)
    return tuple(found)


def _groups(results: StudyResults) -> list[_Group]:
    cells: dict[Key, list[Cell]] = {}
    for cell in results.cells:
        cells.setdefault(_key(results, cell), []).append(cell)
    start = dict(next(iter(cells), ()))
    groups = []
    for key, own in cells.items():
        changed = [f"{axis}={level(value)}" for axis, value in key if value != start.get(axis)]
        groups.append(_Group(key, ", ".join(changed) or "baseline", tuple(own)))
    return groups


def _key(results: StudyResults, cell: Cell) -> Key:
    return tuple((axis, value) for axis, value in cell.axes.items() if axis not in results.tune)


def _setting(results: StudyResults, cell: Cell) -> str:
    return ", ".join(f"{axis}={level(cell.axes.get(axis))}" for axis in results.tune)


def _tuned(results: StudyResults, group: _Group) -> TunedCell:
    scores, settings = [], []
    for cell in group.cells:
        trials = results.by_cell[cell.id]
        if trials and all(trial.state in ENDED for trial in trials):
            values = results.values[cell.id]
            scores.append([values.get(seed, math.nan) for seed in results.seeds])
            settings.append(_setting(results, cell))
    best, refusal = None, ""
    expected = np.empty(0)
    if not scores:
        refusal = "no setting has ended with all its seeds"
    else:
        goal = _goal(results)
        expected = expected_best(_means(scores), goal=goal)
        try:
            best = tuned_best(scores, settings, goal=goal)
        except UserError as error:
            refusal = str(error)
    return TunedCell(
        group.name, tuple(settings), len(group.cells), best, expected, None, None, None, refusal
    )


def _means(scores: Sequence[Sequence[float]]) -> Floats:
    """The mean of each setting; not finite if one of its seeds is not."""
    means: Floats = np.asarray(scores, dtype=float).mean(axis=1)
    return means


def _compared(results: StudyResults, group: _Group, made: dict[Key, TunedCell]) -> TunedCell:
    own = made[group.key]
    others = [results.cell(cell.compared_with) for cell in group.cells]
    keys = [_key(results, other) for other in others if other is not None]
    other = next((made[key] for key in keys if key != group.key), None)
    if other is None or own.best is None or other.best is None:
        return replace(own, reference=other.name if other else None)
    pairs = [
        (a, b)
        for a, b in zip(own.best.held_out, other.best.held_out, strict=True)
        if math.isfinite(a) and math.isfinite(b)
    ]
    effect = paired_effect([a for a, _ in pairs], [b for _, b in pairs])
    return replace(own, reference=other.name, effect=effect)


def _goal(results: StudyResults) -> Literal["min", "max"]:
    return cast(Literal["min", "max"], results.goal)
