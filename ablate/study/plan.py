"""The plan of a study: its cells and trials, what they cost, and what to know beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ablate.analysis.claims import check_claim, parse_claim
from ablate.study.cells import Cell, make_cells
from ablate.study.load import load_study
from ablate.trial.cost import Cost
from ablate.trial.space import ConfigDirs

__all__ = ["Cell", "Cost", "Plan", "make_plan"]

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Plan:
    """All that a study will run."""

    study: str
    file: str
    question: str
    baseline: str
    task: str
    measure: dict[str, str]
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    resources: dict[str, float]
    warnings: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    design: str = "one_factor"
    claims: tuple[str, ...] = ()

    def trials(self) -> list[dict[str, Any]]:
        """The spec of every trial, all cells of the first seed first."""
        return [
            {
                "id": f"{cell.id}-s{seed}",
                "cell": cell.id,
                "seed": seed,
                "config": cell.config,
                "cost": asdict(cell.cost),
                "resources": dict(self.resources),
                "allow": list(self.allow),
            }
            for seed in self.seeds
            for cell in self.cells
        ]

    def cost(self) -> dict[str, float | None]:
        """The whole study's training time on one slot of this machine; None where unmeasured."""
        seconds = [cell.cost.seconds_per_trial for cell in self.cells]
        known = [value for value in seconds if value is not None]
        total = sum(known) * len(self.seeds) if len(known) == len(seconds) else None
        return {"trial_seconds": total}

    def to_json(self) -> dict[str, Any]:
        """The plan as plain values, the same for the same study and code."""
        return {
            "schema": 1,
            "study": self.study,
            "file": self.file,
            "question": self.question,
            "baseline": self.baseline,
            "task": self.task,
            "design": self.design,
            "claims": list(self.claims),
            "measure": dict(self.measure),
            "seeds": list(self.seeds),
            "resources": dict(self.resources),
            "cells": [_cell_json(cell) for cell in self.cells],
            "trials": len(self.cells) * len(self.seeds),
            "cost": self.cost(),
            "warnings": list(self.warnings),
        }


def _cell_json(cell: Cell) -> dict[str, Any]:
    plain = asdict(cell)
    return {**plain, **plain.pop("cost"), "warnings": list(cell.warnings)}


def make_plan(
    study: str | Path,
    overrides: Sequence[str] = (),
    *,
    config_dirs: ConfigDirs = (),
    allow: Sequence[str] = (),
    probe: bool = False,
) -> Plan:
    """Plan a study without running it.

    Args:
        study: a name below ``experiments/`` or a path.
        overrides: ``key=value``, laid over the file.
        config_dirs: the user's own search spaces and studies, looked in first.
        allow: packages beside Ablate that may hold components.
        probe: also run two training steps of each cell, to estimate its time and to find cells
            that compute the same as the one they are compared with.

    Raises:
        UserError: anything wrong with the study, with file and key.
    """
    declared, file = load_study(study, overrides, config_dirs=config_dirs)
    cells, notes = make_cells(
        declared, file, config_dirs=config_dirs, allow=tuple(allow), probed=probe
    )
    _check_claims(declared.claims, cells, file.name)
    return Plan(
        study=declared.name,
        file=str(file),
        question=declared.question.strip(),
        baseline=cells[0].id,
        task=declared.task,
        measure={"primary": declared.measure.primary, "goal": declared.measure.goal},
        seeds=tuple(declared.seeds),
        cells=tuple(cells),
        resources={"cpus": declared.resources.cpus, "gpus": declared.resources.gpus},
        warnings=(*notes, *_power(len(declared.seeds), len(cells) - 1)),
        allow=tuple(allow),
        design=declared.design.kind,
        claims=tuple(declared.claims),
    )


def _check_claims(claims: Sequence[str], cells: Sequence[Cell], file: str) -> None:
    """Refuse a claim that is misspelt before any trial runs."""
    levels = {axis: [cell.axes[axis] for cell in cells] for axis in cells[0].axes}
    levels = {axis: list(dict.fromkeys(column)) for axis, column in levels.items()}
    for index, text in enumerate(claims):
        where = f"{file}: claims.{index}"
        check_claim(parse_claim(text, where=where), levels, where=where)


def _power(seeds: int, comparisons: int) -> list[str]:
    """What so few seeds cannot show, by the exact paired sign-flip test: p >= 2 / 2^seeds."""
    if not comparisons:
        return []
    if seeds == 1:
        return ["1 seed: no interval and no test; differences between cells may be chance"]
    least = 2 / 2**seeds
    enough = next(n for n in range(2, 64) if 2 / 2**n <= SIGNIFICANT)
    holm = next(n for n in range(2, 64) if comparisons * 2 / 2**n <= SIGNIFICANT)
    if seeds >= holm:
        return []
    return [
        f"{seeds} seeds: the exact paired test cannot reach p below {least:.4g}. One comparison "
        f"needs {enough} seeds for p <= {SIGNIFICANT}, {comparisons} with Holm's correction {holm}"
    ]
