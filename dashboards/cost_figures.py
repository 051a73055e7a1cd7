"""What a cell costs against what it reaches: parameters, state bytes, training speed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go

from ablate.analysis.comparisons import Comparisons
from ablate.analysis.frame import StudyResults
from ablate.analysis.numbers import count, decimals_for, measure_words, number, size
from ablate.dashboards.theme import LIGHT, MOST_COLOURS, axis, colours, log_axis, safe, style

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
    decimals = decimals_for(comparisons)
    many = len(comparisons.rows) > MOST_COLOURS
    paint = colours(comparisons.rows)
    figure = go.Figure()
    for symbol, chosen in (
        ("circle", [row for row in rows if row.cell.compared_with is not None]),
        ("square", [row for row in rows if row.cell.compared_with is None]),
    ):
        grey = many and symbol == "circle"
        trace = go.Scatter(
            x=[costs[row.cell.id] for row in chosen],
            y=[row.summary.mean for row in chosen],
            mode="markers",
            marker={
                "size": 10,
                "symbol": symbol,
                "color": [LIGHT["quiet"] if grey else paint[row.cell.id][0] for row in chosen],
            },
            hoverinfo="text",
            hovertext=[
                f"<b>{safe(row.cell.label)}</b><br>{spelling(costs[row.cell.id])}"
                f"<br>{number(row.summary.mean, decimals)}"
                for row in chosen
            ],
            showlegend=False,
        )
        figure.add_trace(trace)
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
