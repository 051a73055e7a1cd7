"""The plan of a study: its cells and trials, what they cost, and what to know beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ablate.analysis.claims import check_claim, parse_claim
from ablate.analysis.formatting import ROUGH
from ablate.errors import UserError
from ablate.study.backend import check_backend
from ablate.study.cells import Cell, Laid, make_cells
from ablate.study.checks import SAID, alias_sentences, check_memory
from ablate.study.configure import Workshop
from ablate.study.limits import limit_sentences
from ablate.study.load import load_study
from ablate.study.pilot import read_pilot
from ablate.study.power import Power, power_of
from ablate.study.pruning import plan_pruning, pruning_notes
from ablate.study.schema import Design, Study
from ablate.study.times import with_times
from ablate.trial.cost import Cost
from ablate.trial.space import ConfigDirs

__all__ = ["Cell", "Cost", "Plan", "make_plan"]

TRIAL_BYTES = 100_000  # in the ledger and in MLflow, about; earlier runs say better


@dataclass(frozen=True)
class Plan:
    """All that a study will run.

    Args:
        design: the kind of each of its designs.
        power: what so many seeds can show.
        aliases: what a fractional design cannot tell apart, in words.
        search: ranges and levels that an optimiser chooses from, and how many trials it gets.
        tune: the factors over which each cell is tuned.
        pruning: when trials are stopped early; empty if they are not.
        limits: of a run: max_trials, max_hours, max_failures, max_disk, trial_timeout.
        checkpoint: every how many seconds, and how many bytes to keep; None for none.
        bytes_per_trial: disk that one trial takes.
    """

    study: str
    file: str
    question: str
    baseline: str
    task: str
    measure: dict[str, str]
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    resources: dict[str, Any]
    power: Power
    warnings: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    design: str = "one_factor"
    claims: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    search: dict[str, Any] = field(default_factory=dict)
    tune: tuple[str, ...] = ()
    pruning: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    checkpoint: dict[str, float] | None = None
    bytes_per_trial: float = TRIAL_BYTES

    @property
    def size(self) -> int:
        """How many trials there are, those that a search will choose included."""
        return self.rows * len(self.seeds)

    @property
    def rows(self) -> int:
        """How many cells there are: of a search the baseline and all that it will choose."""
        trials = self.search.get("trials")
        return len(self.cells) if trials is None else 1 + int(trials)

    def trials(self) -> list[dict[str, Any]]:
        """The spec of every trial, all cells of the first seed first."""
        return [
            {
                "id": f"{cell.id}-s{seed}",
                "cell": cell.id,
                "seed": seed,
                "config": cell.config,
                "cost": asdict(cell.cost) if cell.counted else {},
                "resources": dict(self.resources),
                "allow": list(self.allow),
            }
            for seed in self.seeds
            for cell in self.cells
        ]

    def cost(self) -> dict[str, Any]:
        """Training time of the whole study, one trial at a time, and its disk."""
        seconds = [cell.cost.seconds_per_trial for cell in self.cells]
        known = [value for value in seconds if value is not None]
        total = None
        if known and (self.search or len(known) == len(seconds)):
            total = sum(known) / len(known) * self.size
        sources = [cell.cost.time_from for cell in self.cells if cell.cost.time_from]
        return {
            "trial_seconds": total,
            "hours": None if total is None else total / 3600,
            "gpu_hours": None if total is None else total / 3600 * self.resources["gpus"],
            "disk_bytes": round(self.bytes_per_trial * self.size),
            "time_from": next((one for one in ROUGH if one in sources), next(iter(sources), None)),
        }

    def to_json(self) -> dict[str, Any]:
        """The plan as plain values (`docs/design_language.md`)."""
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
            "trials": self.size,
            "search": dict(self.search),
            "tune": list(self.tune),
            "pruning": dict(self.pruning),
            "limits": dict(self.limits),
            "checkpoint": self.checkpoint,
            "cost": self.cost(),
            "power": asdict(self.power),
            "aliases": list(self.aliases),
            "warnings": list(self.warnings),
        }


def _cell_json(cell: Cell) -> dict[str, Any]:
    plain = asdict(cell)
    matched = cell.matched and {**plain["matched"], "mismatch": cell.matched.mismatch}
    return {**plain, **plain.pop("cost"), "matched": matched, "warnings": list(cell.warnings)}


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
    loaded = load_study(study, overrides, config_dirs=config_dirs)
    return plan_study(*loaded, config_dirs=config_dirs, allow=allow, probe=probe)


def plan_study(
    declared: Study,
    file: Path,
    *,
    config_dirs: ConfigDirs = (),
    allow: Sequence[str] = (),
    probe: bool = False,
) -> Plan:
    """The plan of a study that is read already; the rest of `make_plan`."""
    workshop = Workshop(declared, file.name, config_dirs, tuple(allow))
    laid = make_cells(workshop)
    _check_claims(declared.claims, laid.cells, file.name)
    pilot = read_pilot(declared.name, declared.measure.primary)
    cells = with_times(
        laid,
        pilot,
        study=declared.name,
        cpus=int(declared.resources.cpus),
        gpus=declared.resources.gpus,
        allow=tuple(allow),
        probed=probe,
    )
    searched = _search(laid.designs[0].design, file.name)
    compared = int(searched["trials"]) if searched else len(cells) - 1
    power = power_of(len(declared.seeds), compared, pilot, cells[0].id)
    aliases = alias_sentences(laid)
    memory = check_memory(cells, declared.resources, file.name)
    memory += check_backend(cells, declared.resources, file.name, allow=allow)
    pruning = plan_pruning(declared, laid, file.name)
    limits = limit_sentences(workshop, cells, own=probe)
    return Plan(
        study=declared.name,
        file=str(file),
        question=declared.question.strip(),
        baseline=cells[0].id,
        task=", ".join(declared.task_names),
        measure={"primary": declared.measure.primary, "goal": declared.measure.goal},
        seeds=tuple(declared.seeds),
        cells=tuple(cells),
        resources=declared.resources.model_dump(),
        power=power,
        warnings=(*laid.notes, *_notes(declared, laid), *pruning_notes(pruning, laid),
                  *aliases[:SAID], *memory, *limits, *power.sentences()),
        allow=tuple(allow),
        design=" + ".join(one.design.kind for one in laid.designs),
        claims=tuple(declared.claims),
        aliases=tuple(aliases),
        search=searched,
        tune=tuple(declared.tune),
        pruning=pruning,
        limits=declared.limits.model_dump(exclude_none=True),
        checkpoint=None if declared.checkpoint.every is None else declared.checkpoint.model_dump(),
        bytes_per_trial=pilot.bytes_per_trial or TRIAL_BYTES,
    )  # fmt: skip


def _notes(study: Study, laid: Laid) -> list[str]:
    """What was drawn, guessed or left open."""
    found = []
    for one in laid.designs:
        cap = one.design.cap
        if cap is not None and len(laid.cells) >= cap:
            found.append(f"cap: {cap:,} cells of a larger full design, drawn at random")
    if guessed := sum(not cell.counted for cell in laid.cells):
        built = sum(cell.built for cell in laid.cells)
        checked = "every model was built" if built == len(laid.cells) else f"{built:,} models"
        if built < len(laid.cells):
            checked += " were built, those that change one factor; the others were not"
        found.append(
            f"{checked}; state, FLOPs, memory and time of {guessed:,} cells are products of what "
            "each change does alone, and every trial counts its own"
        )
    return found


def _search(design: Design, file: str) -> dict[str, Any]:
    """The space of a search.

    Raises:
        UserError: no number of trials.
    """
    if design.kind != "search":
        return {}
    if design.trials is None:
        raise UserError(f"{file}: design.trials is missing; a search needs to know how many.")
    space = {
        key: {"levels": spec.levels}
        if spec.levels
        else {"low": spec.low, "high": spec.high, "log": spec.log}
        for key, spec in design.factors.items()
    }
    return {"trials": design.trials, "space": space}


def _check_claims(claims: Sequence[str], cells: Sequence[Cell], file: str) -> None:
    """Refuse a claim that is misspelt before any trial runs."""
    levels = {axis: [cell.axes[axis] for cell in cells] for axis in cells[0].axes}
    levels = {axis: list(dict.fromkeys(column)) for axis, column in levels.items()}
    for index, text in enumerate(claims):
        where = f"{file}: claims.{index}"
        check_claim(parse_claim(text, where=where), levels, where=where)
