"""What a ledger holds, as plain records, and the states that a trial can be in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

STATES = (
    *("done", "running", "missing", "failed", "diverged", "oom", "timed_out", "lost"),
    *("cancelled", "pruned", "stale"),
)
"""Every state of a trial, in the order in which counts are shown."""

FINISHED = frozenset({"done", "diverged", "pruned"})
"""States with a result that stands: the trial is not run again."""

BROKEN = frozenset({"failed", "oom", "timed_out", "lost"})
"""States without a result, by some fault: the next run takes the trial again."""

CUT = frozenset({"lost", "cancelled"})
"""States that a trial is put into from outside, which never replace an end of its own."""

ENDS = frozenset({"done", "diverged", "failed", "oom", "pruned", "timed_out", "cancelled"})
"""States that the trial itself may report in its end message."""


@dataclass(frozen=True)
class TrialRecord:
    """The latest attempt of one trial; a trial that was never begun is ``missing``, attempt 0.

    Times are seconds since 1970, UTC.
    """

    trial_id: str
    cell_id: str
    seed: int
    state: str
    attempt: int = 0
    started: float | None = None
    ended: float | None = None
    host: str | None = None
    device: str | None = None
    error: str | None = None
    traceback: str | None = None
    fingerprint: str | None = None
    info: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, float] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    in_plan: bool = True


@dataclass(frozen=True)
class MetricRow:
    """One value of one metric at one step; `tokens` and `seconds` are since the trial's start."""

    step: int
    tokens: int
    seconds: float
    name: str
    value: float
