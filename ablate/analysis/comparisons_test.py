"""Comparisons and verdicts on studies that are whole, broken, uneven and empty."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ablate.analysis.comparisons import Comparisons, Row, Verdict, compare
from ablate.analysis.effects import PairedEffect, summarise
from ablate.analysis.example_study import EFFECTS, PRIMARY, example_study
from ablate.analysis.frame import Curve, StudyResults
from ablate.analysis.verdict import Conclusion, conclude


def by_label(comparisons: Comparisons) -> dict[str, Row]:
    return {row.cell.label: row for row in comparisons.rows}


def effect_of(row: Row) -> PairedEffect:
    assert row.effect is not None
    return row.effect


def texts(results: StudyResults) -> tuple[Conclusion, dict[str, str]]:
    conclusion = conclude(results, compare(results))
    labels = {cell.id: cell.label for cell in results.cells}
    return conclusion, {labels[s.cell]: s.text for s in conclusion.statements}


def test_enough_seeds_find_the_effects_that_are_there() -> None:
    results = example_study(seeds=10, noise=0.002)
    rows = by_label(compare(results))
    assert rows["baseline"].verdict is Verdict.REFERENCE
    for label, effect in EFFECTS.items():
        assert effect_of(rows[label]).difference == pytest.approx(effect, abs=0.004)
    assert rows["memory=matrix"].verdict is Verdict.SIGNIFICANT
    assert rows["memory=matrix"].better is False
    assert rows["retention=none"].better is True


def test_three_seeds_can_never_be_significant_and_the_report_says_so() -> None:
    results = example_study(seeds=3)
    comparisons = compare(results)
    assert comparisons.family == 8
    assert not comparisons.having(Verdict.SIGNIFICANT)
    conclusion, sentences = texts(results)
    assert conclusion.headline.startswith("None of the 8 comparisons is significant")
    assert conclusion.limits[0].startswith(
        "The largest measured difference is that of memory=matrix: +0.0"
    )
    assert conclusion.limits[0].endswith("not established at this number of seeds.")
    assert "smallest p-value that can be reached is 0.25" in conclusion.limits[1]
    assert "over 8 comparisons needs 9 seeds" in conclusion.limits[1]
    said = sentences["window=1"]
    assert "p = 0.25 (smallest reachable with 3 seeds: 0.25), adjusted p = 1.00: not est" in said
    # Nothing that is not established is called better or worse, in either direction.
    assert all("better" not in text and "worse" not in text for text in sentences.values())
    assert "window=1 measured 0.0" in said
    assert " bits per byte higher than baseline (95 % interval of the difference [0.0" in said
    assert " bits per byte lower than baseline " in sentences["retention=none"]


def test_one_seed_gives_differences_without_interval_or_p() -> None:
    rows = by_label(compare(example_study(seeds=1)))
    assert rows["window=1"].verdict is Verdict.ONE_PAIR
    assert effect_of(rows["window=1"]).p is None
    assert rows["window=1"].p_holm is None
    conclusion, sentences = texts(example_study(seeds=1))
    assert conclusion.headline.startswith("No difference can be tested")
    assert sentences["window=1"].endswith("no interval and no p-value, so nothing is established.")


def test_only_seeds_that_finished_in_both_cells_are_paired() -> None:
    states = {("baseline", 0): "failed", ("window=1", 3): "diverged"}
    results = example_study(seeds=5, states=states)
    row = by_label(compare(results))["window=1"]
    assert (row.summary.n, row.reference_n, effect_of(row).n) == (4, 4, 3)
    values = results.values
    common = [1, 2, 4]
    baseline = results.baseline
    assert baseline is not None
    expected = summarise([values[row.cell.id][s] - values[baseline][s] for s in common])
    assert effect_of(row).difference == expected.mean
    assert effect_of(row).low == expected.low
    assert row.counts == {"done": 4, "diverged": 1}
    conclusion, sentences = texts(results)
    assert "with 3 common seeds, 4 here, 4 in the reference" in sentences["window=1"]
    assert any("can flatter" in limit for limit in conclusion.limits)


def test_a_cell_without_a_finished_trial_has_no_value() -> None:
    states = {("window=4", seed): "diverged" for seed in range(3)}
    results = example_study(states=states)
    row = by_label(compare(results))["window=4"]
    assert row.verdict is Verdict.NO_VALUE
    assert row.summary.mean is None
    assert "0 of 3 seeds done, 3 diverged" in texts(results)[1]["window=4"]


def test_identical_cells_are_called_identical() -> None:
    results = example_study()
    twin = next(cell.id for cell in results.cells if cell.label == "window=4")
    curves = {
        trial.id: results.curves[f"{results.baseline}-s{trial.seed}"]
        for trial in results.by_cell[twin]
    }
    results = dataclasses.replace(results, curves={**results.curves, **curves})
    row = by_label(compare(results))["window=4"]
    assert row.verdict is Verdict.IDENTICAL
    assert (effect_of(row).difference, effect_of(row).p, row.better) == (0.0, 1.0, None)
    assert "identical to baseline" in texts(results)[1]["window=4"]


def test_nan_rows_never_enter_a_mean() -> None:
    results = example_study()
    baseline = results.cells[0].id
    trial = results.by_cell[baseline][0]
    broken = Curve(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.5, np.nan]))
    results = dataclasses.replace(results, curves={**results.curves, trial.id: {PRIMARY: broken}})
    assert results.values[baseline][trial.seed] == 2.5


def test_nothing_finished() -> None:
    states = {(cell.label, seed): "missing" for cell in example_study().cells for seed in range(3)}
    results = example_study(states=states)
    comparisons = compare(results)
    assert {row.verdict for row in comparisons.rows} == {Verdict.NO_VALUE}
    assert comparisons.family == 0
    conclusion = conclude(results, comparisons)
    assert conclusion.headline.startswith("No trial has finished yet")
    assert conclusion.limits[0] == "The study is not complete: 0 of 27 trials are done."


def test_a_baseline_that_is_not_in_the_plan() -> None:
    results = example_study()
    results = dataclasses.replace(results, cells=results.cells[1:])
    comparisons = compare(results)
    assert {row.verdict for row in comparisons.rows} == {Verdict.NOT_COMPARED}
    conclusion = conclude(results, comparisons)
    assert conclusion.headline.startswith("The baseline is not in the plan")
    assert len(results.outside_plan) == 3


@pytest.mark.parametrize(("goal", "word"), [("min", "worse"), ("max", "better")])
def test_the_goal_decides_what_better_means(goal: str, word: str) -> None:
    results = dataclasses.replace(example_study(seeds=10, noise=0.002), goal=goal)
    said = texts(results)[1]["memory=matrix"]
    assert said.startswith(f"memory=matrix is {word}: 0.06")
    assert "higher than baseline (95 % interval of the difference [0.0" in said
    assert said.endswith(": significant after Holm.")


def test_results_of_older_code_are_counted_and_said() -> None:
    results = example_study()
    kept = {"window=1": 2, "window=4": 1}
    trials = []
    for trial in results.trials:
        cell = results.cell(trial.cell)
        assert cell is not None
        trials.append(dataclasses.replace(trial, older_code=trial.seed < kept.get(cell.label, 0)))
    results = dataclasses.replace(results, trials=tuple(trials))
    rows = by_label(compare(results))
    assert {label: row.older for label, row in rows.items() if row.older} == kept
    (said,) = (text for text in texts(results)[0].limits if "older code" in text)
    assert said.startswith(
        "3 results were made by older code than the plan's and kept, in window=4"
    )
