"""What earlier runs of a study tell the next plan: times, and how much seeds differ."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from ablate.home import ledger_path
from ablate.sweep.ledger import Ledger

PROBES = "probes"


@dataclass(frozen=True)
class Pilot:
    """Finished trials of a study.

    Args:
        seconds: mean time of a trial, by cell.
        values: the primary metric, by cell and seed.
        probes: kept probes, by machine and cell.
        bytes_per_trial: disk that the ledger takes for one.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    values: dict[str, dict[int, float]] = field(default_factory=dict)
    probes: dict[str, dict[str, Any]] = field(default_factory=dict)
    bytes_per_trial: float | None = None

    def deviation(self, baseline: str) -> tuple[float, int] | None:
        """Standard deviation of paired differences from the baseline, pooled, and its degrees."""
        start = self.values.get(baseline, {})
        squares, degrees = 0.0, 0
        for cell, values in self.values.items():
            pairs = [value - start[seed] for seed, value in values.items() if seed in start]
            if cell != baseline and len(pairs) > 1:
                squares += statistics.variance(pairs) * (len(pairs) - 1)
                degrees += len(pairs) - 1
        return ((squares / degrees) ** 0.5, degrees) if degrees else None


def read_pilot(study: str, metric: str) -> Pilot:
    """Read a study's ledger, if there is one."""
    path = ledger_path(study)
    if not Ledger.begun(path):
        return Pilot()
    with Ledger.open(path, read_only=True) as ledger:
        probes = ledger.get(PROBES, {})
        done = [record for record in ledger.trials() if record.state == "done"]
    times: dict[str, list[float]] = {}
    values: dict[str, dict[int, float]] = {}
    for record in done:
        if "seconds" in record.summary:
            times.setdefault(record.cell_id, []).append(record.summary["seconds"])
        if metric in record.summary:
            values.setdefault(record.cell_id, {})[record.seed] = record.summary[metric]
    seconds = {cell: statistics.mean(found) for cell, found in times.items()}
    size = path.stat().st_size / len(done) if done else None
    return Pilot(seconds, values, probes, size)


def keep_probes(study: str, probes: dict[str, dict[str, Any]]) -> None:
    """Keep probes in the ledger, if the study has one: a plan alone makes no files."""
    path = ledger_path(study)
    if Ledger.begun(path):
        with Ledger.open(path) as ledger:
            ledger.set(PROBES, {**ledger.get(PROBES, {}), **probes})
