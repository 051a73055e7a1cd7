"""A paper's table of models, and under each what a study has of that model in those columns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ablate.analysis.formatting import DASH, number, several
from ablate.analysis.frame import Cell, StudyResults
from ablate.analysis.published import Published, PublishedRow
from ablate.dashboards.text_table import TextTable


def measures_columns(results: StudyResults, table: Published) -> bool:
    """Whether a study has a value for a column of the table, of a model that is in it."""
    return any(True for row in table.rows for _ in _ours(results, table, row))


def models_lead(results: StudyResults, table: Published) -> str:
    """Say what of ours stands in the table, and what keeps the two apart."""
    if not measures_columns(results, table):
        return "Nothing of this study stands in it: it measures none of the table's columns."
    return (
        "Lines that begin with 'ours' are this study's: the mean over finished trials and, after "
        "\N{PLUS-MINUS SIGN}, their standard deviation. Sizes, text and tokenizers may be other "
        "than the paper's."
    )


def models_table(results: StudyResults, table: Published) -> TextTable:
    """Return the printed rows, each followed by our cells of that model that measure a column."""
    columns = list(table.columns)
    grouped = any(row.group for row in table.rows)
    rows: list[tuple[str, ...]] = []
    for row in table.rows:
        printed = [number(row.values[name], places(table, name)) for name in columns]
        rows.append((row.name, *([row.group] * grouped), *printed))
        for cell, values in _ours(results, table, row):
            texts = [_text(values.get(name), places(table, name)) for name in columns]
            label = f"ours: {cell.label}, {several(max(map(len, values.values())), 'seed')}"
            rows.append((label, *([_size(cell)] * grouped), *texts))
    return TextTable(
        caption=f"{table.source}, as printed{', and ours' if table.measures else ''}.",
        alignment="l" * (1 + grouped) + "r" * len(columns),
        heading=("Model", *(["Group"] * grouped), *(name.replace("_", " ") for name in columns)),
        rows=tuple(rows),
    )


def places(table: Published, column: str) -> int:
    """Digits after the point that the table prints in a column."""
    return max(len(repr(row.values[column]).partition(".")[2]) for row in table.rows)


def _ours(
    results: StudyResults, table: Published, row: PublishedRow
) -> Iterator[tuple[Cell, dict[str, list[float]]]]:
    """Cells of the row's model that measure a column: values of finished trials by column."""
    for cell in results.cells:
        if not row.model or model_of(results, cell) != row.model:
            continue
        done = [trial for trial in results.by_cell[cell.id] if trial.state == "done"]
        found = {}
        for column, measure in table.measures.items():
            if not measure.of(cell):
                continue
            values = [trial.summary.get(measure.metric) for trial in done]
            if kept := [value * measure.scale for value in values if value is not None]:
                found[column] = kept
        if found:
            yield cell, found


def model_of(results: StudyResults, cell: Cell) -> str:
    """The preset of a cell; where models are no factor, only the baseline is one unchanged."""
    if "model" in cell.axes:
        return str(cell.axes["model"])
    named = cell.config.get("model") or {}
    return str(named.get("name", "")) if cell.id == results.baseline else ""


def _size(cell: Cell) -> str:
    return DASH if cell.parameters is None else f"{cell.parameters / 1e6:,.3g}M parameters"


def _text(values: list[float] | None, decimals: int) -> str:
    if not values:
        return DASH
    mean = number(float(np.mean(values)), decimals)
    if len(values) == 1:
        return mean
    return f"{mean} \N{PLUS-MINUS SIGN} {number(float(np.std(values, ddof=1)), decimals)}"
