"""What a study has produced so far, as one immutable value read from its ledger.

A report is a pure function of `StudyResults`: no clock, no host and no order of arrival enters.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ablate.sweep.ledger import Ledger
    from ablate.sweep.records import MetricRow, TrialRecord

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class Cell:
    """One configuration of the study, as planned: what it changes against which other cell.

    A None in `axes` says that the factor does not apply in this cell.
    """

    id: str
    label: str
    axes: Mapping[str, Scalar] = field(default_factory=dict)
    changed: Mapping[str, tuple[Scalar, Scalar]] = field(default_factory=dict)
    compared_with: str | None = None
    parameters: float | None = None
    state_bytes: float | None = None
    flops_per_token: float | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trial:
    """The latest attempt at one cell with one seed.

    `older_code` says that its code is not that of the plan, and that the user kept it for all that.
    """

    id: str
    cell: str
    seed: int
    state: str
    attempt: int = 0
    error: str | None = None
    traceback: str | None = None
    host: str | None = None
    device: str | None = None
    fingerprint: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, float] = field(default_factory=dict)
    in_plan: bool = True
    older_code: bool = False


@dataclass(frozen=True, eq=False)
class Curve:
    """One metric of one trial: `values` after `tokens` positions, in the order of the tokens."""

    tokens: NDArray[np.float64]
    values: NDArray[np.float64]

    def last_finite(self) -> float | None:
        """Return the last value that is a finite number, or None."""
        kept = self.values[np.isfinite(self.values)]
        return float(kept[-1]) if kept.size else None


@dataclass(frozen=True, eq=False)
class StudyResults:
    """The plan of a study with the trials, states and curves that exist.

    `cells` and `trials` are in the order of the plan; `curves` maps trial id and metric name.
    `tune` names the factors over which cells are tuned, `search` holds the space of a search.
    """

    study: str
    question: str
    baseline: str | None
    task: str
    primary: str
    goal: str
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    trials: tuple[Trial, ...]
    curves: Mapping[str, Mapping[str, Curve]]
    task_args: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    file: str = ""
    design: str = "one_factor"
    claims: tuple[str, ...] = ()
    tune: tuple[str, ...] = ()
    search: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def by_cell(self) -> Mapping[str, tuple[Trial, ...]]:
        """The planned trials of each cell, cells without one included."""
        found: dict[str, list[Trial]] = {cell.id: [] for cell in self.cells}
        for trial in self.trials:
            if trial.in_plan and trial.cell in found:
                found[trial.cell].append(trial)
        return {cell: tuple(trials) for cell, trials in found.items()}

    @cached_property
    def outside_plan(self) -> tuple[Trial, ...]:
        """Trials kept in the ledger although the present plan no longer asks for them."""
        known = {cell.id for cell in self.cells}
        return tuple(t for t in self.trials if not t.in_plan or t.cell not in known)

    @cached_property
    def values(self) -> Mapping[str, Mapping[int, float]]:
        """The primary measure by cell and seed: the last finite value of trials that are done.

        A diverged, failed or missing trial has no value here; it is counted, never averaged.
        """
        return {cell: self.metric(cell, self.primary) for cell in self.by_cell}

    def metric(self, cell: str, name: str) -> dict[int, float]:
        """Return the last finite value of metric `name` of each done trial of `cell`, by seed.

        A metric without a curve is taken from the trial's summary.
        """
        found = {}
        for trial in self.by_cell[cell]:
            curve = self.curves.get(trial.id, {}).get(name)
            value = curve.last_finite() if curve is not None else trial.summary.get(name)
            if trial.state == "done" and value is not None and math.isfinite(value):
                found[trial.seed] = value
        return found

    @cached_property
    def curve_metric(self) -> str:
        """The metric whose learning curve stands for the primary measure.

        It is the primary measure, or where that was taken once at the end only, the metric of the
        same name from another split that has a curve, such as ``train/loss`` for ``final/loss``.
        """
        longest: dict[str, int] = {}
        for curves in self.curves.values():
            for name, curve in curves.items():
                longest[name] = max(longest.get(name, 0), curve.tokens.size)
        if longest.get(self.primary, 0) > 1:
            return self.primary
        leaf = self.primary.rsplit("/", 1)[-1]
        others = sorted(name for name in longest if name.rsplit("/", 1)[-1] == leaf)
        return max(others, key=lambda name: longest[name], default=self.primary)

    def learning_curves(self, cell: str) -> dict[int, Curve]:
        """Return the learning curve of each done trial of `cell`, by seed."""
        done = [trial for trial in self.by_cell[cell] if trial.state == "done"]
        curves = {t.seed: self.curves.get(t.id, {}).get(self.curve_metric) for t in done}
        return {seed: curve for seed, curve in curves.items() if curve is not None}

    def counts(self) -> dict[str, int]:
        """Return the number of planned trials in each state that occurs."""
        trials = (trial for trials in self.by_cell.values() for trial in trials)
        return dict(Counter(trial.state for trial in trials))

    def cell(self, cell_id: str | None) -> Cell | None:
        """Return the cell with that id, or None if the plan has none."""
        return self._cells.get(cell_id) if cell_id is not None else None

    @cached_property
    def _cells(self) -> Mapping[str, Cell]:
        return {cell.id: cell for cell in self.cells}


def load_results(ledger: Ledger) -> StudyResults:
    """Read everything that a report needs from `ledger`.

    Raises:
        ValueError: if no plan was ever saved there.
    """
    plan = ledger.plan()
    if plan is None:
        raise ValueError("the ledger holds no plan: run the study first")
    records = ledger.trials()
    kept = frozenset(ledger.get("kept_stale", []))
    cells = tuple(_cell(entry) for entry in plan["cells"])
    task = cells[0].config.get("task") or {} if cells else {}
    seeds = tuple(int(seed) for seed in plan["seeds"])
    return StudyResults(
        study=str(plan["study"]),
        question=str(plan.get("question") or ""),
        baseline=plan.get("baseline"),
        task=str(plan.get("task") or ""),
        task_args=dict(task.get("args") or {}),
        primary=str(plan["measure"]["primary"]),
        goal=str(plan["measure"]["goal"]),
        seeds=seeds,
        cells=cells,
        trials=_with_missing(tuple(_trial(record, kept) for record in records), cells, seeds),
        curves={
            record.trial_id: curves_of(ledger.rows(record.trial_id))
            for record in records
            if record.state != "missing"
        },
        warnings=tuple(plan.get("warnings") or ()),
        file=str(plan.get("file") or ""),
        design=str(plan.get("design") or "one_factor"),
        claims=tuple(plan.get("claims") or ()),
        tune=tuple(plan.get("tune") or ()),
        search=dict(plan.get("search") or {}),
    )


def curves_of(rows: Sequence[MetricRow]) -> dict[str, Curve]:
    """Group the rows of one trial by metric, each sorted by tokens and then by step."""
    grouped: dict[str, list[tuple[float, int, float]]] = {}
    for row in rows:
        point = (float(row.tokens), row.step, float(row.value))
        grouped.setdefault(row.name, []).append(point)
    curves = {}
    for name, points in sorted(grouped.items()):
        points.sort(key=lambda point: point[:2])
        curves[name] = Curve(
            np.array([point[0] for point in points]), np.array([point[2] for point in points])
        )
    return curves


def _cell(entry: Mapping[str, Any]) -> Cell:
    changed = entry.get("changed") or {}
    return Cell(
        id=entry["id"],
        label=entry["label"],
        axes=dict(entry.get("axes") or {}),
        changed={axis: (change[0], change[1]) for axis, change in changed.items()},
        compared_with=entry.get("compared_with"),
        parameters=entry.get("parameters"),
        state_bytes=entry.get("state_bytes"),
        flops_per_token=entry.get("flops_per_token"),
        config=dict(entry.get("config") or {}),
        warnings=tuple(entry.get("warnings") or ()),
    )


def _trial(record: TrialRecord, kept: Set[str]) -> Trial:
    return Trial(
        id=record.trial_id,
        cell=record.cell_id,
        seed=record.seed,
        state=record.state,
        attempt=record.attempt,
        error=record.error,
        traceback=record.traceback,
        host=record.host,
        device=record.device,
        fingerprint=record.fingerprint,
        info=dict(record.info or {}),
        summary=dict(record.summary or {}),
        in_plan=bool(record.in_plan),
        older_code=record.trial_id in kept,
    )


def _with_missing(
    trials: tuple[Trial, ...], cells: tuple[Cell, ...], seeds: tuple[int, ...]
) -> tuple[Trial, ...]:
    """Add what the plan asks for and the ledger has not heard of; sort by the plan."""
    present = {(trial.cell, trial.seed) for trial in trials}
    absent = tuple(
        Trial(f"{cell.id}-s{seed}", cell.id, seed, "missing")
        for cell in cells
        for seed in seeds
        if (cell.id, seed) not in present
    )
    order = {cell.id: index for index, cell in enumerate(cells)}
    return tuple(sorted(trials + absent, key=lambda t: (order.get(t.cell, len(order)), t.seed)))
