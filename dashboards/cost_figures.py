"""What a cell costs against what it reaches: parameters, state bytes, training speed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go

from ablate.analysis.comparisons import Comparisons
from ablate.analysis.frame import StudyResults
from ablate.analysis.numbers import count, decimals_for, measure_words, number, size
from ablate.dashboards.theme import LIGHT, axis, colours, log_axis, safe, style

MOST_COLOURS = 24
"""With more cells than colours and dashes can tell apart, all but the references are grey."""

COSTS: dict[str, tuple[str, str, Callable[[float | None], str]]] = {
    "cost_parameters": ("parameters", "parameters", count),
    "cost_state": ("state_bytes", "state per sequence", size),
    "cost_speed": ("tokens_per_second", "training tokens per second", count),
}
"""Name of the figure: field of `Row`, title of the axis, spelling of one value."""


def cost_figures(results: StudyResults, comparisons: Comparisons) -> dict[str, go.Figure | None]:
    """Return the measure against each cost; None where fewer than two cells have the cost."""
    return {name: _figure(results, comparisons, *cost) for name, cost in COSTS.items()}


def _figure(
    results: StudyResults,
    comparisons: Comparisons,
    field: str,
    title: str,
    spelling: Callable[[float | None], str],
) -> go.Figure | None:
    costs = {row.cell.id: getattr(row, field) for row in comparisons.rows}
    rows = [r for r in comparisons.rows if (costs[r.cell.id] or 0) > 0 and r.summary.n]
    if len(rows) < 2:
        return None
    paint = colours(comparisons.rows)
    many = len(comparisons.rows) > MOST_COLOURS
    decimals = decimals_for(comparisons)
    figure = go.Figure()
    for row in rows:
        cost, reference = costs[row.cell.id], row.cell.compared_with is None
        colour = LIGHT["quiet"] if many and not reference else paint[row.cell.id][0]
        hover = [
            f"<b>{safe(row.cell.label)}</b>",
            spelling(cost),
            number(row.summary.mean, decimals),
        ]
        figure.add_trace(
            go.Scatter(
                x=[cost],
                y=[row.summary.mean],
                mode="markers",
                marker={"size": 10, "color": colour, "symbol": "square" if reference else "circle"},
                hoverinfo="text",
                hovertext="<br>".join(hover),
                showlegend=False,
            )
        )
    known = [costs[row.cell.id] for row in rows]
    return style(
        figure,
        height=300,
        xaxis=_axis(title, known, spelling),
        yaxis=axis(measure_words(results.primary)),
        margin={"l": 8, "r": 12, "t": 8, "b": 8},
    )


def _axis(title: str, values: list[float], spell: Callable[[float | None], str]) -> dict[str, Any]:
    if max(values) > 3 * min(values):
        return log_axis(title, values, spell, base=2 if spell is size else 10)
    if max(values) == min(values):
        return axis(title, tickvals=values[:1], ticktext=[spell(values[0])])
    return axis(title, nticks=5, exponentformat="SI")
