"""What the task scored beside the measure that the study is about: means, and nothing tested."""

from __future__ import annotations

from ablate.analysis.effects import summarise
from ablate.analysis.formatting import decimals_for_values, measure_words, with_half_width
from ablate.analysis.frame import StudyResults
from ablate.dashboards.section import Section
from ablate.dashboards.text_table import TextTable

_ERROR = "_stderr"
"""What a scorer says of its own sample; our intervals are over seeds."""


def measures_section(results: StudyResults) -> Section | None:
    """Return tables of cells by measure, one for all sets or lengths of a score; None without."""
    tables = tuple(_table(results, names) for names in _grouped(_others(results), results.primary))
    if not tables:
        return None
    primary = measure_words(results.primary)
    return Section(
        name="measures",
        title="Other measures",
        lead=(
            "Means over finished trials and, after \N{PLUS-MINUS SIGN}, half the width of their "
            f"95 % interval. Nothing here is tested: the study compares {primary}, and among many "
            "measures some differ by chance.",
        ),
        tables=tables,
    )


def _others(results: StudyResults) -> list[str]:
    """Metrics of finished trials of the primary measure's family, in the order of the task's."""
    family, slash, _ = results.primary.rpartition("/")
    found: dict[str, None] = {}
    for trials in results.by_cell.values():
        for trial in trials:
            if trial.state == "done":
                found |= dict.fromkeys([*trial.summary, *results.curves.get(trial.id, {})])
    return [
        name
        for name in found
        if slash and name.startswith(family + slash) and not _base(name).endswith(_ERROR)
    ]


def _base(name: str) -> str:
    return name.partition("@")[0]


def _grouped(names: list[str], primary: str) -> list[list[str]]:
    """Names that differ in what follows an @ together; those that stand alone as one group.

    The primary measure is only among its like: the study's own table has it.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_base(name), []).append(name)
    alone = [name for group in groups.values() if len(group) == 1 for name in group]
    together = [group for group in groups.values() if len(group) > 1]
    return [group for group in ([n for n in alone if n != primary], *together) if group]


def _table(results: StudyResults, names: list[str]) -> TextTable:
    summaries = {
        name: [summarise(list(results.metric(cell.id, name).values())) for cell in results.cells]
        for name in names
    }
    columns = []
    for found in summaries.values():
        decimals = decimals_for_values((), found)
        columns.append([with_half_width(summary, decimals) for summary in found])
    trials = [max(found[i].n for found in summaries.values()) for i in range(len(results.cells))]
    base, *others = dict.fromkeys(map(_base, names))
    return TextTable(
        caption=f"{'All others' if others or len(names) == 1 else measure_words(base)}:",
        alignment="l" + "r" * (1 + len(names)),
        heading=("Cell", "n", *(_heading(name, alone=bool(others)) for name in names)),
        rows=tuple(
            (results.cells[i].label, str(trials[i]), *(column[i] for column in columns))
            for i in range(len(results.cells))
            if trials[i]
        ),
    )


def _heading(name: str, *, alone: bool) -> str:
    words, at, of = measure_words(name).partition("@")
    return words + at + of if alone or not at else at + of
