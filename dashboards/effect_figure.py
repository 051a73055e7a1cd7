"""The effect plot: paired differences to the compared cell, with intervals and single seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from ablate.analysis.comparisons import Comparisons, Row, Verdict
from ablate.analysis.effects import PairedEffect
from ablate.analysis.formatting import (
    decimals_for,
    equals,
    interval,
    measure_words,
    probability,
    signed,
)
from ablate.analysis.frame import StudyResults
from ablate.dashboards.theme import LIGHT, axis, safe, style

MOST_EFFECTS = 40
"""The plot shows at most this many cells, those with the largest differences."""


@dataclass(frozen=True)
class Look:
    """How the cells with one verdict are drawn."""

    verdict: Verdict
    name: str
    colour: str
    symbol: str


LOOKS = (
    Look(Verdict.SIGNIFICANT, "significant after Holm", "accent", "circle"),
    Look(Verdict.SUGGESTIVE, "interval excludes zero, not significant", "accent", "circle-open"),
    Look(Verdict.UNDECIDED, "not significant", "quiet", "circle-open"),
    Look(Verdict.ONE_PAIR, "one pair, no interval", "quiet", "circle-open-dot"),
    Look(Verdict.IDENTICAL, "identical", "quiet", "diamond-open"),
)


def shown_effects(comparisons: Comparisons) -> list[Row]:
    """Return the rows of the plot: largest difference first, cells without one last."""
    rows = [row for row in comparisons.rows if row.effect is not None]
    with_value = [row for row in rows if row.effect and row.effect.difference is not None]
    without = [row for row in rows if row.effect and row.effect.difference is None]
    kept = sorted(with_value, key=lambda row: -row.magnitude)[:MOST_EFFECTS]
    kept.sort(key=lambda row: -_difference(row))
    return kept + without[: MOST_EFFECTS - len(kept)]


def effect_figure(results: StudyResults, comparisons: Comparisons) -> go.Figure | None:
    """Return one line per compared cell; None if no pair of cells has a common seed."""
    rows = shown_effects(comparisons)
    if not any(row.effect and row.effect.difference is not None for row in rows):
        return None
    decimals = decimals_for(comparisons)
    height = {row.cell.id: len(rows) - 1 - index for index, row in enumerate(rows)}
    figure = go.Figure(_single_seeds(results, rows, height))
    for look in LOOKS:
        chosen = [
            (height[row.cell.id], row, row.effect)
            for row in rows
            if row.verdict is look.verdict and row.effect is not None
        ]
        if chosen:
            figure.add_trace(_trace(look, chosen, results, decimals))
    figure.add_vline(x=0, line={"color": LIGHT["ink"], "width": 1.2})
    _write_directions(figure, results.goal)
    for row in rows:
        if row.effect and row.effect.difference is None:
            place = {"y": height[row.cell.id], "xanchor": "left", "xshift": 10}
            _write(figure, "no seed finished in both", **place)
    return _lay_out(figure, results, rows)


def _lay_out(figure: go.Figure, results: StudyResults, rows: Sequence[Row]) -> go.Figure:
    inner = 34 * len(rows) + 10
    return style(
        figure,
        height=inner + 140,
        xaxis=axis(
            f"difference in {measure_words(results.primary)}",
            range=_range(results, rows),
        ),
        yaxis=axis(
            tickvals=list(range(len(rows))),
            ticktext=[_name(row) for row in reversed(rows)],
            showgrid=False,
            range=[-0.6, len(rows) - 0.4],
            tickfont={"size": 13, "color": LIGHT["ink"]},
            ticklabelstandoff=8,
        ),
        legend_y=-68 / inner,
    )


def _write_directions(figure: go.Figure, goal: str) -> None:
    less, more = ("better", "worse") if goal == "min" else ("worse", "better")
    place = {"y": 1, "yref": "paper", "yanchor": "bottom", "yshift": 2}
    _write(figure, f"\N{LEFTWARDS ARROW} {less}", xanchor="right", xshift=-10, **place)
    _write(figure, f"{more} \N{RIGHTWARDS ARROW}", xanchor="left", xshift=10, **place)


def _write(figure: go.Figure, text: str, **place: Any) -> None:
    font = {"size": 12, "color": LIGHT["muted"]}
    figure.add_annotation(x=0, text=text, showarrow=False, font=font, **place)


def _trace(
    look: Look,
    chosen: Sequence[tuple[int, Row, PairedEffect]],
    results: StudyResults,
    decimals: int,
) -> go.Scatter:
    colour = LIGHT[look.colour]
    return go.Scatter(
        x=[effect.difference for _, _, effect in chosen],
        y=[height for height, _, _ in chosen],
        error_x={
            "type": "data",
            "array": [_half_width(effect) for _, _, effect in chosen],
            "color": colour,
            "thickness": 2,
            "width": 0,
        },
        mode="markers",
        name=look.name,
        marker={
            "size": 11,
            "symbol": look.symbol,
            "color": colour,
            "line": {"width": 2, "color": colour},
        },
        hoverinfo="text",
        hovertext=[_hover(row, effect, results, decimals) for _, row, effect in chosen],
    )


def _hover(row: Row, effect: PairedEffect, results: StudyResults, decimals: int) -> str:
    bounds = interval(effect.low, effect.high, decimals)
    difference = signed(effect.difference, decimals)
    lines = [
        f"<b>{safe(row.cell.label)}</b>",
        f"{difference} {bounds} {safe(measure_words(results.primary))}",
        f"p {equals(effect.p)}, after Holm {probability(row.p_holm)}, n = {effect.n}",
    ]
    return "<br>".join(lines)


def _single_seeds(
    results: StudyResults, rows: Sequence[Row], height: Mapping[str, int]
) -> go.Scatter:
    points = [(d, height[row.cell.id]) for row in rows for d in _pairs(results, row)]
    return go.Scatter(
        x=[difference for difference, _ in points],
        y=[place for _, place in points],
        mode="markers",
        name="single seeds",
        marker={
            "symbol": "line-ns-open",
            "size": 9,
            "color": LIGHT["seed"],
            "line": {"width": 1.5, "color": LIGHT["seed"]},
        },
        hoverinfo="skip",
    )


def _pairs(results: StudyResults, row: Row) -> list[float]:
    if row.reference is None:
        return []
    values, others = results.values[row.cell.id], results.values[row.reference.id]
    return [values[seed] - others[seed] for seed in sorted(set(values) & set(others))]


def _range(results: StudyResults, rows: Sequence[Row]) -> list[float]:
    """Show every seed, and intervals as far as the effects stay readable beside them."""
    points = [difference for row in rows for difference in _pairs(results, row)] + [0.0]
    spread = max(points) - min(points) or 1.0
    lows = [row.effect.low for row in rows if row.effect and row.effect.low is not None]
    highs = [row.effect.high for row in rows if row.effect and row.effect.high is not None]
    low = max(min([*points, *lows]), min(points) - spread)
    high = min(max([*points, *highs]), max(points) + spread)
    # The words on both sides of zero need their place.
    pad, words = 0.05 * (high - low), 0.14 * (high - low)
    return [min(low - pad, -words), max(high + pad, words)]


def _half_width(effect: PairedEffect) -> float:
    if effect.low is None or effect.high is None:
        return 0.0
    return (effect.high - effect.low) / 2


def _difference(row: Row) -> float:
    return (row.effect.difference if row.effect else None) or 0.0


def _name(row: Row) -> str:
    label = row.cell.label if len(row.cell.label) <= 40 else f"{row.cell.label[:39]}\u2026"
    n = row.effect.n if row.effect else 0
    return safe(label) + ("" if n == row.planned else f" (n = {n})")
