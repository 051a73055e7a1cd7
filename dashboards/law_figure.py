"""Fitted scaling laws with the trials they are fitted to: over one size, or over two."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from ablate.analysis.formatting import count, measure_words
from ablate.analysis.frame import StudyResults
from ablate.analysis.scaling import predict_loss
from ablate.analysis.size_laws import SYMBOLS, SizeCurve, SizeLaws
from ablate.dashboards.curve_figure import outline
from ablate.dashboards.section import Drawing
from ablate.dashboards.theme import LIGHT, axis, log_axis, safe, series, style

LAW_POINTS = 60
"""Points at which a fitted curve is drawn."""

MOST_LAWS = 4
"""At most this many laws of two sizes are drawn, each in a figure of its own."""


def law_drawings(results: StudyResults, laws: SizeLaws) -> tuple[Drawing, ...]:
    """Return one figure of all laws of one size, or one for each law of two."""
    if len(laws.variables) == 1:
        return (_over_one(results, laws),)
    if len(laws.variables) == 2:
        return tuple(
            _over_two(results, laws, index)
            for index, curve in enumerate(laws.curves[:MOST_LAWS])
            if curve.points
        )
    return ()


def _over_one(results: StudyResults, laws: SizeLaws) -> Drawing:
    figure = go.Figure()
    for index, curve in enumerate(laws.curves):
        colour, dash = (LIGHT["ink"], "solid") if index == 0 else series(index - 1)
        _draw(figure, curve, laws.variables[0], colour, dash)
    sizes = [point[0][0] for curve in laws.curves for point in curve.points]
    _lay_out(figure, results, SYMBOLS[laws.variables[0]], sizes)
    caption = "Dots are single trials. Both axes are logarithmic."
    if any(curve.fit is not None for curve in laws.curves):
        caption += " A line is the fitted law, its band the 95 % interval of the mean over seeds."
    description = "Measure against size with fitted laws; the numbers are in the table below."
    return Drawing("scaling", figure, caption, description)


def _over_two(results: StudyResults, laws: SizeLaws, index: int) -> Drawing:
    """Draw the law over one of its sizes, one line for each value of the other."""
    curve = laws.curves[index]
    # A budget of tokens is what a reader moves along; a model is what they choose.
    across = laws.variables.index("D") if "D" in laws.variables else 1
    lines = sorted({point[0][1 - across] for point in curve.points})
    figure = go.Figure()
    for number, held in enumerate(lines):
        colour, dash = series(number)
        _draw_held(figure, curve, laws.variables, across, held, (colour, dash))
    sizes = [point[0][across] for point in curve.points]
    _lay_out(figure, results, SYMBOLS[laws.variables[across]], sizes)
    other, name = SYMBOLS[laws.variables[1 - across]], "" if index == 0 else f"_{index}"
    caption = f"{curve.name}: one line for each number of {other}. Dots are single trials."
    if curve.fit is not None:
        caption += " The lines are one law, fitted to all dots; its intervals are in the table."
    description = "Measure against two sizes with the fitted law; the numbers are in the table."
    return Drawing(f"scaling{name}", figure, caption, description)


def _lay_out(figure: go.Figure, results: StudyResults, title: str, sizes: list[float]) -> None:
    style(
        figure,
        height=420,
        xaxis=log_axis(title, sizes, count),
        yaxis=axis(measure_words(results.primary), type="log", nticks=6),
        legend_y=-0.16,
        hovermode="closest",
        margin={"l": 8, "r": 12, "t": 8, "b": 8},
    )


def _draw_held(
    figure: go.Figure,
    curve: SizeCurve,
    variables: tuple[str, ...],
    across: int,
    held: float,
    look: tuple[str, str],
) -> None:
    own = [point for point in curve.points if point[0][1 - across] == held]
    name = safe(f"{variables[1 - across]} = {count(held)}")
    figure.add_trace(
        _dots([point[0][across] for point in own], [point[2] for point in own], look[0], name)
    )
    if curve.fit is None:
        figure.data[-1].showlegend = True
        return
    every = [point[0][across] for point in curve.points]
    sizes = np.geomspace(min(every), max(every), LAW_POINTS)
    fixed = {variables[across]: sizes, variables[1 - across]: np.full(LAW_POINTS, held)}
    law = [one.estimate for one in predict_loss(curve.fit, fixed)]
    figure.add_trace(_line(sizes, law, look, name))


def _draw(figure: go.Figure, curve: SizeCurve, variable: str, colour: str, dash: str) -> None:
    name = safe(curve.name)
    figure.add_trace(
        _dots([p[0][0] for p in curve.points], [p[2] for p in curve.points], colour, name)
    )
    if curve.fit is None:
        figure.data[-1].showlegend = True
        return
    sizes = np.geomspace(curve.fit.sizes.min(), curve.fit.sizes.max(), LAW_POINTS)
    law = predict_loss(curve.fit, {variable: sizes})
    low, high = (
        np.array([getattr(one, end) for one in law], dtype=float) for end in ("low", "high")
    )
    area = outline(sizes, low, high, colour, name)
    line = _line(sizes, [one.estimate for one in law], (colour, dash), name)
    figure.add_traces([area, line])


def _dots(x: list[float], y: list[float], colour: str, name: str) -> go.Scatter:
    return go.Scatter(
        x=x,
        y=y,
        mode="markers",
        marker={"size": 7, "color": colour, "symbol": "circle-open"},
        name=name,
        legendgroup=name,
        showlegend=False,
        hovertemplate="%{x:.3s}<br>%{y:.4f}<extra></extra>",
    )


def _line(x: np.ndarray, y: list[float], look: tuple[str, str], name: str) -> go.Scatter:
    return go.Scatter(
        x=x,
        y=y,
        mode="lines",
        line={"color": look[0], "dash": look[1], "width": 2},
        name=name,
        legendgroup=name,
        hoverinfo="skip",
    )
