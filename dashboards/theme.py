"""The colours of the report, each with its light and its dark value, and the look of figures."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

import plotly.graph_objects as go

from ablate.analysis.comparisons import Row

LIGHT = {
    "paper": "#fdfdfb",
    "panel": "#f5f4f0",
    "ink": "#1b1e22",
    "muted": "#5d646c",
    "line": "#dddbd4",
    "grid": "#ebe9e3",
    "accent": "#0b5cad",
    "quiet": "#868d95",
    "seed": "#9aa1a9",
}
DARK = {
    "paper": "#14171a",
    "panel": "#1b1f23",
    "ink": "#e9e7e2",
    "muted": "#a0a7ae",
    "line": "#353b42",
    "grid": "#262b30",
    "accent": "#6cb0f5",
    "quiet": "#7d858e",
    "seed": "#6d757d",
}

# Readable on both papers and told apart by the common kinds of colour blindness.
SERIES = (
    ("#2a6fc4", "#6aa9f2"),
    ("#c2570c", "#f09555"),
    ("#13805a", "#4fc296"),
    ("#8a4fc4", "#bd93ee"),
    ("#b5303f", "#ef7c86"),
    ("#0e7c8f", "#4dbbcd"),
    ("#7f6a0a", "#cdb44a"),
    ("#b03f80", "#ec8cc2"),
)
DASHES = ("solid", "dash", "dot")

FONT = (
    'ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", '
    '"Liberation Sans", Arial, sans-serif'
)


def dark_of_light() -> dict[str, str]:
    """Return the dark value of every light colour that a figure can contain."""
    pairs = {LIGHT[name]: DARK[name] for name in LIGHT}
    pairs.update(SERIES)
    pairs.update(
        {band(light): band(dark) for light, dark in (*SERIES, (LIGHT["ink"], DARK["ink"]))}
    )
    return pairs


def series(index: int) -> tuple[str, str]:
    """Return colour and dash of the `index`-th line beside the baseline."""
    return SERIES[index % len(SERIES)][0], DASHES[(index // len(SERIES)) % len(DASHES)]


def colours(rows: Iterable[Row]) -> dict[str, tuple[str, str]]:
    """Return colour and dash of each cell, the same in all figures; references are in ink."""
    found: dict[str, tuple[str, str]] = {}
    compared = 0
    for row in rows:
        reference = row.cell.compared_with is None
        found[row.cell.id] = (LIGHT["ink"], "solid") if reference else series(compared)
        compared += not reference
    return found


def band(colour: str) -> str:
    """Return `colour` made faint enough to lie under lines."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.12)"


def safe(text: str) -> str:
    """Return `text` for plotly, which reads a subset of HTML in its labels."""
    return html.escape(text, quote=False)


def axis(title: str = "", **options: Any) -> dict[str, Any]:
    """Return a quiet axis: a hairline grid, no box, muted ticks."""
    return {
        "gridcolor": LIGHT["grid"],
        "zeroline": False,
        "linecolor": LIGHT["line"],
        "tickfont": {"size": 12, "color": LIGHT["muted"]},
        "title": {
            "text": safe(title),
            "font": {"size": 13, "color": LIGHT["muted"]},
            "standoff": 10,
        },
        "automargin": True,
        "fixedrange": True,
        **options,
    }


def token_axis(title: str = "") -> dict[str, Any]:
    """Return a logarithmic axis of training tokens."""
    return axis(title, type="log", dtick="D2", exponentformat="SI")


def style(figure: go.Figure, height: int, **layout: Any) -> go.Figure:
    """Give `figure` the report's look and return it."""
    options: dict[str, Any] = {
        "template": None,
        "height": height,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 13, "color": LIGHT["ink"]},
        "margin": {"l": 8, "r": 12, "t": 28, "b": 8},
        "hoverlabel": {
            "bgcolor": LIGHT["panel"],
            "bordercolor": LIGHT["line"],
            "font": {"family": FONT, "size": 12, "color": LIGHT["ink"]},
            "align": "left",
        },
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": -0.12,
            "yanchor": "top",
            "font": {"size": 12, "color": LIGHT["ink"]},
            "bgcolor": "rgba(0,0,0,0)",
        },
    }
    figure.update_layout({**options, **layout})
    return figure
