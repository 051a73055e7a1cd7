"""The ablation table as Markdown, LaTeX and CSV; every format has the same rows and columns."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ablate.analysis.comparisons import Comparisons, Row, Verdict, compare
from ablate.analysis.frame import StudyResults
from ablate.analysis.numbers import (
    DASH,
    count,
    decimals_for,
    duration,
    interval,
    level,
    measure_words,
    number,
    probability,
    several,
    signed,
    size,
)
from ablate.dashboards.latex import tabular


@dataclass(frozen=True)
class Column:
    """One column: its heading, the text of a row in it, and what one number is counted per."""

    heading: str
    text: Callable[[Row], str]
    left: bool = False
    per: str = ""

    @property
    def title(self) -> str:
        """The heading on one line."""
        return f"{self.heading}/{self.per}" if self.per else self.heading


def columns(results: StudyResults, comparisons: Comparisons) -> tuple[Column, ...]:
    """Return the columns that are read by people, numbers rounded to the same decimals."""
    decimals = decimals_for(comparisons)
    return (
        Column("cell", lambda row: row.cell.label, left=True),
        Column("change", change, left=True),
        Column(measure_words(results.primary), lambda row: mean_text(row, decimals)),
        Column("n", seeds_text),
        Column("difference [95 % interval]", lambda row: difference_text(row, decimals)),
        Column("p", lambda row: probability(row.effect.p if row.effect else None)),
        Column("p (Holm)", lambda row: probability(row.p_holm)),
        *cost_columns(comparisons),
    )


def cost_columns(comparisons: Comparisons) -> tuple[Column, ...]:
    """Return the columns of what a cell costs, those left out that are empty in every row."""
    found = (
        Column("parameters", lambda row: count(row.parameters)),
        Column("state", lambda row: size(row.state_bytes)),
        Column("FLOPs", lambda row: count(row.flops_per_token), per="token"),
        Column("tokens", lambda row: count(row.tokens_per_second), per="s"),
        Column("time", lambda row: duration(row.seconds), per="trial"),
    )
    return tuple(c for c in found if any(c.text(row) != DASH for row in comparisons.rows))


def change(row: Row) -> str:
    """Say what the cell changes: ``window: 16 -> 1``, with a real arrow."""
    if not row.cell.changed:
        return DASH
    arrow = "\N{RIGHTWARDS ARROW}"
    changes = row.cell.changed.items()
    return ", ".join(f"{axis}: {level(a)} {arrow} {level(b)}" for axis, (a, b) in changes)


def mean_text(row: Row, decimals: int) -> str:
    """Write the mean with half the width of its 95 % interval."""
    summary = row.summary
    mean = number(summary.mean, decimals)
    if summary.high is None or summary.mean is None:
        return mean
    return f"{mean} \N{PLUS-MINUS SIGN} {number(summary.high - summary.mean, decimals)}"


def seeds_text(row: Row) -> str:
    """Write the number of seeds with a value, and what became of the others."""
    others = [f"{n} {state}" for state, n in sorted(row.counts.items()) if state != "done"]
    n = str(row.summary.n) if row.summary.n == row.planned else f"{row.summary.n}/{row.planned}"
    return f"{n} ({', '.join(others)})" if others else n


def difference_text(row: Row, decimals: int) -> str:
    """Write the paired difference with its interval, or why there is none."""
    effect = row.effect
    if effect is None or effect.difference is None:
        return DASH
    if row.verdict is Verdict.IDENTICAL:
        return "0 (identical)"
    text = signed(effect.difference, decimals)
    if effect.low is not None:
        text = f"{text} {interval(effect.low, effect.high, decimals)}"
    return text if effect.n == row.summary.n else f"{text} (n = {effect.n})"


def markdown_table(results: StudyResults) -> str:
    """Return the ablation table in Markdown, with pipes and markup in names escaped."""
    comparisons = compare(results)
    shown = columns(results, comparisons)
    lines = [
        _line([column.title for column in shown]),
        "|" + "|".join(" :-- " if column.left else " --: " for column in shown) + "|",
        *(_line([column.text(row) for column in shown]) for row in comparisons.rows),
    ]
    return "\n".join(lines) + "\n"


def latex_table(results: StudyResults) -> str:
    """Return the ablation table as a LaTeX table for the package booktabs, all names escaped."""
    comparisons = compare(results)
    shown = columns(results, comparisons)
    caption = (
        f"{results.study}: mean {measure_words(results.primary)} with 95 % interval over "
        f"{several(len(results.seeds), 'seed')}, and paired differences to the compared cell. "
        "p: exact paired sign-flip test; p (Holm): corrected over "
        f"{several(comparisons.family, 'comparison')}."
    )
    return tabular(
        caption,
        "".join("l" if column.left else "r" for column in shown),
        [column.title for column in shown],
        [[column.text(row) for column in shown] for row in comparisons.rows],
    )


def levels_table(results: StudyResults) -> str:
    """Return in Markdown the level of every factor in every cell, n/a where it does not apply."""
    axes = factors(results)
    lines = [_line(["cell", *axes]), "|" + " :-- |" * (len(axes) + 1)]
    for cell in results.cells:
        lines.append(_line([cell.label, *(level(cell.axes.get(axis)) for axis in axes)]))
    return "\n".join(lines) + "\n"


def factors(results: StudyResults) -> list[str]:
    """Return the names of all factors of the study in the order of the plan."""
    return list(dict.fromkeys(axis for cell in results.cells for axis in cell.axes))


def csv_table(results: StudyResults) -> str:
    """Return one line per cell with every number unrounded and one column per factor.

    A number that does not exist is empty; a factor that does not apply is ``n/a``.
    """
    comparisons = compare(results)
    axes = factors(results)
    states = sorted(results.counts())
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["cell", "label", *axes, "change", "compared_with", "measure", *_RAW, *states, "verdict"]
    )
    for row in comparisons.rows:
        effect, summary = row.effect, row.summary
        raw = [
            *(summary.n, summary.mean, summary.low, summary.high),
            *((effect.n, effect.difference, effect.low, effect.high) if effect else [None] * 4),
            *((effect.p, row.p_holm, effect.smallest_p, effect.size) if effect else [None] * 4),
            *(row.parameters, row.state_bytes, row.flops_per_token),
            *(row.tokens_per_second, row.seconds, row.peak_memory, row.area),
        ]
        writer.writerow(
            [
                *(row.cell.id, row.cell.label),
                *(level(row.cell.axes.get(axis)) for axis in axes),
                *(change(row), row.cell.compared_with or "", results.primary),
                *("" if value is None else repr(value) for value in raw),
                *(row.counts.get(state, 0) for state in states),
                row.verdict.value,
            ]
        )
    return out.getvalue()


_RAW = (
    *("n", "mean", "low", "high"),
    *("pairs", "difference", "difference_low", "difference_high"),
    *("p", "p_holm", "smallest_p", "hedges_g"),
    *("parameters", "state_bytes", "flops_per_token"),
    *("tokens_per_second", "seconds", "peak_memory_bytes", "log_token_area"),
)


def _line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(map(markdown, texts)) + " |"


def markdown(text: str) -> str:
    """Escape `text` for Markdown and put it on one line."""
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_<>|]|\](?=\())", r"\\\1", flat)
