"""Tuned cells: the best of m settings, as it looks and as it is."""

from __future__ import annotations

import math

from ablate.analysis.formatting import (
    DASH,
    decimals_for_values,
    interval,
    listed,
    measure_words,
    number,
    probability,
    several,
    signed,
)
from ablate.analysis.frame import StudyResults
from ablate.analysis.interval import Interval
from ablate.analysis.tuned_cells import TunedCell, tuned_cells
from ablate.dashboards.interval_figure import interval_figure
from ablate.dashboards.section import Drawing, Section
from ablate.dashboards.text_table import TextTable

MOST_DRAWS = 8
"""The table of the expected best shows at most this many m, evenly up to all settings."""


def tuned_section(results: StudyResults) -> Section | None:
    """Return every cell at its best setting, with what the choice owes to luck; None if untuned."""
    cells = tuned_cells(results)
    if not cells:
        return None
    decimals = decimals_for_values([c.effect for c in cells], [])
    refused = [f"Not judged, {cell.name}: {cell.refusal}" for cell in cells if cell.refusal]
    tables = [_best(results, cells, decimals)]
    if max(cell.expected.size for cell in cells) > 1:
        tables.append(_expected(results, cells, decimals))
    return Section(
        name="tuned",
        title="Tuned cells: best of m",
        lead=(_budget(results, cells), *refused),
        drawings=_drawings(results, cells, decimals),
        tables=tuple(tables),
        notes=(
            "Looks like: the best mean over all seeds, which the luck of the draw makes too good. "
            "Held out: for each seed the value of the setting that the other seeds choose, which "
            "is not; differences and p compare these, seed by seed. The choices share seeds, so "
            "interval and p are approximate. A setting with a diverged seed is never chosen.",
            "Expected best of m: the mean, over all ways to draw m of the settings, of the best "
            "mean among them. Cells may be compared in one column only: there both had the same "
            "tuning budget.",
        )[: len(tables)],
    )


def _budget(results: StudyResults, cells: tuple[TunedCell, ...]) -> str:
    """Say what every cell was tuned over, and whether all had the same budget."""
    what = listed(results.tune)
    seeds = several(len(results.seeds), "seed")
    counts = {len(cell.settings) for cell in cells}
    if len(counts) == 1:
        return (
            f"Every cell is tuned over {what}: best of {counts.pop()} of "
            f"{several(cells[0].planned, 'setting')}, with {seeds} each. The budget is equal."
        )
    parts = listed(f"{cell.name} {len(cell.settings)}" for cell in cells)
    return (
        f"Every cell is tuned over {what}, with {seeds} for each setting, but not all have as many "
        f"settings yet: {parts} of {cells[0].planned}. More settings flatter a cell."
    )


def _best(results: StudyResults, cells: tuple[TunedCell, ...], decimals: int) -> TextTable:
    unit = measure_words(results.primary)
    return TextTable(
        caption=f"{unit[:1].upper()}{unit[1:]} of each cell at its best setting of "
        f"{listed(results.tune)}.",
        alignment="lrlrrrrr",
        heading=("Cell", "Best of", "Chosen", "Looks like", "Held out [95 % interval]",
                 "Luck", "Difference [95 % interval]", "p (Holm)"),
        rows=tuple(_row(cell, decimals) for cell in cells),
    )  # fmt: skip


def _row(cell: TunedCell, decimals: int) -> tuple[str, ...]:
    start = (cell.name, f"{len(cell.settings)}/{cell.planned}")
    best = cell.best
    if best is None:
        return (*start, *[DASH] * 6)
    held = number(best.honest.estimate, decimals)
    if best.honest.low is not None:
        held = f"{held} {interval(best.honest.low, best.honest.high, decimals)}"
    elif math.isinf(best.honest.estimate):
        held = "diverged"
    return (
        *start,
        str(best.chosen),
        number(best.naive, decimals),
        held,
        signed(best.optimism, decimals),
        _difference(cell, decimals),
        probability(cell.p_holm),
    )


def _difference(cell: TunedCell, decimals: int) -> str:
    effect = cell.effect
    if effect is None or effect.difference is None:
        return DASH
    text = signed(effect.difference, decimals)
    if effect.low is None:
        return text
    return f"{text} {interval(effect.low, effect.high, decimals)}"


def _drawings(
    results: StudyResults, cells: tuple[TunedCell, ...], decimals: int
) -> tuple[Drawing, ...]:
    drawn = [
        (cell, Interval(effect.difference, effect.low, effect.high))
        for cell in cells
        if (effect := cell.effect) and effect.difference is not None
    ]
    if not drawn:
        return ()
    figure = interval_figure(
        [cell.name for cell, _ in drawn],
        [one for _, one in drawn],
        f"held-out difference in {measure_words(results.primary)}",
        [_difference(cell, decimals) for cell, _ in drawn],
    )
    caption = (
        "Each cell at its best setting against the cell that it is compared with at its own best; "
        "filled where the 95 % interval excludes zero."
    )
    description = "Held-out differences with intervals; every number is in the table below."
    return (Drawing("tuned", figure, caption, description),)


def _expected(results: StudyResults, cells: tuple[TunedCell, ...], decimals: int) -> TextTable:
    most = max(cell.expected.size for cell in cells)
    step = math.ceil(most / MOST_DRAWS)
    shown = sorted({1, *range(step, most + 1, step), most})
    return TextTable(
        caption=f"Expected best {measure_words(results.primary)} of m settings.",
        alignment="l" + "r" * len(shown),
        heading=("Cell", *(f"m = {m}" for m in shown)),
        rows=tuple((cell.name, *(_at(cell, m, decimals) for m in shown)) for cell in cells),
    )


def _at(cell: TunedCell, m: int, decimals: int) -> str:
    if m > cell.expected.size:
        return DASH
    value = float(cell.expected[m - 1])
    return "diverged" if math.isinf(value) else number(value, decimals)
