"""Two studies side by side, against scipy's Welch test and by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy import stats

from ablate.analysis.example_designs import factorial_study
from ablate.analysis.example_study import example_study
from ablate.analysis.two_studies import side_by_side, welch
from ablate.errors import UserError


def test_the_difference_is_welchs() -> None:
    left, right = np.array([1.0, 2.0, 4.0]), np.array([2.0, 2.5, 7.0, 9.0])
    found, p = welch(right, left)
    expected = stats.ttest_ind(right, left, equal_var=False)
    bounds = expected.confidence_interval(0.95)
    assert found.estimate == pytest.approx(right.mean() - left.mean())
    assert (found.low, found.high) == (pytest.approx(bounds.low), pytest.approx(bounds.high))
    assert p == pytest.approx(expected.pvalue)


@pytest.mark.parametrize("values", [[1.0], [2.0, 2.0]])
def test_without_scatter_there_is_no_interval(values: list[float]) -> None:
    found, p = welch(values, values)
    assert (found.estimate, found.low, found.high, p) == (0.0, None, None, None)


def test_cells_meet_by_label_and_none_is_lost() -> None:
    first = example_study(states={("window=1", seed): "failed" for seed in range(3)})
    second = dataclasses.replace(example_study(5), cells=example_study().cells[:4])
    found = side_by_side(first, second)
    labels = [pair.label for pair in found.pairs]
    assert labels == [cell.label for cell in first.cells]
    baseline, only, empty = found.pairs[0], found.pairs[-1], found.pairs[4]
    values = [first.values[first.cells[0].id], second.values[first.cells[0].id]]
    assert baseline.difference is not None
    assert baseline.difference.estimate == pytest.approx(
        np.mean(list(values[1].values())) - np.mean(list(values[0].values()))
    )
    assert baseline.same
    assert (only.second, only.difference) == (None, None)
    assert empty.label == "window=1"
    assert empty.difference is None


def test_settings_that_differ_are_named() -> None:
    first = example_study()
    second = dataclasses.replace(first, task_args={**first.task_args, "context": 128})
    assert side_by_side(first, second).notes == (
        "The task arguments differ: context (256 and 128).",
    )


def test_different_measures_are_refused() -> None:
    other = dataclasses.replace(factorial_study(), primary="val/accuracy", goal="max", study="b")
    with pytest.raises(UserError, match="their cells cannot be compared"):
        side_by_side(example_study(), other)
