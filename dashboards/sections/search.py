"""A search: the best configurations so far, and the best against the number of trials."""

from __future__ import annotations

import math

import numpy as np
import plotly.graph_objects as go

from ablate.analysis.formatting import (
    DASH,
    decimals_for_values,
    interval,
    level,
    measure_words,
    number,
    several,
    signed,
    with_half_width,
)
from ablate.analysis.frame import StudyResults
from ablate.analysis.searched import Configuration, Searched, searched
from ablate.dashboards.section import Drawing, Section
from ablate.dashboards.text_table import TextTable
from ablate.dashboards.theme import LIGHT, axis, safe, style

MOST_BEST = 10
"""The table holds at most this many configurations."""

MOST_POINTS = 1000
"""More configurations than this are drawn without those in between, evenly."""


def search_section(results: StudyResults) -> Section | None:
    """Return what a search has found; None if the study is none, or nothing has ended yet."""
    found = searched(results)
    if found is None:
        return None
    decimals = decimals_for_values([], [one.summary for one in found.ranked[:MOST_BEST]])
    unit = measure_words(results.primary)
    return Section(
        name="search",
        title="Best configurations",
        lead=_lead(found, unit, decimals),
        drawings=_drawings(results, found, decimals),
        tables=(_table(results, found, decimals),) if found.ranked else (),
        notes=(
            "The mean of the best of many is too good: it was chosen for being so. Held out: for "
            "each seed the value of the configuration that the other seeds choose. To report a "
            "number for the best, run it on seeds that took no part in the search. A configuration "
            "that was stopped early or diverged with any seed counts as tried and is never the "
            "best.",
        ),
    )


def _lead(found: Searched, unit: str, decimals: int) -> tuple[str, ...]:
    tried = (
        f"{len(found.tried)} of {several(found.planned, 'configuration')} tried, each with "
        f"{several(len(found.seeds), 'seed')}."
    )
    if not found.ranked:
        return (f"{tried} None has a value for every seed yet.",)
    best = found.ranked[0]
    text = (
        f"{tried} The best so far is {best.cell.label}: {number(best.summary.mean, decimals)} "
        f"{unit} as it looks, best of {len(found.tried)}"
    )
    if found.judged is None:
        return (f"{text}. Not judged: {found.refusal}",)
    honest = found.judged.honest
    if not math.isfinite(honest.estimate):
        return (f"{text}; a seed that did not choose has no value for the choice.",)
    bounds = "" if honest.low is None else f" {interval(honest.low, honest.high, decimals)}"
    return (
        f"{text}; {number(honest.estimate, decimals)}{bounds} by the seeds that did not choose it "
        f"(luck: {signed(found.judged.optimism, decimals)}).",
    )


def _table(results: StudyResults, found: Searched, decimals: int) -> TextTable:
    axes = list(dict.fromkeys(axis for one in found.ranked for axis in one.cell.axes))
    shown = found.ranked[:MOST_BEST]
    return TextTable(
        caption=f"The {several(len(shown), 'configuration')} with the best mean "
        f"{measure_words(results.primary)}, as it looks.",
        alignment="l" + "r" * (len(axes) + 1),
        heading=("Configuration", *axes, "Mean \N{PLUS-MINUS SIGN} 95 %"),
        rows=tuple(_row(one, axes, decimals) for one in shown),
    )


def _row(one: Configuration, axes: list[str], decimals: int) -> tuple[str, ...]:
    mean = with_half_width(one.summary, decimals)
    return (one.cell.label, *(_short(one.cell.axes.get(axis)) for axis in axes), mean)


def _short(value: object) -> str:
    """Write a sampled level; three digits say where a continuous one lies."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return level(value)  # type: ignore[arg-type]


def _drawings(results: StudyResults, found: Searched, decimals: int) -> tuple[Drawing, ...]:
    finite = np.isfinite(found.running)
    if finite.sum() < 2:
        return ()
    m = np.arange(1, len(found.tried) + 1)
    kept = np.unique(np.linspace(0, len(m) - 1, min(len(m), MOST_POINTS)).astype(int))
    means = np.array([o.summary.mean if o.whole else np.nan for o in found.tried], dtype=float)
    low, high = _range(means, found, results.goal)
    figure = go.Figure(_dots(found, m, means, kept, decimals))
    expected = np.where(np.isfinite(found.expected), found.expected, np.nan)
    lines = (
        ("best so far", np.where(finite, found.running, np.nan), LIGHT["accent"], "solid", "hv"),
        ("expected best of m in random order", expected, LIGHT["ink"], "dot", "linear"),
    )
    for name, values, colour, dash, shape in lines:
        figure.add_trace(
            go.Scatter(
                x=m[kept],
                y=values[kept],
                mode="lines",
                line={"color": colour, "width": 2, "dash": dash, "shape": shape},
                name=name,
                hovertemplate=f"%{{x}} tried<br>%{{y:.{decimals}f}}<extra>{name}</extra>",
            )
        )
    style(
        figure,
        height=380,
        xaxis=axis("configurations tried, m", range=[0.5, len(m) + 0.5]),
        yaxis=axis(measure_words(results.primary), range=[low, high]),
        legend_y=-0.18,
        hovermode="closest",
        margin={"l": 8, "r": 12, "t": 8, "b": 8},
    )
    outside = int(((means > high) | (means < low)).sum())
    gone = int(np.isnan(means).sum())
    caption = (
        "Each dot is a configuration in the order in which it was chosen. The dotted line is the "
        "best that m of these configurations would have given in random order, on average: where "
        "the step line falls faster, the search has learnt where to look."
    )
    if outside:
        caption += f" {several(outside, 'worse configuration')} outside of the picture."
    if gone:
        caption += f" {several(gone, 'configuration')} without a value."
    description = "Best measure against configurations tried; the best are in the table below."
    return (Drawing("search", figure, caption, description),)


def _dots(
    found: Searched, m: np.ndarray, means: np.ndarray, kept: np.ndarray, decimals: int
) -> go.Scatter:
    labels = [found.tried[index].cell.label for index in kept]
    return go.Scatter(
        x=m[kept],
        y=means[kept],
        mode="markers",
        marker={"size": 6, "color": LIGHT["quiet"], "symbol": "circle-open"},
        name="one configuration",
        hoverinfo="text",
        hovertext=[
            f"<b>{safe(label)}</b><br>{DASH if np.isnan(mean) else number(mean, decimals)}"
            for label, mean in zip(labels, means[kept], strict=True)
        ],
    )


def _range(means: np.ndarray, found: Searched, goal: str) -> tuple[float, float]:
    """Return the part of the axis that holds the better three quarters, and every best so far."""
    sign = 1.0 if goal == "min" else -1.0
    losses = sign * means[np.isfinite(means)]
    bests = sign * found.running[np.isfinite(found.running)]
    best, worst = losses.min(), max(np.quantile(losses, 0.75), bests.max())
    pad = 0.06 * (worst - best) or 0.01 * abs(best) or 1.0
    ends = sorted((sign * (best - pad), sign * (worst + pad)))
    return float(ends[0]), float(ends[1])
