"""How long a run will still take, by what its trials took, and which cell is best so far."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

OVERDUE = 0.2
"""Of what it has taken so far: the least that a running trial is thought to take yet."""


def cell_of(trial_id: str) -> str:
    """Return the cell of a trial: its id without the seed."""
    return trial_id.rpartition("-s")[0]


class Pace:
    """Learns how long trials of each cell take, side by side with how many others."""

    def __init__(
        self,
        plan: Mapping[str, Any],
        todo: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Keep what the plan expects.

        Args:
            plan: `Plan.to_json`.
            todo: how many trials this run takes.
            clock: seconds.
        """
        self._todo, self._clock = todo, clock
        self._planned = {
            cell["id"]: float(cell["seconds_per_trial"])
            for cell in plan["cells"]
            if cell.get("seconds_per_trial")
        }
        self._took: dict[str, list[float]] = defaultdict(list)
        self._began: dict[str, float] = {}
        self._lanes = 1

    @property
    def running(self) -> int:
        """How many trials run now."""
        return len(self._began)

    def begin(self, trial_id: str) -> None:
        """Note that a trial starts now."""
        self._began[trial_id] = self._clock()
        self._lanes = max(self._lanes, len(self._began))

    def end(self, trial_id: str, *, done: bool) -> None:
        """Note that a trial ends now; only one that is done says how long others take."""
        began = self._began.pop(trial_id, None)
        if done and began is not None:
            self._took[cell_of(trial_id)].append(self._clock() - began)

    def left(self, ended: int) -> float | None:
        """Return the seconds until all are through; None while nothing is known.

        Args:
            ended: trials of this run that have ended.
        """
        now = self._clock()
        open_ = [self._expected(cell_of(trial_id)) for trial_id in self._began]
        mean = self._expected(None)
        if mean is None:
            return None
        spent = [now - began for began in self._began.values()]
        # One that takes longer than expected will take a while yet.
        rest = sum(
            max(OVERDUE * gone, (mean if one is None else one) - gone)
            for one, gone in zip(open_, spent, strict=True)
        )
        waiting = max(0, self._todo - ended - len(self._began))
        return (rest + waiting * mean) / self._lanes

    def _expected(self, cell: str | None) -> float | None:
        """What a trial of `cell` takes, or of any cell: as measured, else as planned."""
        if cell is not None and cell in self._took:
            return fmean(self._took[cell])
        planned = self._planned.get(cell) if cell is not None else None
        if not self._took:
            return planned if planned is not None or cell else _mean(self._planned.values())
        measured = fmean(one for took in self._took.values() for one in took)
        if planned is None:
            return measured
        known = [self._planned[one] for one in self._took if one in self._planned]
        return measured * planned / fmean(known) if known else measured


def _mean(values: Any) -> float | None:
    found = list(values)
    return fmean(found) if found else None


class Best:
    """The cell with the best mean of the primary measure."""

    def __init__(self, primary: str, goal: str) -> None:
        """Keep the measure, and whether less of it is better: ``min`` or ``max``."""
        self._primary, self._sign = primary, -1.0 if goal == "max" else 1.0
        self._values: dict[str, dict[str, float]] = defaultdict(dict)

    def add(self, cell: str, trial_id: str, summary: Mapping[str, float]) -> None:
        """Know how a trial of `cell` ended; one that ran again counts by its last end."""
        value = summary.get(self._primary)
        if value is not None and math.isfinite(value):
            self._values[cell][trial_id] = value

    def cell(self) -> tuple[str, float] | None:
        """Return the best cell and its mean, of those with the most seeds; None without any."""
        most = max(map(len, self._values.values()), default=0)
        means = {
            cell: fmean(values.values())
            for cell, values in self._values.items()
            if len(values) == most
        }
        if not means:
            return None
        best = min(means, key=lambda cell: self._sign * means[cell])
        return best, means[best]
