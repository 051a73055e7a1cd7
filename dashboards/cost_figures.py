"""What a cell reaches against what it costs: FLOPs, state bytes and time, with the best trades."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go

from ablate.analysis.comparisons import Comparisons, Row
from ablate.analysis.formatting import (
    count,
    decimals_for,
    duration,
    listed,
    measure_words,
    number,
    size,
)
from ablate.analysis.frame import StudyResults
from ablate.analysis.pareto import front
from ablate.dashboards.theme import LIGHT, MOST_COLOURS, axis, colours, log_axis, safe, style

COSTS: dict[str, tuple[str, str, Callable[[float | None], str]]] = {
    "cost_flops": ("flops_per_token", "FLOPs per token", count),
    "cost_state": ("state_bytes", "state per sequence", size),
    "cost_time": ("seconds", "seconds per trial", duration),
}
"""Name of the figure: field of `Row`, title of the axis, spelling of one value."""

MOST_ON_FRONT = 8
"""At most this many cells of a front are named."""


def cost_figures(results: StudyResults, comparisons: Comparisons) -> dict[str, go.Figure | None]:
    """Return the measure against each cost; None where fewer than two cells have the cost."""
    return {
        name: _figure(results, comparisons, field, _title(field, comparisons), spelt)
        for name, (field, _, spelt) in COSTS.items()
    }


def _title(field: str, comparisons: Comparisons) -> str:
    """Name a cost; time says how it is to be read where trials ran as lanes of a pack."""
    title = next(title for name, title, _ in COSTS.values() if name == field)
    words = comparisons.time_words if field == "seconds" else ""
    return f"{title} ({words})" if words else title


def fronts(results: StudyResults, comparisons: Comparisons) -> list[str]:
    """Return for each cost that differs between cells the cells on its Pareto front, in words."""
    found = []
    for field, _, _ in COSTS.values():
        rows = _with_cost(comparisons, field)
        if len({getattr(row, field) for row in rows}) < 2:
            continue
        labels = [row.cell.label for row in _front(rows, field, results.goal)]
        rest = len(labels) - MOST_ON_FRONT
        shown = [*labels[:MOST_ON_FRONT], f"{rest} more"] if rest > 0 else labels
        found.append(f"{_title(field, comparisons)}: {listed(shown)}")
    return found


def _front(rows: list[Row], field: str, goal: str) -> list[Row]:
    return front(rows, lambda row: getattr(row, field), goal)


def _with_cost(comparisons: Comparisons, field: str) -> list[Row]:
    return [row for row in comparisons.rows if (getattr(row, field) or 0) > 0 and row.summary.n]


def _figure(
    results: StudyResults,
    comparisons: Comparisons,
    field: str,
    title: str,
    spelling: Callable[[float | None], str],
) -> go.Figure | None:
    costs = {row.cell.id: getattr(row, field) for row in comparisons.rows}
    rows = _with_cost(comparisons, field)
    if len(rows) < 2:
        return None
    decimals = decimals_for(comparisons)
    many = len(comparisons.rows) > MOST_COLOURS
    paint = colours(comparisons.rows)
    best = _front(rows, field, results.goal)
    figure = go.Figure(
        go.Scatter(
            x=[costs[row.cell.id] for row in best],
            y=[row.summary.mean for row in best],
            mode="lines",
            line={"color": LIGHT["quiet"], "width": 1.2, "dash": "dot", "shape": "hv"},
            hoverinfo="skip",
            showlegend=False,
        )
    )
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
    unit = ", bytes" if spell is size else ""
    return axis(f"{title}{unit}", nticks=5, exponentformat="SI")
