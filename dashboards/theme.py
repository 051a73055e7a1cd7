"""The colours of the report, each with its light and its dark value, and the look of figures."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable
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
    "alarm": "#b3261e",
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
    "alarm": "#ff8f85",
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
MOST_COLOURS = 24
"""Colours and dashes tell this many cells apart; larger studies colour only what they draw."""

DASHES = ("solid", "dash", "dot")

FONT = (
    '-apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", "Liberation Sans", Arial, '
    "sans-serif"
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
    compared = references = 0
    for row in rows:
        if row.cell.compared_with is None:
            found[row.cell.id] = (LIGHT["ink"], DASHES[references % len(DASHES)])
            references += 1
        else:
            found[row.cell.id] = series(compared)
            compared += 1
    return found


def band(colour: str) -> str:
    """Return `colour` made faint enough to lie under lines."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.10)"


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


def log_axis(
    title: str, values: Iterable[float], spell: Callable[[float], str], base: int = 10
) -> dict[str, Any]:
    """Return a logarithmic axis whose ticks are few round numbers, written by `spell`.

    Args:
        title: the axis title.
        values: what is drawn along the axis, all positive.
        spell: how a tick is written.
        base: 10 for ticks at 1, 2 and 5 times a power of ten, 2 for powers of two.
    """
    values = list(values)
    ticks = round_ticks(min(values), max(values), base)
    texts = [re.sub(r"\.0+\b", "", spell(tick)) for tick in ticks]
    return axis(title, type="log", tickvals=ticks, ticktext=texts)


def round_ticks(low: float, high: float, base: int = 10, most: int = 7) -> list[float]:
    """Return at most about `most` round numbers between `low` and `high`, evenly in the log."""
    start, end = math.floor(math.log(low, base)) - 1, math.ceil(math.log(high, base)) + 1
    fine = [1.0, 2.0, 5.0] if base == 10 else [1.0]
    ticks = [step * float(base) ** power for power in range(start, end + 1) for step in fine]
    kept = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
    if len(kept) <= most:
        return kept
    powers = [float(base) ** power for power in range(start, end + 1)]
    coarse = [tick for tick in powers if low * 0.999 <= tick <= high * 1.001]
    return coarse[:: max(1, math.ceil(len(coarse) / most))]


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
