"""Two studies beside each other, cell by cell, in every format of a report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ablate.analysis.comparisons import Row
from ablate.analysis.formatting import (
    DASH,
    decimals_for_values,
    interval,
    measure_words,
    number,
    probability,
    signed,
)
from ablate.analysis.two_studies import SidePair, TwoStudies
from ablate.dashboards.interval_figure import interval_figure
from ablate.dashboards.page import render
from ablate.dashboards.section import Drawing, Section
from ablate.dashboards.tables import csv_text, mean_text, parquet_bytes
from ablate.dashboards.text_table import TextTable, markdown
from ablate.errors import unknown

FORMATS = ("html", "md", "latex", "csv", "parquet")
MOST_LINES = 40
"""The figure shows at most this many cells: those with the largest differences."""


def two_studies_bytes(two: TwoStudies, format: str) -> bytes:
    """Return the comparison in one of `FORMATS` as it stands in a file.

    Raises:
        UserError: for any other format.
    """
    if format == "parquet":
        return parquet_bytes(records(two))
    writers: dict[str, Callable[[], str]] = {
        "html": lambda: html_page(two),
        "md": lambda: f"# {markdown(_title(two))}\n\n{comparison(two).markdown()}",
        "latex": lambda: comparison(two).latex(),
        "csv": lambda: csv_text(records(two)),
    }
    if format not in writers:
        raise unknown("report format", format, FORMATS, where="--format")
    return writers[format]().encode()


def html_page(two: TwoStudies) -> str:
    """Return the page of both studies."""
    section = comparison(two)
    figures = {drawing.name: drawing.figure for drawing in section.drawings}
    return render("two_studies.html.j2", figures, two=two, title=_title(two), section=section)


def comparison(two: TwoStudies) -> Section:
    """Return the table of all cells by label, and the figure of the differences."""
    first, second = two.first.study, two.second.study
    unit = measure_words(two.first.primary)
    decimals = _decimals(two)
    table = TextTable(
        caption=f"Mean {unit} by cell in {first} and {second}, with 95 % intervals over seeds.",
        alignment="lrrrrrr",
        heading=(
            *("Cell", first, "Seeds", second, "Seeds"),
            f"{second} minus {first} [95 % interval]",
            "p",
        ),
        rows=tuple(_row(pair, decimals) for pair in two.pairs),
    )
    return Section(
        name="cells",
        title="Cells by label",
        drawings=_drawings(two, decimals),
        tables=(table,),
        notes=(
            *two.notes,
            "Cells meet by their labels; a cell of one study only stands alone. The seeds of the "
            "two studies count as independent (Welch's interval and test), and p is not corrected "
            "for the number of cells. Labels say what a cell changes from its own study's "
            "baseline: equal labels mean equal configurations only where the baselines agree"
            f"{_agreement(two)}.",
        ),
    )


def records(two: TwoStudies) -> list[dict[str, Any]]:
    """Return one mapping per label with every number unrounded; None where there is none."""
    found = []
    for pair in two.pairs:
        record: dict[str, Any] = {"label": pair.label, "measure": two.first.primary}
        for side, row in (("first", pair.first), ("second", pair.second)):
            summary = row.summary if row is not None else None
            record[f"{side}_cell"] = row.cell.id if row is not None else ""
            for name in ("n", "mean", "low", "high"):
                record[f"{side}_{name}"] = getattr(summary, name, None)
        difference = pair.difference
        record["difference"] = difference.estimate if difference else None
        record["difference_low"] = difference.low if difference else None
        record["difference_high"] = difference.high if difference else None
        found.append({**record, "p": pair.p})
    return found


def _row(pair: SidePair, decimals: int) -> tuple[str, ...]:
    return (
        pair.label,
        *_side(pair.first, decimals),
        *_side(pair.second, decimals),
        _difference(pair, decimals),
        probability(pair.p),
    )


def _side(row: Row | None, decimals: int) -> tuple[str, str]:
    if row is None:
        return DASH, DASH
    return mean_text(row, decimals), f"{row.summary.n}"


def _difference(pair: SidePair, decimals: int) -> str:
    if pair.difference is None:
        return DASH
    text = signed(pair.difference.estimate, decimals)
    if pair.difference.low is None:
        return text
    return f"{text} {interval(pair.difference.low, pair.difference.high, decimals)}"


def _drawings(two: TwoStudies, decimals: int) -> tuple[Drawing, ...]:
    drawn = [(pair.label, pair.difference) for pair in two.pairs if pair.difference is not None]
    if not drawn:
        return ()
    largest = sorted(drawn, key=lambda item: -abs(item[1].estimate))[:MOST_LINES]
    largest.sort(key=lambda item: -item[1].estimate)
    unit = measure_words(two.first.primary)
    texts = [number(difference.estimate, decimals) for _, difference in largest]
    title = f"difference in {unit}"
    figure = interval_figure(
        [label for label, _ in largest], [one for _, one in largest], title, texts
    )
    caption = (
        f"{two.second.study} minus {two.first.study} for cells of the same label, with 95 % "
        "intervals; filled where zero is outside."
    )
    if len(drawn) > MOST_LINES:
        caption += f" Only the {MOST_LINES} largest differences of {len(drawn)} are drawn."
    description = "Differences between the studies; every number is in the table below."
    return (Drawing("differences", figure, caption, description),)


def _decimals(two: TwoStudies) -> int:
    return decimals_for_values(
        [pair.difference for pair in two.pairs],
        [row.summary for pair in two.pairs for row in (pair.first, pair.second) if row],
    )


def _agreement(two: TwoStudies) -> str:
    both = [pair for pair in two.pairs if pair.first is not None and pair.second is not None]
    same = sum(pair.same for pair in both)
    return f"; here {same} of {len(both)} pairs have the same configuration and data"


def _title(two: TwoStudies) -> str:
    return f"{two.first.study} and {two.second.study}"
