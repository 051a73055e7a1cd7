"""Cells: the distinct configurations of a study, each with its costs and warnings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ablate.errors import UserError
from ablate.experiments.task import MemoryTask, SequenceTask, Task
from ablate.study.configure import Configured, Workshop
from ablate.study.designs import ends, points
from ablate.study.expand import Expanded, all_factors, expand
from ablate.study.factors import Factor, Levels, same, spell
from ablate.study.match import Matched, quantity, solve
from ablate.study.schema import Scalar
from ablate.study.space import Point, complete, key_of
from ablate.trial.bench import ShapeBench
from ablate.trial.cost import Cost, Work, count_work
from ablate.trial.fingerprint import fingerprint
from ablate.trial.online import cost_of

MISMATCH = 0.05  # a difference in parameters that a table must not hide
COUNTED = 200  # cells of which each is counted; of more, those that change one factor
BUILT = 5_000  # cells of which each is built from shapes alone; of more, those that are counted
NOTES = 6


@dataclass(frozen=True)
class Cell:
    """One configuration that is run once for each seed.

    Args:
        id: hash of the resolved configuration and the data.
        label: ``baseline``, or what differs from the baseline.
        axes: the level of every factor; None where the factor does not apply.
        changed: what differs from the cell that it is compared with, as ``[from, to]``.
        compared_with: id of that cell; None for the baseline.
        config: ``model``, ``task`` and ``train``, every default spelt out.
        cost: what one trial of it costs.
        fingerprint: hash of the code that it runs, now.
        warnings: what to know about this cell.
        matched: how it was made as large as the cell that it is compared with.
        counted: whether its costs were counted; else they follow from cells that change one factor.
        built: whether its model was built, so that its values are valid and its parameters exact.
    """

    id: str
    label: str
    axes: dict[str, Scalar]
    changed: dict[str, list[Scalar]]
    compared_with: str | None
    config: dict[str, Any]
    cost: Cost
    fingerprint: str
    warnings: tuple[str, ...] = ()
    matched: Matched | None = None
    counted: bool = True
    built: bool = True


@dataclass(frozen=True)
class Laid:
    """The cells of a study, the baseline first.

    Args:
        designs: what they were made from.
        factors: of all designs.
        tasks: each cell's task, by the cell's id.
        notes: points that are no cells of their own, and why.
    """

    designs: list[Expanded]
    factors: tuple[Factor, ...]
    cells: list[Cell]
    tasks: dict[str, Task]
    notes: list[str]


def make_cells(workshop: Workshop) -> Laid:
    """Lay out, configure, match, count and compare the cells of a study.

    Raises:
        UserError: anything wrong with the design or with a cell, with file and key.
    """
    designs = expand(workshop)
    factors = all_factors(designs)
    chosen = _points(designs, factors)
    configured = [workshop.configure(point.levels) for point in chosen]
    tried = [
        workshop.configure(levels)
        for one in designs
        for levels in ends(one.design, one.factors, one.where)
    ]
    if not (tried and any(one.design.constraints or one.design.exclude for one in designs)):
        _refuse_idle([*configured, *tried], factors)  # a search's rules may hide where it counts
    bench = Bench(workshop, factors, len(chosen))
    bench.try_out(tried)
    unique, notes = _merge(chosen, configured, factors)
    ids = {key_of(p.levels): one.id for p, one in zip(chosen, configured, strict=True)}
    for point, one in unique:
        other = None
        if point.compared_with is not None:
            other = ids.get(key_of(point.compared_with), unique[0][1].id)
        bench.add(one, other)
    return Laid(designs, factors, list(bench.cells.values()), bench.tasks, _shorten(notes))


def _points(designs: list[Expanded], factors: tuple[Factor, ...]) -> list[Point]:
    """The points of all designs, each with the baseline's level of the others' factors."""
    found: dict[object, Point] = {}
    for one in designs:
        for point in points(one.design, one.factors, one.where):
            levels = point.levels if len(designs) == 1 else complete(factors, point.levels)
            other = point.compared_with
            if other is not None and len(designs) > 1:
                other = complete(factors, other)
            found.setdefault(key_of(levels), Point(levels, other))
    return list(found.values())


def _refuse_idle(configured: list[Configured], factors: tuple[Factor, ...]) -> None:
    """Refuse a setting that has no effect in any cell: most likely it is misspelt."""
    for setting in ({factor.key for factor in factors}, set(configured[0].unused)):
        for key in sorted(setting):
            reasons = [one.inactive.get(key) or one.unused.get(key) for one in configured]
            if all(reasons):
                raise UserError(str(reasons[0]))


def _merge(
    chosen: list[Point], configured: list[Configured], factors: tuple[Factor, ...]
) -> tuple[list[tuple[Point, Configured]], list[str]]:
    """One point for each identity, and a note on each point that is dropped."""
    unique: dict[str, tuple[Point, Configured]] = {}
    notes = []
    for point, one in zip(chosen, configured, strict=True):
        if one.id not in unique:
            unique[one.id] = (point, one)
            continue
        wanted = label_of(point.levels, factors)
        idle = [key for key in one.inactive if key in point.levels]
        if idle:
            notes.append(f"n/a: {', '.join(sorted(idle))} does not apply with {wanted}: not a cell")
        else:
            kept = label_of(unique[one.id][1].levels, factors)
            notes.append(f"NO-OP: {wanted} changes nothing: the same cell as {kept}, run once")
    return list(unique.values()), notes


def _shorten(notes: list[str]) -> list[str]:
    """All no-ops, and the first few of the combinations that are no cells."""
    kept = [note for note in notes if not note.startswith("n/a")]
    idle = [note for note in notes if note.startswith("n/a")]
    more = len(idle) - NOTES
    return [*kept, *idle[:NOTES], *([f"n/a: {more:,} more combinations like these"] * (more > 0))]


def label_of(levels: Levels, factors: tuple[Factor, ...]) -> str:
    """What differs from the baseline, or ``baseline``."""
    parts = [
        f"{factor.key}={spell(levels[factor.key])}"
        for factor in factors
        if factor.key in levels and not same(levels[factor.key], factor.levels[0])
    ]
    return ", ".join(parts) or "baseline"


@dataclass
class Bench:
    """Makes cells one after another; the ones that others are compared with come first."""

    workshop: Workshop
    factors: tuple[Factor, ...]
    expected: int
    cells: dict[str, Cell] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    _now: dict[str, str] = field(default_factory=dict)  # identity before matching -> cell
    _made: dict[str, Configured] = field(default_factory=dict)
    _prints: dict[str, str] = field(default_factory=dict)
    _ratios: dict[tuple[str, str], Cost] = field(default_factory=dict)
    _shapes: ShapeBench = field(init=False)

    def __post_init__(self) -> None:
        self._shapes = ShapeBench(self.workshop.allow)

    def add(self, one: Configured, compared_with: str | None) -> None:
        """Make the cell of `one`, compared with the configuration of that identity."""
        label = label_of(one.levels, self.factors)
        where = f"{self.workshop.file}: cell {label}"
        other = self.cells.get(self._now.get(compared_with or "", ""))
        before, matched = one.id, None
        if other is not None and self._is_matched(one, other):
            one, matched = self._match(one, other, where)
        self._now[before] = one.id
        self._made[one.id] = one
        axes = {factor.key: one.levels.get(factor.key) for factor in self.factors}
        changed = {
            key: [other.axes[key], level]
            for key, level in axes.items()
            if other is not None and not same(other.axes[key], level) and key in one.levels
        }
        moved = [key for key, level in axes.items() if self.cells and self._differs(key, level)]
        exact = self.expected <= COUNTED or len(moved) <= 1 or isinstance(one.task, MemoryTask)
        cell = Cell(
            id=one.id,
            label=label,
            axes=axes,
            changed=changed,
            compared_with=other.id if other else None,
            config=one.config,
            cost=self._count(one, where) if exact else self._guess(one, axes, moved, where),
            fingerprint=self._print(one.config),
            warnings=tuple(
                f"n/a: {key} does not apply here" for key in axes if key not in one.levels
            ),
            matched=matched,
            counted=exact,
            built=exact or self.expected <= BUILT,
        )
        if exact and len(moved) == 1:
            self._ratios[moved[0], spell(axes[moved[0]])] = cell.cost
        self.tasks[one.id] = one.task
        self.cells[one.id] = self._warned(cell, other)

    def try_out(self, tried: list[Configured]) -> None:
        """Build what a search may choose.

        Raises:
            UserError: a value that a constructor refuses.
        """
        for one in tried:
            if one.config["model"] is not None:
                where = f"{self.workshop.file}: {label_of(one.levels, self.factors)}"
                if isinstance(one.task, MemoryTask):
                    self._count(one, where)
                    continue
                vocab = cast(SequenceTask, one.task).vocab
                self._shapes.parameters(one.config["model"], vocab, where=where)

    def _differs(self, key: str, level: Scalar) -> bool:
        return not same(next(iter(self.cells.values())).axes[key], level)

    def _is_matched(self, one: Configured, other: Cell) -> bool:
        blocks = {key for d in self.workshop.study.all_designs.values() for key in d.blocks}
        crossing = any(
            not same(one.levels.get(key), other.axes.get(key)) for key in {"task", *blocks}
        )
        return self.workshop.study.match.on != "none" and not crossing

    def _match(self, one: Configured, other: Cell, where: str) -> tuple[Configured, Matched]:
        match, allow = self.workshop.study.match, self.workshop.allow
        target = quantity(self._made[other.id], match.on, allow, where)
        return solve(one, target, match, self.workshop, where)

    def _count(self, one: Configured, where: str) -> Cost:
        """Build the model, which finds bad values, and count."""
        return cost_of(one.config["model"], one.task, allow=self.workshop.allow, where=where)

    def _guess(
        self, one: Configured, axes: Mapping[str, Scalar], moved: list[str], where: str
    ) -> Cost:
        """The baseline's costs times what each change alone does to them; parameters if built."""
        base = next(iter(self.cells.values())).cost
        values: dict[str, Any] = {}
        for name in ("parameters", "state_bytes", "flops_per_token", "memory_bytes"):
            start = getattr(base, name)
            if start is None:
                continue
            value = float(start)
            for key in moved:
                alone = self._ratios.get((key, spell(axes[key])))
                value *= getattr(alone, name) / start if alone and start else 1.0
            values[name] = value if name == "flops_per_token" else round(value)
        model = one.config["model"]
        if model is not None and self.expected <= BUILT:
            task = cast(SequenceTask, one.task)
            values["parameters"] = self._shapes.parameters(model, task.vocab, where=where)
        return Cost(**values)

    def _print(self, config: dict[str, Any]) -> str:
        """The fingerprint; cells of the same classes have the same."""
        parts = (config["model"] or {}).values()
        targets = [part["_target_"] for part in parts if isinstance(part, dict)]
        key = json.dumps([config["task"]["name"], targets])
        if key not in self._prints:
            self._prints[key] = fingerprint(config, allow=self.workshop.allow)
        return self._prints[key]

    def _work(self, cell: Cell) -> Work | None:
        """What was counted for a cell; None where nothing was."""
        if cell.config["train"] is None or not cell.counted:
            return None
        task = cast(SequenceTask, self.tasks[cell.id])
        return count_work(cell.config["model"], task.vocab, task.context, allow=self.workshop.allow)

    def _warned(self, cell: Cell, other: Cell | None) -> Cell:
        """`cell` with what its comparison does not hold equal, and what has no effect."""
        found = list(cell.warnings)
        work = self._work(cell)
        if other is None:
            return cell
        mine, theirs = cell.cost.parameters, other.cost.parameters
        if cell.counted and mine and theirs and abs(mine / theirs - 1) > MISMATCH:
            found.append(
                f"{mine:,} parameters against {theirs:,} of {other.label} "
                f"({mine / theirs - 1:+.1%}): the effect is not of {', '.join(cell.changed)} alone"
            )
        before = self._work(other) if work else None
        if work and before:
            lost = sorted(set(work.unreached) - set(before.unreached))
            if lost:
                found.append(f"no gradient reaches {', '.join(lost)}")
            same_task = cell.config["task"] == other.config["task"]
            if (
                work.trace
                and work.trace == before.trace
                and same_task
                and self._same_train(cell, other)
            ):
                found.append(
                    f"NO-OP: on sample tokens its loss and gradient equal those of {other.label} "
                    "bit for bit"
                )
        return dataclasses.replace(cell, warnings=tuple(found))

    def _same_train(self, cell: Cell, other: Cell) -> bool:
        return bool(cell.config["train"] == other.config["train"])
