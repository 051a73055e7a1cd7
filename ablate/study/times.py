"""How long each cell's trial takes: from earlier runs, from a probe, or estimated."""

from __future__ import annotations

import dataclasses
import json
import platform
import statistics
from typing import cast

import torch

from ablate.errors import UserError
from ablate.experiments.task import SequenceTask
from ablate.study.cells import Cell, Laid
from ablate.study.pilot import Pilot, keep_probes
from ablate.study.rates import GPU_FLOPS
from ablate.trial.cost import count_work
from ablate.trial.speed import Probe, estimate_seconds, gpu_seconds, probe, score_tokens
from ablate.trial.train import TrainConfig


def with_times(
    laid: Laid,
    pilot: Pilot,
    *,
    study: str,
    cpus: int,
    gpus: float,
    allow: tuple[str, ...],
    probed: bool,
) -> list[Cell]:
    """The cells with the best time that there is, and with what probes say against them."""
    clock = _Clock(laid, cpus, gpus, allow)
    found = {cell.id: pilot.seconds.get(cell.id) for cell in laid.cells}
    source = {key: "runs" for key, value in found.items() if value is not None}
    probes = _probes(laid, pilot, study, clock) if probed else {}
    for cell in laid.cells:
        if cell.id in probes and found[cell.id] is None:
            found[cell.id] = probes[cell.id].seconds
            source[cell.id] = "probe"
    scale = _scale(laid.cells, found, clock)
    cells = []
    for cell in laid.cells:
        seconds = found[cell.id]
        if seconds is None:
            guess = clock.estimate(cell)
            seconds = None if guess is None else guess * scale
            if seconds is not None:
                source[cell.id] = "gpu_rate" if clock.elsewhere else "estimate"
        cost = dataclasses.replace(
            cell.cost, seconds_per_trial=seconds, time_from=source.get(cell.id)
        )
        warnings = (*cell.warnings, *_probe_warnings(cell, laid.cells, probes))
        cells.append(dataclasses.replace(cell, cost=cost, warnings=warnings))
    return cells


def _scale(cells: list[Cell], found: dict[str, float | None], clock: _Clock) -> float:
    """How far off estimates are where there is something better: the median."""
    ratios = []
    for cell in cells:
        seconds = found[cell.id]
        if seconds is not None and (guess := clock.estimate(cell)):
            ratios.append(seconds / guess)
    return statistics.median(ratios) if ratios else 1.0


class _Clock:
    """Estimates; scores each task and counts each model once."""

    def __init__(self, laid: Laid, cpus: int, gpus: float, allow: tuple[str, ...]) -> None:
        self.laid, self.cpus, self.gpus, self.allow = laid, max(1, cpus), gpus, allow
        self.elsewhere = gpus > 0 and not torch.cuda.is_available()
        self._scored: dict[str, int] = {}
        self._estimates: dict[str, float | None] = {}

    def scored(self, cell: Cell) -> int:
        """Tokens that the cell's model reads for one scoring."""
        key = json.dumps(cell.config["task"], sort_keys=True)
        if key not in self._scored:
            try:
                self._scored[key] = score_tokens(cast(SequenceTask, self.laid.tasks[cell.id]))
            except UserError:  # the task refuses the stand-in, so its scoring cannot be counted
                self._scored[key] = 0
        return self._scored[key]

    def estimate(self, cell: Cell) -> float | None:
        """Seconds of one trial from counts; None where nothing is trained."""
        if cell.id not in self._estimates:
            self._estimates[cell.id] = self._estimate(cell)
        return self._estimates[cell.id]

    def _estimate(self, cell: Cell) -> float | None:
        model = cell.config["model"]
        if cell.config["train"] is None:
            return None
        if not cell.counted:
            first = self.laid.cells[0]
            start, flops = first.cost.flops_per_token, cell.cost.flops_per_token
            base = self.estimate(first)
            return base * flops / start if base and flops and start else base
        task = cast(SequenceTask, self.laid.tasks[cell.id])
        work = count_work(model, task.vocab, task.context, allow=self.allow)
        train = TrainConfig(**cell.config["train"])
        if self.elsewhere:
            return gpu_seconds(
                work, task, train, scored=self.scored(cell), rate=GPU_FLOPS * self.gpus
            )
        return estimate_seconds(work, task, train, scored=self.scored(cell), cpus=self.cpus)


def _probes(laid: Laid, pilot: Pilot, study: str, clock: _Clock) -> dict[str, Probe]:
    """A probe of every cell that is trained; those of this machine and code are kept."""
    found, new = {}, {}
    for cell in laid.cells:
        if cell.config["train"] is None:
            continue
        key = f"{platform.node()} {clock.cpus} {cell.id} {cell.fingerprint}"
        kept = pilot.probes.get(key)
        if kept:
            found[cell.id] = Probe(kept["seconds"], tuple(kept["losses"]), tuple(kept["unreached"]))
            continue
        found[cell.id] = probe(
            cell.config, scored=clock.scored(cell), cpus=clock.cpus, allow=clock.allow
        )
        new[key] = dataclasses.asdict(found[cell.id])
    if new:
        keep_probes(study, new)
    return found


def _probe_warnings(cell: Cell, cells: list[Cell], probes: dict[str, Probe]) -> list[str]:
    mine, theirs = probes.get(cell.id), probes.get(cell.compared_with or "")
    if mine is None or theirs is None:
        return []
    found = []
    if lost := sorted(set(mine.unreached) - set(theirs.unreached)):
        found.append(f"no gradient reaches {', '.join(lost)} in the first steps")
    other = next(one for one in cells if one.id == cell.compared_with)
    if mine.losses == theirs.losses:
        found.append(f"NO-OP on a probe: its first losses equal those of {other.label} bit for bit")
    return found
