"""The report's figures as PNG, for places that cannot run plotly: MLflow's pages, a mail, a paper.

The figure is the very one of the page, drawn once more by matplotlib. What is understood is what
our figures are made of: scatter traces, error bars, filled bands, lines across and annotations.
"""

from __future__ import annotations

import html
import io
import re
from typing import Any

import numpy as np
import plotly.graph_objects as go
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation, Transform, blended_transform_factory

from ablate.analysis.frame import StudyResults
from ablate.dashboards.figures import figures
from ablate.dashboards.theme import LIGHT

WIDTH = 860
"""Pixels across: what fits beside the panels of MLflow's pages, which show a picture as it is."""

_DPI = 96
_POINTS = 72 / _DPI
_MARKERS = {"circle": "o", "square": "s", "diamond": "D", "line-ns": "|", "cross": "+", "x": "x"}
_DASHES = {None: "solid", "solid": "solid", "dash": (0, (5, 3)), "dot": (0, (1.5, 2))}
_STYLE: dict[Any, Any] = {
    # A label may hold a dollar sign.
    "text.parse_math": False,
    "font.size": 13 * _POINTS,
    "text.color": LIGHT["ink"],
    "axes.unicode_minus": True,
}


CAPTIONS = {
    "effects": "paired differences to the compared cell, with 95 % intervals and single seeds",
    "learning_curves": "means over seeds with 95 % bands, and paired differences below",
    "blocks": "means over seeds with 95 % bands, one panel for each block",
}
"""The figures that can be read without the page around them, and what they show."""


def images(results: StudyResults) -> dict[str, bytes]:
    """Return the main figures of a study as PNG by file name, those that the results can fill."""
    drawn = figures(results)
    return {
        f"{name}.png": png_bytes(drawn[name], f"{results.study}: {caption}")
        for name, caption in CAPTIONS.items()
        if name in drawn
    }


def png_bytes(figure: go.Figure, title: str = "") -> bytes:
    """Return the figure as PNG, under `title`; the same figure gives the same bytes.

    Raises:
        ValueError: it holds a trace that is no scatter, or a symbol that is not known here.
    """
    with rc_context(_STYLE):
        height = (figure.layout.height or 400) / _DPI + (0.3 if title else 0)
        drawing = Figure(figsize=(WIDTH / _DPI, height), layout="constrained")
        drawing.set_facecolor(LIGHT["paper"])
        panels = _panels(drawing, figure)
        for trace in figure.data:
            _draw(panels[trace.yaxis or "y"], trace)
        for name, panel in panels.items():
            _dress(panel, figure, name)
        for shape in figure.layout.shapes:
            _line_across(panels, shape)
        for note in figure.layout.annotations:
            _write(panels, note)
        _legend(drawing, figure)
        if title:
            size = 13 * _POINTS
            drawing.suptitle(title, x=0.01, ha="left", color=LIGHT["muted"], fontsize=size)
        target = io.BytesIO()
        drawing.savefig(target, format="png", dpi=_DPI, metadata={"Software": None})
    return target.getvalue()


def _panels(drawing: Figure, figure: go.Figure) -> dict[str, Axes]:
    """One panel for each vertical axis, in the row and column that plotly has it in."""
    names = list(dict.fromkeys(trace.yaxis or "y" for trace in figure.data))
    heights = {name: _span(figure, name) for name in names}
    widths = {name: _span(figure, figure.layout[_full(name)].anchor or "x") for name in names}
    rows = sorted(set(heights.values()), reverse=True)
    columns = sorted(set(widths.values()))
    ratios = [high - low for low, high in rows]
    made = drawing.subplots(
        len(rows), len(columns), sharex=len(names) > 1, squeeze=False, height_ratios=ratios
    )
    places = {name: (rows.index(heights[name]), columns.index(widths[name])) for name in names}
    panels: dict[tuple[int, ...], Axes] = dict(np.ndenumerate(made))
    for place in panels.keys() - places.values():
        panels[place].remove()
    return {name: panels[place] for name, place in places.items()}


def _span(figure: go.Figure, name: str) -> tuple[float, float]:
    """Where an axis begins and ends, in parts of the figure."""
    low, high = figure.layout[_full(name)].domain or (0.0, 1.0)
    return low, high


def _draw(panel: Axes, trace: Any) -> None:
    if trace.type != "scatter":
        raise ValueError(f"a {trace.type} trace cannot be drawn as PNG: only scatter")
    x, y = list(trace.x), list(trace.y)
    if trace.fill:
        panel.fill(x, y, color=_colour(trace.fillcolor), linewidth=0, zorder=1)
        return
    if trace.error_x.array is not None:
        bars = trace.error_x
        panel.errorbar(x, y, xerr=list(bars.array), fmt="none", ecolor=_colour(bars.color),
                       elinewidth=bars.thickness * _POINTS, zorder=2)  # fmt: skip
    if "lines" in trace.mode:
        panel.plot(x, y, **_line(trace), zorder=3)
    if "markers" in trace.mode:
        colours = trace.marker.color
        single = isinstance(colours, str)
        for at, (left, low) in enumerate(zip(x, y, strict=True)):
            look = _marker(trace, colours if single else colours[at])
            panel.plot([left], [low], linestyle="none", zorder=4, **look)


def _line(trace: Any) -> dict[str, Any]:
    return {
        "color": _colour(trace.line.color),
        "linestyle": _DASHES[trace.line.dash],
        "linewidth": (trace.line.width or 2) * _POINTS,
        "drawstyle": "steps-post" if trace.line.shape == "hv" else "default",
    }


def _marker(trace: Any, colour: str) -> dict[str, Any]:
    symbol, _, kind = (trace.marker.symbol or "circle").partition("-open")
    if symbol not in _MARKERS:
        raise ValueError(f"marker symbol {trace.marker.symbol!r} is unknown to the PNG")
    return {
        "marker": _MARKERS[symbol],
        "markersize": trace.marker.size * _POINTS,
        "markeredgecolor": _colour(colour),
        "markeredgewidth": (trace.marker.line.width or 0) * _POINTS,
        "markerfacecolor": LIGHT["paper"] if trace.marker.symbol.count("open") else _colour(colour),
    }


def _dress(panel: Axes, figure: go.Figure, name: str) -> None:
    panel.set_facecolor("none")
    panel.spines[:].set_visible(False)
    vertical = figure.layout[_full(name)]
    horizontal = figure.layout[_full(vertical.anchor or "x")]
    for axis, asked in ((panel.xaxis, horizontal), (panel.yaxis, vertical)):
        letter = axis.axis_name
        if asked.type == "log":
            panel.set(**{f"{letter}scale": "log"})
        if asked.range is not None:
            panel.set(**{f"{letter}lim": asked.range})
        if asked.tickvals is not None:
            texts = [_plain(text) for text in asked.ticktext]
            axis.set_ticks(list(asked.tickvals), texts)
            axis.set_ticks([], minor=True)
        font = asked.tickfont
        if asked.showticklabels is False:
            axis.set_tick_params(labelleft=False, labelbottom=False)
        axis.set_tick_params(length=0, labelsize=font.size * _POINTS, labelcolor=font.color)
        if asked.showgrid is not False:
            axis.grid(color=LIGHT["grid"], linewidth=0.8)
        axis.set_label_text(_plain(asked.title.text or ""), color=LIGHT["muted"])
    panel.set_axisbelow(True)


def _line_across(panels: dict[str, Axes], shape: Any) -> None:
    """Draw what `add_hline` and `add_vline` ask for."""
    panel = _panel_of(panels, shape)
    look = {
        "color": shape.line.color,
        "linewidth": shape.line.width * _POINTS,
        "linestyle": _DASHES[shape.line.dash],
        "zorder": 2.5,
    }
    if "domain" in shape.xref or shape.xref == "paper":
        panel.axhline(shape.y0, **look)
    else:
        panel.axvline(shape.x0, **look)


def _write(panels: dict[str, Axes], note: Any) -> None:
    panel = _panel_of(panels, note)
    place = blended_transform_factory(_along(panel, note.xref), _along(panel, note.yref))
    shift = ScaledTranslation(
        (note.xshift or 0) / _DPI, (note.yshift or 0) / _DPI, panel.figure.dpi_scale_trans
    )
    vertical = {"bottom": "bottom", "top": "top", "middle": "center", None: "center"}
    panel.text(
        note.x,
        note.y,
        _plain(note.text),
        transform=place + shift,
        ha=note.xanchor or "center",
        va=vertical[note.yanchor],
        color=note.font.color,
        fontsize=note.font.size * _POINTS,
    )


def _along(panel: Axes, reference: str | None) -> Transform:
    inside = reference is None or not ("domain" in reference or reference == "paper")
    return panel.transData if inside else panel.transAxes


def _panel_of(panels: dict[str, Axes], thing: Any) -> Axes:
    name = str(thing.yref or "y").removesuffix(" domain")
    return panels.get(name, next(iter(panels.values())))


def _legend(drawing: Figure, figure: go.Figure) -> None:
    shown = [trace for trace in figure.data if trace.name and trace.showlegend is not False]
    if not shown:
        return
    names = [_plain(trace.name) for trace in shown]
    handles = [_handle(trace) for trace in shown]
    columns = max(1, min(len(names), int(WIDTH / (60 + 7 * max(map(len, names))))))
    drawing.legend(handles, names, loc="outside lower left", ncols=columns, frameon=False)


def _handle(trace: Any) -> Line2D:
    if "lines" in trace.mode:
        return Line2D([], [], **_line(trace))
    return Line2D([], [], linestyle="none", **_marker(trace, trace.marker.color))


def _full(short: str) -> str:
    """``y2`` of a trace is ``yaxis2`` of the layout."""
    return f"{short[0]}axis{short[1:]}"


def _colour(text: str) -> Any:
    """Turn plotly's ``rgba(1,2,3,0.5)`` into what matplotlib reads; other colours stay."""
    parts = re.fullmatch(r"rgba\((.+)\)", text)
    if parts is None:
        return text
    *channels, alpha = map(float, parts[1].split(","))
    return (*(channel / 255 for channel in channels), alpha)


def _plain(text: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", text.replace("<br>", "\n")))
