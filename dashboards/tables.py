"""The ablation table as Markdown, which leaves out what nobody reads, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.analysis.comparisons import Comparisons, Row, Verdict, compare
from ablate.analysis.formatting import (
    DASH,
    count,
    decimals_for,
    duration,
    interval,
    level,
    measure_words,
    probability,
    several,
    signed,
    size,
    with_half_width,
)
from ablate.analysis.frame import StudyResults
from ablate.dashboards.text_table import TextTable


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
    shared = f" ({comparisons.time_words})" if comparisons.time_words else ""
    found = (
        Column("parameters", lambda row: count(row.parameters)),
        Column("state", lambda row: size(row.state_bytes)),
        Column("FLOPs", lambda row: count(row.flops_per_token), per="token"),
        Column("tokens", lambda row: count(row.tokens_per_second), per=f"s{shared}"),
        Column("time", lambda row: duration(row.seconds), per=f"trial{shared}"),
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
    return with_half_width(row.summary, decimals)


def seeds_text(row: Row) -> str:
    """Write the number of seeds with a value, what became of the others, and what is old."""
    others = [f"{n} {state}" for state, n in sorted(row.counts.items()) if state != "done"]
    others += [f"{row.older} of older code"] if row.older else []
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


def ablation_table(results: StudyResults, *, largest_first: bool = False) -> TextTable:
    """Return the ablation table as people read it, in the order of the plan.

    Args:
        results: the study.
        largest_first: the baseline, then the cells that differ most.
    """
    comparisons = compare(results)
    rows = sorted(comparisons.rows, key=_rank) if largest_first else comparisons.rows
    shown = columns(results, comparisons)
    caption = (
        f"{results.study}: mean {measure_words(results.primary)} with 95 % interval over "
        f"{several(len(results.seeds), 'seed')}, and paired differences to the compared cell. "
        "p: exact paired sign-flip test; p (Holm): corrected over "
        f"{several(comparisons.family, 'comparison')}."
    )
    return TextTable(
        caption,
        "".join("l" if column.left else "r" for column in shown),
        tuple(column.title for column in shown),
        tuple(tuple(column.text(row) for column in shown) for row in rows),
    )


def _rank(row: Row) -> float:
    return -row.magnitude if row.cell.compared_with else -math.inf


def levels_table(results: StudyResults) -> TextTable:
    """Return the level of every factor in every cell, n/a where it does not apply."""
    axes = factors(results)
    return TextTable(
        "The level of every factor in every cell.",
        "l" * (1 + len(axes)),
        ("cell", *axes),
        tuple(
            (cell.label, *(level(cell.axes.get(axis)) for axis in axes)) for cell in results.cells
        ),
    )


def factors(results: StudyResults) -> list[str]:
    """Return the names of all factors of the study in the order of the plan."""
    return list(dict.fromkeys(axis for cell in results.cells for axis in cell.axes))


def records(results: StudyResults) -> list[dict[str, Any]]:
    """Return one mapping per cell with every number unrounded and one key per factor.

    A number that does not exist is None; a factor that does not apply is ``n/a``.
    """
    comparisons = compare(results)
    axes = factors(results)
    states = sorted(results.counts())
    return [
        {
            "cell": row.cell.id,
            "label": row.cell.label,
            **{axis: level(row.cell.axes.get(axis)) for axis in axes},
            "change": change(row),
            "compared_with": row.cell.compared_with or "",
            "measure": results.primary,
            **_raw(row),
            **{state: row.counts.get(state, 0) for state in states},
            "older_code": row.older,
            "verdict": row.verdict.value,
        }
        for row in comparisons.rows
    ]


def _raw(row: Row) -> dict[str, float | None]:
    effect, summary = row.effect, row.summary
    return {
        "n": summary.n,
        "mean": summary.mean,
        "low": summary.low,
        "high": summary.high,
        "pairs": effect.n if effect else None,
        "difference": effect.difference if effect else None,
        "difference_low": effect.low if effect else None,
        "difference_high": effect.high if effect else None,
        "p": effect.p if effect else None,
        "p_holm": row.p_holm,
        "smallest_p": effect.smallest_p if effect else None,
        "hedges_g": effect.size if effect else None,
        "parameters": row.parameters,
        "state_bytes": row.state_bytes,
        "flops_per_token": row.flops_per_token,
        "tokens_per_second": row.tokens_per_second,
        "seconds": row.seconds,
        "peak_memory_bytes": row.peak_memory,
        "log_token_area": row.area,
    }


def csv_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Return records of equal keys as CSV, floats to the last digit, None as nothing."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if records:
        writer.writerow(records[0])
    for record in records:
        writer.writerow(_field(value) for value in record.values())
    return out.getvalue()


def parquet_bytes(records: Sequence[Mapping[str, Any]]) -> bytes:
    """Return records of equal keys as a Parquet file; whole numbers of a column stay whole."""
    # A tenth of a second of import that only this format needs.
    import pyarrow
    import pyarrow.parquet

    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(records)), out)
    return out.getvalue()


def _field(value: Any) -> Any:
    return repr(value) if isinstance(value, float) else "" if value is None else value
