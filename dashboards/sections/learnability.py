"""How soon each cell learns, as a table."""

from __future__ import annotations

import math

from ablate.analysis.formatting import DASH, count, measure_words, number, with_half_width
from ablate.analysis.frame import StudyResults
from ablate.analysis.interval import Interval
from ablate.analysis.learnability import Learning, learnability
from ablate.dashboards.section import Section
from ablate.dashboards.text_table import TextTable


def learnability_section(results: StudyResults, decimals: int) -> Section | None:
    """Return curve areas, values half-way and times to a target; None without learning curves."""
    found = learnability(results)
    if found is None:
        return None
    unit = measure_words(results.curve_metric)
    target, half = number(found.target, decimals), count(found.half)
    table = TextTable(
        caption=f"How soon each cell learns: {unit} over the log of the tokens, and the tokens to "
        f"reach {target}.",
        alignment="lrrrr",
        heading=(
            "Cell",
            "Curve area",
            f"After {half} tokens",
            f"Reached {target}",
            "Median tokens to it",
        ),
        rows=tuple(_row(row, decimals) for row in found.rows),
    )
    return Section(
        name="learnability",
        title="How soon it learns",
        lead=(
            f"The target is {target} {unit}, the mean of {found.reference.label} after half of the "
            f"tokens that all cells share ({half}).",
        ),
        tables=(table,),
        notes=(
            f"Curve area: mean height of the learning curve over the log of the tokens from "
            f"{count(found.span[0])} to {count(found.span[1])}; "
            f"{'lower' if results.goal == 'min' else 'higher'} is sooner. A trial that never met "
            "the target counts as one that would have needed longer than it ran, whether it ended, "
            "diverged or was stopped: it is not left out. An open end (\N{INFINITY}) means that "
            "too few trials met the target. A median of fewer than six trials has no interval.",
        ),
    )


def _row(row: Learning, decimals: int) -> tuple[str, ...]:
    reached = f"{row.reached} of {row.runs}" if row.runs else DASH
    return (
        row.cell.label,
        with_half_width(row.area, decimals),
        with_half_width(row.halfway, decimals),
        reached,
        _tokens(row.median),
    )


def _tokens(median: Interval | None) -> str:
    if median is None:
        return DASH
    text = _end(median.estimate)
    if median.low is None or median.high is None:
        return text
    return f"{text} [{_end(median.low)}, {_end(median.high)}]"


def _end(tokens: float) -> str:
    return "\N{INFINITY}" if math.isinf(tokens) else count(tokens)
