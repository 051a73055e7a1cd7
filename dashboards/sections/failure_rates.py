"""Which levels fail, as rates with exact intervals."""

from __future__ import annotations

from ablate.analysis.attribution import varied
from ablate.analysis.failures import ENDED, FAILURES, FailureRate, failure_rates, rate_interval
from ablate.analysis.formatting import DASH, level, several
from ablate.analysis.frame import StudyResults
from ablate.analysis.interval import Interval
from ablate.dashboards.section import Section
from ablate.dashboards.text_table import TextTable

_KINDS = {
    "diverged": "Diverged",
    "oom": "Out of memory",
    "timed_out": "Timed out",
    "failed": "Raised an error",
}
_ANY = "Any failure [95 % interval]"


def failure_rates_section(results: StudyResults) -> Section | None:
    """Return the rate of each kind of failure by level; None if no trial failed."""
    trials = [(cell, trial) for cell in results.cells for trial in results.by_cell[cell.id]]
    states = [trial.state for _, trial in trials]
    failed = sum(state in FAILURES for state in states)
    if not failed:
        return None
    columns = {axis: [cell.axes.get(axis) for cell, _ in trials] for axis in varied(results)}
    rates = failure_rates(columns, states)
    kinds = [kind for kind in FAILURES if kind in states]
    table = TextTable(
        caption="Failures by level: trials that ended so, and the rate of any failure.",
        alignment="lr" + "r" * len(kinds) + "r",
        heading=("Level", "Ended", *(_KINDS[kind] for kind in kinds), _ANY),
        rows=tuple(_rows(rates, kinds)),
    )
    ended = sum(state in ENDED for state in states)
    overall = rate_text(rate_interval(failed, ended))
    return Section(
        name="failure_rates",
        title="How often trials fail",
        lead=(f"{failed} of {several(ended, 'trial')} that ended failed: {overall}.",),
        tables=(table,) if table.rows else (),
        notes=(
            "A level counts all cells that have it. The interval is Clopper and Pearson's, which "
            "holds for any number of trials. Trials that are missing, running, lost, "
            "cancelled or stale are not counted.",
        ),
    )


def _rows(rates: list[FailureRate], kinds: list[str]) -> list[tuple[str, ...]]:
    found: dict[str, dict[str, FailureRate]] = {}
    for rate in rates:
        name = f"{rate.factor}: {level(rate.level)}"  # type: ignore[arg-type]
        found.setdefault(name, {})[rate.state] = rate
    return [
        (
            name,
            str(own["any"].total),
            *(str(own[kind].count) for kind in kinds),
            rate_text(own["any"].rate),
        )
        for name, own in found.items()
    ]


def rate_text(rate: Interval) -> str:
    """Write a rate with its interval in per cent."""
    if rate.low is None or rate.high is None:
        return DASH
    return f"{100 * rate.estimate:.0f} % [{100 * rate.low:.0f}, {100 * rate.high:.0f}]"
