"""Cells that are not shown to be above what guessing gives, where the task says what that is."""

from __future__ import annotations

from ablate.analysis.comparisons import Comparisons, Row
from ablate.analysis.formatting import measure_words, some_of
from ablate.analysis.frame import StudyResults

_ACCURACIES = ("accuracy", "acc", "acc_norm")
_GUESSES = ("chance", "majority")
"""Any possible answer, and always the most frequent one."""


def guessing(results: StudyResults, cell: str) -> float | None:
    """What a cell's primary measure is without any knowledge, as its finished trials have it.

    Tasks record `chance_accuracy` and `majority_accuracy`, or `chance@SET` and `majority@SET`, and
    of an accuracy over all sets further ones, such as `chance_accuracy_among_pairs`; the largest
    counts. None for another measure, or where none is recorded.
    """
    base, _, of = results.primary.rpartition("/")[2].partition("@")
    if base not in _ACCURACIES or results.goal != "max":
        return None
    known = {name for kind in _GUESSES for name in (f"{kind}_accuracy", f"{kind}@{of}")}
    found = [
        float(value)
        for trial in results.by_cell[cell]
        if trial.state == "done"
        for name, value in trial.info.items()
        if name in known or (not of and name.startswith("chance_accuracy_"))
    ]
    return max(found, default=None)


def chance_limit(results: StudyResults, comparisons: Comparisons) -> str | None:
    """Name the cells whose interval reaches down to guessing; None if there are none."""
    known = {row.cell.id: guessing(results, row.cell.id) for row in comparisons.rows}
    scored = [row for row in comparisons.rows if row.summary.n and known[row.cell.id] is not None]
    low = [row for row in scored if _reaches(row, known[row.cell.id])]
    if not low:
        return None
    levels = {f"{known[row.cell.id]:.3g}" for row in low}
    level = levels.pop() if len(levels) == 1 else "a level of its own for each"
    if len(low) == len(scored):
        return (
            f"In {measure_words(results.primary)} no cell is shown to be above guessing ({level}): "
            "differences between cells that have learned nothing say nothing of them."
        )
    named = some_of([row.cell.label for row in low])
    verb = "is" if len(low) == 1 else "are"
    return f"{named} {verb} not shown to be above guessing ({level})."


def _reaches(row: Row, guess: float | None) -> bool:
    least = row.summary.mean if row.summary.low is None else row.summary.low
    return guess is not None and least is not None and least <= guess
