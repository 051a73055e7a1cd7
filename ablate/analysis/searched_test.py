"""What a search has found: the ranking, the running best and the honest value, by hand."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from ablate.analysis.attribution import importance
from ablate.analysis.comparisons import compare
from ablate.analysis.example_designs import search_study
from ablate.analysis.example_study import example_study
from ablate.analysis.frame import StudyResults
from ablate.analysis.searched import searched
from ablate.analysis.verdict import conclude


def table(results: StudyResults) -> np.ndarray:
    """Values of the configurations, [configurations, seeds]."""
    return np.array([[results.values[c.id][s] for s in results.seeds] for c in results.cells])


def broken(results: StudyResults, states: dict[tuple[int, int], str]) -> StudyResults:
    ids = {cell.id: index for index, cell in enumerate(results.cells)}
    trials = tuple(
        dataclasses.replace(t, state=states.get((ids[t.cell], t.seed), t.state))
        for t in results.trials
    )
    return dataclasses.replace(results, trials=trials)


def test_every_number_is_that_of_the_values() -> None:
    results = search_study(trials=12, noise=0.02)
    found, scores = searched(results), table(results)
    assert found is not None
    means = scores.mean(axis=1)
    assert [one.cell.id for one in found.ranked] == [results.cells[i].id for i in means.argsort()]
    assert found.ranked[0].summary.mean == pytest.approx(means.min())
    np.testing.assert_allclose(found.running, [means[: i + 1].min() for i in range(12)])
    for m in (1, 2, 3):
        drawn = [min(some) for some in itertools.combinations(means, m)]
        assert found.expected[m - 1] == pytest.approx(np.mean(drawn))
    # With two seeds, each judges what the other chooses.
    held = [scores[scores[:, 1].argmin(), 0], scores[scores[:, 0].argmin(), 1]]
    assert found.judged is not None
    assert found.judged.honest.estimate == pytest.approx(np.mean(held))
    assert (found.planned, found.seeds, len(found.tried)) == (12, (0, 1), 12)


def test_a_search_under_way_counts_what_has_ended() -> None:
    states = {(11, 1): "running", (10, 0): "missing", (10, 1): "missing", (0, 1): "diverged"}
    results = broken(search_study(trials=12), states)
    found = searched(results)
    assert found is not None
    assert (found.planned, len(found.tried), len(found.ranked)) == (12, 10, 9)
    assert math.isinf(found.running[0])
    assert np.isfinite(found.running[1:]).all()
    assert found.judged is not None
    nothing = broken(results, dict.fromkeys(itertools.product(range(12), range(2)), "missing"))
    assert searched(nothing) is None


def test_a_search_with_one_of_the_studys_seeds_cannot_judge_its_choice() -> None:
    results = search_study(trials=12, seeds=3)
    later = dict.fromkeys(itertools.product(range(12), (1, 2)), "missing")
    found = searched(broken(results, later))
    assert found is not None
    assert (found.seeds, len(found.ranked), found.judged) == ((0,), 12, None)
    assert found.refusal.startswith("the best of 12 settings cannot be judged on the one seed")


def test_more_is_better_where_the_goal_says_so() -> None:
    results = dataclasses.replace(search_study(trials=12), goal="max")
    found, means = searched(results), table(results).mean(axis=1)
    assert found is not None
    assert found.ranked[0].summary.mean == pytest.approx(means.max())
    np.testing.assert_allclose(found.running, np.maximum.accumulate(means))


def test_other_studies_are_no_search() -> None:
    assert searched(example_study()) is None


def test_the_headline_names_the_best_and_calls_nothing_better() -> None:
    results = search_study()
    found = searched(results)
    assert found is not None
    said = conclude(results, compare(results))
    headline = said.headline
    assert [text[:33] for text in said.limits] == ["A search chooses where to look by"]
    best = found.ranked[0]
    assert headline.startswith(f"The best of 40 configurations so far is {best.cell.label}, 2.30")
    assert headline.endswith("bits per byte as it looks.")


def test_importance_finds_the_axis_that_matters_by_its_logarithm() -> None:
    found = importance(search_study(trials=60))
    assert found.trials == 60
    assert found.axes["train.lr"].estimate > 0.6
    assert found.axes["window"].estimate < 0.2


def test_a_range_that_does_not_apply_everywhere_is_still_a_number() -> None:
    results = search_study(trials=60)
    # The window is there for small rates only; elsewhere it does not apply.
    cells = tuple(
        dataclasses.replace(cell, axes={**cell.axes, "window": None})
        if float(cell.axes["train.lr"] or 0) > 0.01
        else cell
        for cell in results.cells
    )
    found = importance(dataclasses.replace(results, cells=cells))
    assert set(found.axes) == {"train.lr", "window"}
    assert found.axes["train.lr"].estimate > 0.3
