"""How often trials of each level diverge, run out of memory or fail, with exact intervals."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

from ablate.analysis.interval import CONFIDENCE, Interval
from ablate.errors import unknown

FAILURES = ("diverged", "oom", "timed_out", "failed")
ENDED = ("done", "pruned", *FAILURES)
"""States that count in the denominator: the trial ran, and ended by itself or by a rule."""
OTHERS = ("missing", "running", "lost", "cancelled", "stale")


@dataclass(frozen=True)
class FailureRate:
    """`count` of `total` ended trials at one level of a factor ended in `state`."""

    factor: str
    level: Hashable
    state: str
    count: int
    total: int
    rate: Interval


def failure_rates(
    levels: Mapping[str, Sequence[Hashable]],
    states: Sequence[str],
    *,
    confidence: float = CONFIDENCE,
) -> list[FailureRate]:
    """Return the rate of each failure, and of "any", per level of each factor.

    Trials that are missing, running, lost, cancelled or stale are not counted; a pruned one counts
    as one that did not fail. Levels None (not applicable) are left out.

    Raises:
        UserError: if a state is not one of the ledger's.
    """
    for state in states:
        if state not in ENDED + OTHERS:
            raise unknown("trial state", state, ENDED + OTHERS)
    found = []
    for factor, column in levels.items():
        for level in dict.fromkeys(column):
            if level is None:
                continue
            ended = [
                state
                for state, own in zip(states, column, strict=True)
                if own == level and state in ENDED
            ]
            for kind in (*FAILURES, "any"):
                kinds = FAILURES if kind == "any" else (kind,)
                count = sum(state in kinds for state in ended)
                rate = rate_interval(count, len(ended), confidence=confidence)
                found.append(FailureRate(factor, level, kind, count, len(ended), rate))
    return found


def rate_interval(count: int, total: int, *, confidence: float = CONFIDENCE) -> Interval:
    """Return `count` / `total` with the interval of Clopper & Pearson (1934).

    It covers at least `confidence` at any rate and any number of trials, which Wilson's does not
    near 0 and 1, where failure rates live. Without trials the rate is NaN and has no interval.
    """
    if total == 0:
        return Interval(float("nan"), None, None)
    found = stats.binomtest(count, total).proportion_ci(confidence, method="exact")
    return Interval(count / total, float(found.low), float(found.high))
