"""Estimates with their intervals, one line for each, around zero."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from ablate.analysis.interval import Interval
from ablate.dashboards.theme import LIGHT, axis, safe, style


def interval_figure(
    names: Sequence[str], estimates: Sequence[Interval], title: str, texts: Sequence[str]
) -> go.Figure:
    """Return a dot and a line for each estimate, the first on top; filled where zero is outside.

    Args:
        names: what stands at each line.
        estimates: the numbers, with intervals or without.
        title: the axis title.
        texts: what a reader sees who points at a line.
    """
    heights = list(range(len(names) - 1, -1, -1))
    sure = [one.low is not None and 0 not in one for one in estimates]
    figure = go.Figure(
        go.Scatter(
            x=[one.estimate for one in estimates],
            y=heights,
            mode="markers",
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [0 if one.high is None else one.high - one.estimate for one in estimates],
                "arrayminus": [
                    0 if one.low is None else one.estimate - one.low for one in estimates
                ],
                "color": LIGHT["accent"],
                "thickness": 2,
                "width": 0,
            },
            marker={
                "size": 11,
                "color": LIGHT["accent"],
                "symbol": ["circle" if one else "circle-open" for one in sure],
                "line": {"width": 2, "color": LIGHT["accent"]},
            },
            hoverinfo="text",
            hovertext=[
                f"<b>{safe(name)}</b><br>{safe(text)}"
                for name, text in zip(names, texts, strict=True)
            ],
            showlegend=False,
        )
    )
    figure.add_vline(x=0, line={"color": LIGHT["ink"], "width": 1.2})
    return style(
        figure,
        height=34 * len(names) + 80,
        xaxis=axis(title),
        yaxis=axis(
            tickvals=heights,
            ticktext=[safe(name if len(name) <= 60 else f"{name[:59]}\u2026") for name in names],
            showgrid=False,
            range=[-0.6, len(names) - 0.4],
            tickfont={"size": 13, "color": LIGHT["ink"]},
            ticklabelstandoff=8,
        ),
        margin={"l": 8, "r": 12, "t": 8, "b": 8},
    )
