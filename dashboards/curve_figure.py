"""Learning curves over tokens, above the paired difference to the compared cell."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ablate.analysis.comparisons import Comparisons, Row
from ablate.analysis.formatting import count, measure_words
from ablate.analysis.frame import StudyResults
from ablate.analysis.learning_curves import Band, Floats, band, paired_band
from ablate.dashboards.theme import LIGHT, MOST_COLOURS, axis, colours, log_axis, safe, style
from ablate.dashboards.theme import band as faint

MOST_CURVES = 12
"""At most this many cells are drawn beside the references: those with the largest differences."""

MOST_POINTS = 400
"""A longer curve is drawn at so many of its points, evenly in the log of the tokens."""


def drawn_curves(comparisons: Comparisons) -> list[Row]:
    """Return the rows whose curves are drawn, references first."""
    with_value = [row for row in comparisons.rows if row.summary.n]
    references = [row for row in with_value if row.cell.compared_with is None]
    others = [row for row in with_value if row.cell.compared_with is not None]
    if len(others) > MOST_CURVES:
        largest = sorted(others, key=lambda row: -row.magnitude)[:MOST_CURVES]
        kept = {row.cell.id for row in largest}
        others = [row for row in others if row.cell.id in kept]
    return references + others


def curve_figure(results: StudyResults, comparisons: Comparisons) -> go.Figure | None:
    """Return mean curves with 95 % bands over seeds, and below them the paired differences."""
    rows = drawn_curves(comparisons)
    few = len(comparisons.rows) <= MOST_COLOURS
    paint = colours(comparisons.rows if few else rows)
    bands = {row.cell.id: band(list(results.learning_curves(row.cell.id).values())) for row in rows}
    if not any(found is not None and found.tokens.size > 1 for found in bands.values()):
        return None
    figure = make_subplots(2, 1, shared_xaxes=True, row_heights=[0.6, 0.4], vertical_spacing=0.07)
    for row in rows:
        found = bands[row.cell.id]
        if found is not None:
            _draw(figure, found, row, paint[row.cell.id], panel=1)
        if row.reference is not None:
            curves = results.learning_curves(row.cell.id)
            pairs = paired_band(curves, results.learning_curves(row.reference.id))
            if pairs is not None:
                _draw(figure, pairs, row, paint[row.cell.id], panel=2)
    _references(figure, results, bands)
    tokens = [value for found in bands.values() if found is not None for value in found.tokens]
    figure.add_hline(y=0, row=2, col=1, line={"color": LIGHT["ink"], "width": 1.2})
    return style(
        figure,
        height=640,
        xaxis=log_axis("", tokens, count),
        xaxis2=log_axis("training tokens", tokens, count),
        yaxis=axis(measure_words(results.curve_metric)),
        yaxis2=axis("paired difference"),
        legend_y=-0.11,
        hovermode="closest",
    )


def thinned(found: Band) -> Band:
    """Return `found` at no more than `MOST_POINTS` of its points, the first and last included."""
    if found.tokens.size <= MOST_POINTS:
        return found
    wanted = np.geomspace(found.tokens[0], found.tokens[-1], MOST_POINTS)
    kept = np.unique(np.searchsorted(found.tokens, wanted * (1 - 1e-12)))
    kept = np.union1d(kept[kept < found.tokens.size], [0, found.tokens.size - 1])
    return replace(
        found,
        tokens=found.tokens[kept],
        mean=found.mean[kept],
        low=found.low[kept],
        high=found.high[kept],
    )


def is_long(results: StudyResults) -> bool:
    """Tell whether a curve has more points than are drawn."""
    curves = (found.get(results.curve_metric) for found in results.curves.values())
    return any(curve is not None and curve.tokens.size > MOST_POINTS for curve in curves)


def reference_lines(results: StudyResults) -> dict[str, float]:
    """Return the task's reference values of the primary measure, such as ``unigram``, by name.

    They are the facts of the task whose name holds the measure's: ``unigram_bits_per_byte``.
    """
    leaf = re.escape(results.primary.rsplit("/", 1)[-1].split("@")[0])
    found: dict[str, float] = {}
    for trial in results.trials:
        for key, value in trial.info.items():
            match = re.fullmatch(f"(.+)_{leaf}(_.+)?", key)
            if match and isinstance(value, int | float) and math.isfinite(value):
                name = match[1] + (match[2] or "")
                found.setdefault(name.replace("_", " "), float(value))
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _references(figure: go.Figure, results: StudyResults, bands: Mapping[str, Band | None]) -> None:
    heights = [value for found in bands.values() if found is not None for value in found.mean]
    low, high = min(heights), max(heights)
    for name, value in reference_lines(results).items():
        # A line far outside would flatten the curves that it is there to judge.
        if low - (high - low) <= value <= high + (high - low):
            figure.add_hline(
                y=value,
                row=1,
                col=1,
                line={"color": LIGHT["muted"], "width": 1, "dash": "dot"},
                annotation={
                    "text": safe(name),
                    "font": {"size": 12, "color": LIGHT["muted"]},
                    "xanchor": "right",
                },
                annotation_position="top right",
            )


def outline(x: Floats, low: Floats, high: Floats, colour: str, group: str) -> go.Scatter:
    """Return the area between two lines, shown and hidden with the group of the legend."""
    return go.Scatter(
        x=np.concatenate([x, x[::-1]]),
        y=np.concatenate([high, low[::-1]]),
        fill="toself",
        fillcolor=faint(colour),
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        legendgroup=group,
        showlegend=False,
    )


def _draw(figure: go.Figure, found: Band, row: Row, look: tuple[str, str], panel: int) -> None:
    colour, dash = look
    found = thinned(found)
    place = {"row": panel, "col": 1}
    if found.n > 1:
        area = outline(found.tokens, found.low, found.high, colour, row.cell.id)
        figure.add_trace(area, **place)
    line = go.Scatter(
        x=found.tokens,
        y=found.mean,
        mode="lines",
        line={"color": colour, "dash": dash, "width": 2.4 if row.reference is None else 1.8},
        name=safe(row.cell.label),
        legendgroup=row.cell.id,
        showlegend=panel == 1,
        hovertemplate="<b>%{fullData.name}</b><br>%{x:.3s} tokens<br>%{y:.4f}<extra></extra>",
    )
    figure.add_trace(line, **place)
