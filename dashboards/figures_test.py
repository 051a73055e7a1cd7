"""Figures hold what the analysis found, and nothing that it did not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ablate.analysis.comparisons import compare
from ablate.analysis.example_study import example_study
from ablate.dashboards.curve_figure import reference_lines
from ablate.dashboards.figures import figures
from ablate.dashboards.theme import dark_of_light, log_axis, round_ticks

NAMES = {"effects", "learning_curves", "cost_flops", "cost_state", "cost_time"}


def test_every_figure_of_a_finished_study() -> None:
    assert set(figures(example_study())) == NAMES


def test_effects_hold_each_difference_and_interval() -> None:
    results = example_study(states={("window=1", 0): "failed"})
    figure = figures(results)["effects"]
    drawn = {}
    names = figure.layout.yaxis.ticktext
    for trace in figure.data[1:]:
        for x, y, half in zip(trace.x, trace.y, trace.error_x.array, strict=True):
            drawn[names[y]] = (x, half)
    rows = [(row.cell.label, row.effect) for row in compare(results).rows if row.effect]
    assert len(drawn) == len(rows) == 8
    for label, effect in rows:
        x, half = drawn[label + (" (n = 2)" if effect.n == 2 else "")]
        assert x == effect.difference
        assert x + half == pytest.approx(effect.high)
    assert list(names) == [n for n, _ in sorted(drawn.items(), key=lambda item: item[1][0])]
    assert len(figure.data[0].x) == 7 * 3 + 2


@pytest.mark.parametrize(("goal", "left"), [("min", "better"), ("max", "worse")])
def test_the_sides_of_zero_are_named_by_the_goal(goal: str, left: str) -> None:
    figure = figures(dataclasses.replace(example_study(), goal=goal))["effects"]
    texts = [annotation.text for annotation in figure.layout.annotations]
    assert texts[0] == f"← {left}"


def test_cells_with_equal_labels_keep_their_own_lines() -> None:
    results = example_study()
    cells = tuple(dataclasses.replace(cell, label="4") for cell in results.cells)
    figure = figures(dataclasses.replace(results, cells=cells))["effects"]
    heights = [y for trace in figure.data[1:] for y in trace.y]
    assert sorted(heights) == list(range(8))


def test_learning_curves_end_at_the_mean_of_the_values() -> None:
    results = example_study()
    figure = figures(results)["learning_curves"]
    row = next(row for row in compare(results).rows if row.cell.label == "window=1")
    upper, lower = (trace for trace in figure.data if trace.name == "window=1")
    assert upper.y[-1] == pytest.approx(row.summary.mean)
    assert row.effect is not None
    assert lower.y[-1] == pytest.approx(row.effect.difference)


def test_one_seed_has_lines_without_bands() -> None:
    figure = figures(example_study(seeds=1))["learning_curves"]
    assert [trace.fill for trace in figure.data if trace.fill] == []


def test_figures_that_cannot_be_filled_are_absent() -> None:
    labels = [cell.label for cell in example_study().cells]
    states = {(label, seed): "diverged" for label in labels for seed in range(3)}
    assert figures(example_study(states=states)) == {}


def test_reference_lines_are_the_tasks_facts_about_the_measure() -> None:
    results = example_study()
    assert reference_lines(results) == {"unigram": 4.54, "bigram": 3.48}
    info = {
        "chance_accuracy": 0.1,
        "chance_accuracy_among_pairs": 0.25,
        "accuracy": 1.0,
        "other": 3,
        "zero_accuracy": float("nan"),
    }
    trials = (dataclasses.replace(results.trials[0], info=info),)
    other = dataclasses.replace(results, trials=trials, primary="val/accuracy")
    assert reference_lines(other) == {"chance among pairs": 0.25, "chance": 0.1}


def test_colours_of_figures_have_a_dark_value() -> None:
    swaps = dark_of_light()
    assert len(set(swaps)) == len(swaps)
    text = "".join(figure.to_json() for figure in figures(example_study()).values())
    used = {f"#{part[:6]}" for part in text.split("#")[1:]}
    assert used
    assert used <= set(swaps)


def test_ticks_are_few_and_round() -> None:
    assert round_ticks(30_000, 2_000_000) == [50e3, 100e3, 200e3, 500e3, 1e6, 2e6]
    assert round_ticks(53_248, 200_704, base=2) == [65_536, 131_072]
    assert len(round_ticks(1, 1e12)) <= 7
    axis = log_axis("", np.array([10.0, 100.0]), lambda value: f"{value:.1f} k")
    assert list(axis["ticktext"]) == ["10 k", "20 k", "50 k", "100 k"]
