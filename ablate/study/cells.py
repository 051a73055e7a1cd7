"""Cells: the distinct configurations of a design, each with its costs and warnings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ablate.errors import UserError
from ablate.experiments.task import SequenceTask
from ablate.study.configure import Configured, Workshop
from ablate.study.designs import Point, points
from ablate.study.factors import Factor, Levels, make_factors, same, spell
from ablate.study.schema import Scalar, Study
from ablate.trial.cost import Cost, Probe, measure_cost, probe
from ablate.trial.fingerprint import fingerprint
from ablate.trial.space import ConfigDirs

MISMATCH = 0.05  # a difference in parameters that a table must not hide


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


def make_cells(
    study: Study, file: Path, *, config_dirs: ConfigDirs, allow: tuple[str, ...], probed: bool
) -> tuple[list[Cell], list[str]]:
    """The cells of a study, the baseline first, and the warnings of the whole.

    Raises:
        UserError: anything wrong with the design or with a cell, with file and key.
    """
    factors = make_factors(study.design, file.name)
    workshop = Workshop(study, file.name, config_dirs, allow)
    workshop.check_keys(factors)
    chosen = points(study.design, factors, file.name)
    configured = [workshop.configure(point.levels) for point in chosen]
    _refuse_idle(configured, factors)
    unique, notes = _merge(chosen, configured, factors)
    ids = {_key(point.levels): one.id for point, one in zip(chosen, configured, strict=True)}
    cells: dict[str, Cell] = {}
    probes: dict[str, Probe] = {}
    for point, one in unique:
        label = _label(point.levels, one, factors)
        cost = _cost(one, allow, f"{file.name}: cell {label}")
        if probed and one.config["model"]:
            probes[one.id] = probe(one.config, cpus=int(study.resources.cpus), allow=allow)
            cost = dataclasses.replace(cost, seconds_per_trial=probes[one.id].seconds)
        other = None
        if point.compared_with is not None:
            other = ids.get(_key(point.compared_with), next(iter(cells)))
        cell = _cell(one, label, factors, cost, cells.get(other or ""), allow)
        cells[one.id] = _warned(cell, cells.get(other or ""), probes)
    return list(cells.values()), notes


def _refuse_idle(configured: list[Configured], factors: tuple[Factor, ...]) -> None:
    """Refuse a setting that has no effect in any cell: most likely it is misspelt."""
    for setting in ({factor.key for factor in factors}, set(configured[0].unused)):
        for key in sorted(setting):
            reasons = [{**one.inactive, **one.unused}.get(key) for one in configured]
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
        kept = _label(*_levels_of(unique[one.id]), factors)
        wanted = ", ".join(
            f"{f.key}={spell(point.levels[f.key])}"
            for f in factors
            if f.key in point.levels and not same(point.levels[f.key], f.levels[0])
        )
        idle = [key for key in one.inactive if key in point.levels]
        if idle:
            notes.append(f"n/a: {', '.join(sorted(idle))} does not apply with {wanted}: not a cell")
        else:
            notes.append(f"NO-OP: {wanted} changes nothing: the same cell as {kept}, run once")
    return list(unique.values()), notes


def _levels_of(pair: tuple[Point, Configured]) -> tuple[Levels, Configured]:
    return pair[0].levels, pair[1]


def _key(levels: Levels) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, spell(level)) for key, level in levels.items()))


def _label(levels: Levels, one: Configured, factors: tuple[Factor, ...]) -> str:
    parts = [
        f"{factor.key}={spell(one.levels[factor.key])}"
        for factor in factors
        if factor.key in one.levels and not same(one.levels[factor.key], factor.levels[0])
    ]
    return ", ".join(parts) or "baseline"


def _cost(one: Configured, allow: tuple[str, ...], where: str) -> Cost:
    """Build the model, which finds bad values, and count."""
    model = one.config["model"]
    if model is None:
        return Cost()
    task = cast(SequenceTask, one.task)
    return measure_cost(model, task.vocab, task.context, allow=allow, where=where)


def _cell(
    one: Configured,
    label: str,
    factors: tuple[Factor, ...],
    cost: Cost,
    other: Cell | None,
    allow: tuple[str, ...],
) -> Cell:
    axes = {factor.key: one.levels.get(factor.key) for factor in factors}
    changed = {
        key: [other.axes[key], level]
        for key, level in axes.items()
        if other is not None and not same(other.axes[key], level) and key in one.levels
    }
    return Cell(
        id=one.id,
        label=label,
        axes=axes,
        changed=changed,
        compared_with=other.id if other else None,
        config=one.config,
        cost=cost,
        fingerprint=fingerprint(one.config, allow=allow),
        warnings=tuple(f"n/a: {key} does not apply here" for key in axes if key not in one.levels),
    )


def _warned(cell: Cell, other: Cell | None, probes: Mapping[str, Probe]) -> Cell:
    """`cell` with what its comparison does not hold equal."""
    found = list(cell.warnings)
    if other is not None:
        mine, theirs = cell.cost.parameters, other.cost.parameters
        if mine and theirs and abs(mine / theirs - 1) > MISMATCH:
            found.append(
                f"{mine:,} parameters against {theirs:,} of {other.label} "
                f"({mine / theirs - 1:+.1%}): the effect is not of {', '.join(cell.changed)} alone"
            )
        if cell.id in probes and probes[cell.id].losses == probes[other.id].losses:
            found.append(
                f"NO-OP on a probe: its first losses equal those of {other.label} bit for bit"
            )
    return dataclasses.replace(cell, warnings=tuple(found))
