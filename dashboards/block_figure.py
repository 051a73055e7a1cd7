"""Learning curves in small multiples, one panel for each block of a design, on common axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from textwrap import wrap

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ablate.analysis.comparisons import Comparisons, Row
from ablate.analysis.formatting import count, level, measure_words
from ablate.analysis.frame import Cell, StudyResults
from ablate.analysis.learning_curves import Band, band
from ablate.dashboards.curve_figure import outline, thinned
from ablate.dashboards.theme import LIGHT, axis, log_axis, safe, series, style

COLUMNS = 3
PANEL_HEIGHT = 200
FEW_NAMES = 5
NAME_HEIGHT = 20
"""The legend has room for a few names; each further one takes a line."""
TITLE_WIDTH = 34
"""Letters across a panel; a longer title goes on in a second line."""
MOST_PANELS = 24
"""With more blocks the panels are too small to read."""
MOST_LINES = 12
"""A panel draws its reference and the cells that differ most from theirs in any block."""


def blocks(comparisons: Comparisons) -> list[list[Row]]:
    """Return the rows of each block, its reference first; none unless all blocks change the same.

    A block is a cell and all that are compared with it and have none compared with themselves.
    """
    used = {row.cell.compared_with for row in comparisons.rows}
    found: dict[str, list[Row]] = {
        row.cell.id: [row] for row in comparisons.rows if row.cell.id in used
    }
    for row in comparisons.rows:
        if row.cell.id not in found and row.cell.compared_with in found:
            found[row.cell.compared_with].append(row)
    members = [rows for rows in found.values() if len(rows) > 1]
    changes = {tuple(_change(row) for row in rows[1:]) for rows in members}
    return members if len(members) > 1 and len(changes) == 1 else []


def block_figure(results: StudyResults, comparisons: Comparisons) -> go.Figure | None:
    """Return a panel of mean curves with 95 % bands for each block; None where there are none."""
    whole = blocks(comparisons)
    groups = _shown(whole)
    bands = {
        row.cell.id: band(list(results.learning_curves(row.cell.id).values()))
        for rows in groups
        for row in rows
    }
    drawn = [found for found in bands.values() if found is not None and found.tokens.size > 1]
    if not drawn or len(groups) > MOST_PANELS:
        return None
    columns = min(COLUMNS, len(groups))
    lines = math.ceil(len(groups) / columns)
    figure = make_subplots(
        lines,
        columns,
        shared_xaxes=True,
        shared_yaxes=True,
        horizontal_spacing=0.03,
        vertical_spacing=0.24 / lines,
    )
    names = _names(groups[0])
    for index, rows in enumerate(groups):
        place = {"row": index // columns + 1, "col": index % columns + 1}
        _panel(figure, rows, bands, names, place)
        _title(figure, _block_name(rows[0].cell, groups[0][0].cell, groups), place)
    _axes(figure, drawn, results, lines)
    names_height = NAME_HEIGHT * max(0, len(names) - FEW_NAMES)
    style(
        figure,
        height=90 + PANEL_HEIGHT * lines + names_height,
        legend_y=-60 / (PANEL_HEIGHT * lines),
        margin={"l": 8, "r": 12, "t": 48, "b": 8},
        hovermode="closest",
    )
    across = "training tokens"
    if groups != whole:
        across += f" (of {len(whole[0])} cells, the {MOST_LINES} that differ most)"
    figure.update_xaxes({"title": {"text": across}}, row=lines, col=1)
    return figure


def _shown(groups: list[list[Row]]) -> list[list[Row]]:
    """The same few rows of every block, where they are many."""
    if not groups or len(groups[0]) <= MOST_LINES:
        return groups
    furthest = [max(row.magnitude for row in rows) for rows in zip(*groups, strict=True)]
    ranked = sorted(range(1, len(furthest)), key=lambda at: -furthest[at])
    kept = [0, *sorted(ranked[: MOST_LINES - 1])]
    return [[rows[at] for at in kept] for rows in groups]


def _panel(
    figure: go.Figure,
    rows: Sequence[Row],
    bands: Mapping[str, Band | None],
    names: Sequence[str],
    place: Mapping[str, int],
) -> None:
    for index, (row, name) in enumerate(zip(rows, names, strict=True)):
        colour, dash = (LIGHT["ink"], "solid") if index == 0 else series(index - 1)
        found = bands[row.cell.id]
        # A cell without a curve keeps its place in the legend, which the first panel makes.
        kept = thinned(found) if found is not None else None
        if kept is not None and kept.n > 1:
            figure.add_trace(outline(kept.tokens, kept.low, kept.high, colour, name), **place)
        figure.add_trace(
            go.Scatter(
                name=safe(name),
                legendgroup=name,
                mode="lines",
                x=[] if kept is None else kept.tokens,
                y=[] if kept is None else kept.mean,
                line={"color": colour, "dash": dash, "width": 1.8},
                showlegend=place == {"row": 1, "col": 1},
                hovertemplate="<b>%{fullData.name}</b><br>%{x:.3s}<br>%{y:.4f}<extra></extra>",
            ),
            **place,
        )


def _axes(figure: go.Figure, drawn: Sequence[Band], results: StudyResults, lines: int) -> None:
    tokens = [value for found in drawn for value in found.tokens]
    heights = np.concatenate([found.mean for found in drawn])
    low, high = float(heights.min()), float(heights.max())
    room = 0.05 * (high - low or 1.0)
    across = log_axis("", tokens, count)
    for key in ("tickvals", "ticktext"):
        across[key] = across[key][::2]
    figure.update_xaxes(across)
    figure.update_xaxes({"title": {"text": "training tokens"}}, row=lines)
    figure.update_yaxes(axis("", range=[low - room, high + room]))
    figure.update_yaxes({"title": {"text": safe(measure_words(results.curve_metric))}}, col=1)


def _title(figure: go.Figure, text: str, place: Mapping[str, int]) -> None:
    figure.add_annotation(
        text="<br>".join(safe(line) for line in wrap(text, TITLE_WIDTH)),
        align="left",
        x=0,
        y=1,
        xref="x domain",
        yref="y domain",
        xanchor="left",
        yanchor="bottom",
        showarrow=False,
        font={"size": 12, "color": LIGHT["muted"]},
        **place,
    )


def _change(row: Row) -> tuple[tuple[str, str, str], ...]:
    return tuple((key, level(a), level(b)) for key, (a, b) in row.cell.changed.items())


def _names(rows: Sequence[Row]) -> list[str]:
    """What a line is: the level that it changes to, with its factor where several change."""
    keys = [key for row in rows[1:] for key in row.cell.changed]
    several = len(set(keys)) > 1
    after = [
        ", ".join(f"{_short(k)}={level(b)}" if several else level(b) for k, (_, b) in changes)
        for changes in (row.cell.changed.items() for row in rows[1:])
    ]
    first = {level(a) for row in rows[1:] for a, _ in row.cell.changed.values()}
    return [first.pop() if not several and len(first) == 1 else "reference", *after]


def _block_name(cell: Cell, first: Cell, groups: Sequence[Sequence[Row]]) -> str:
    """The levels of the axes in which the blocks' references differ."""
    references = [rows[0].cell for rows in groups]
    differing = [
        key
        for key in first.axes
        if any(other.axes.get(key) != first.axes[key] for other in references)
    ]
    return ", ".join(f"{_short(key)}={level(cell.axes.get(key))}" for key in differing)


def _short(key: str) -> str:
    return key.removeprefix("task_args.")
