"""Learnability against sums by hand on the curves of the study."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ablate.analysis.comparisons import compare
from ablate.analysis.example_study import example_study
from ablate.analysis.learnability import learnability


def test_every_number_comes_from_the_curves() -> None:
    results = example_study(states={("window=1", 0): "diverged"})
    found = learnability(results)
    assert found is not None
    assert found.half == 1_000_000
    baseline = results.learning_curves(results.cells[0].id).values()
    halfway = [np.interp(math.log(1e6), np.log(c.tokens), c.values) for c in baseline]
    assert found.target == pytest.approx(np.mean(halfway))
    assert found.rows[0].halfway.mean == pytest.approx(np.mean(halfway))
    for row, compared in zip(found.rows, compare(results).rows, strict=True):
        assert row.area.mean == pytest.approx(compared.area)


def test_trials_that_never_met_the_target_are_censored_and_not_dropped() -> None:
    results = example_study(states={("window=1", 0): "diverged", ("memory=matrix", 1): "missing"})
    found = learnability(results)
    assert found is not None
    by_label = {row.cell.label: row for row in found.rows}
    assert (by_label["window=1"].runs, by_label["window=1"].reached) == (3, 2)
    assert by_label["memory=matrix"].runs == 2
    slow, baseline = by_label["memory=matrix"].median, by_label["baseline"].median
    assert slow is not None
    assert baseline is not None
    assert baseline.estimate < slow.estimate
    assert (slow.low, slow.high) == (None, None)


def test_without_a_curve_there_is_nothing_to_say() -> None:
    labels = [cell.label for cell in example_study().cells]
    states = {(label, seed): "missing" for label in labels for seed in range(3)}
    assert learnability(example_study(states=states)) is None
    assert learnability(example_study(rows=1)) is None
