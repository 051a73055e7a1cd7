"""Cells at the level of guessing are named, by what their trials recorded of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ablate.analysis.chance import chance_limit, guessing
from ablate.analysis.comparisons import compare
from ablate.analysis.frame import Cell, StudyResults, Trial
from ablate.analysis.verdict import conclude

SCORES = {"good": (0.8, 0.9, 0.85), "poor": (0.24, 0.25, 0.27), "wide": (0.1, 0.9, 0.5)}


def study(info: dict[str, float | str], primary: str = "val/accuracy") -> StudyResults:
    cells = tuple(
        Cell(id=name, label=name, axes={"model": name}, compared_with=None if i == 0 else "good")
        for i, name in enumerate(SCORES)
    )
    trials = tuple(
        Trial(
            id=f"{cell}{seed}", cell=cell, seed=seed, state="done", info=info,
            summary={primary: value},
        )
        for cell, values in SCORES.items()
        for seed, value in enumerate(values)
    )  # fmt: skip
    return StudyResults(
        study="s", question="", baseline="good", task="mqar", primary=primary, goal="max",
        seeds=(0, 1, 2), cells=cells, trials=trials, curves={},
    )  # fmt: skip


def limit(results: StudyResults) -> str | None:
    return chance_limit(results, compare(results))


def test_cells_whose_interval_reaches_guessing_are_named() -> None:
    results = study({"chance_accuracy": 0.1, "majority_accuracy": 0.25, "haystack": "prose"})
    assert guessing(results, "good") == 0.25
    assert limit(results) == "poor and wide are not shown to be above guessing (0.25)."
    assert limit(results) in conclude(results, compare(results)).limits


def test_a_study_without_any_cell_above_guessing_says_so_first() -> None:
    results = study({"chance_accuracy": 0.95})
    said = limit(results)
    assert said is not None
    assert said.startswith("In accuracy no cell is shown to be above guessing (0.95): differences")
    assert conclude(results, compare(results)).limits[0] == said


@pytest.mark.parametrize(
    ("primary", "info", "level"),
    [
        ("val/accuracy@8", {"chance_accuracy": 0.1, "chance_accuracy_among_pairs": 0.2}, 0.1),
        ("val/accuracy", {"chance_accuracy": 0.1, "chance_accuracy_among_pairs": 0.2}, 0.2),
        ("val/acc@piqa", {"chance@piqa": 0.5, "chance@boolq": 0.6, "majority@piqa": 0.55}, 0.55),
        ("val/loss", {"chance_accuracy": 0.1}, None),
        ("val/accuracy", {}, None),
    ],
)
def test_the_level_is_that_of_the_primary_measure(
    primary: str, info: dict[str, float | str], level: float | None
) -> None:
    assert guessing(study(info, primary), "good") == level


def test_less_is_better_or_nothing_has_finished() -> None:
    results = study({"chance_accuracy": 0.95})
    assert limit(replace(results, goal="min")) is None
    missing = tuple(replace(trial, state="missing") for trial in results.trials)
    assert limit(replace(results, trials=missing)) is None
