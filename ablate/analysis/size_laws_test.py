"""Laws of a study against the law that its numbers were made from."""

from __future__ import annotations

import dataclasses

import pytest

from ablate.analysis.example_designs import factorial_study, size_study
from ablate.analysis.size_laws import size_axes, size_laws


def test_each_memory_has_its_curve_and_the_true_exponent() -> None:
    results = size_study()
    assert size_axes(results) == {"backbone.dim": "N"}
    found = size_laws(results)
    assert found is not None
    assert [curve.name for curve in found.curves] == ["baseline", "memory=matrix"]
    for curve, scale in zip(found.curves, (12.0, 14.0), strict=True):
        assert curve.fit is not None
        assert curve.fit.runs == 18
        assert 0.3 in curve.fit.parameters["alpha"]
        assert scale in curve.fit.parameters["A"]
        assert curve.largest is not None
        assert abs(curve.largest.error) < 0.02
    ((second, first, met),) = found.crossings
    assert (second, first) == ("memory=matrix", "baseline")
    assert met.verdict in ("second below", "undecided")


def test_points_are_the_cells_parameters_and_values() -> None:
    results = size_study()
    found = size_laws(results)
    assert found is not None
    cells = [cell for cell in results.cells if cell.axes["memory"] == "mlp"]
    expected = [
        ((cell.parameters,), seed, value)
        for cell in cells
        for seed, value in sorted(results.values[cell.id].items())
    ]
    assert list(found.curves[0].points) == expected


def test_too_few_sizes_are_refused_with_the_reason() -> None:
    found = size_laws(size_study(sizes=3))
    assert found is not None
    assert [curve.fit for curve in found.curves] == [None, None]
    assert "needs at least 4 sizes of N, got 3" in found.curves[0].refusal
    assert found.crossings == ()


@pytest.mark.parametrize("goal", ["max"])
def test_a_measure_that_rises_has_no_law(goal: str) -> None:
    found = size_laws(dataclasses.replace(size_study(), goal=goal))
    assert found is not None
    assert found.curves[0].refusal.startswith("a scaling law describes a loss")


def test_a_study_without_a_size_has_no_laws() -> None:
    assert size_laws(factorial_study()) is None
