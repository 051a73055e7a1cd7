"""The front by its definition, cell by cell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.analysis.comparisons import Row, compare
from ablate.analysis.effects import summarise
from ablate.analysis.example_study import example_study
from ablate.analysis.pareto import front

ROW = compare(example_study()).rows[0]
NUMBERS = st.integers(0, 4).map(float)


def row(cost: float | None, mean: float | None) -> Row:
    from dataclasses import replace

    return replace(ROW, seconds=cost, summary=summarise([] if mean is None else [mean]))


@pytest.mark.parametrize("goal", ["min", "max"])
@given(points=st.lists(st.tuples(NUMBERS, NUMBERS), max_size=8))
def test_a_cell_is_on_the_front_if_no_other_is_better_in_one_and_no_worse_in_the_other(
    goal: str, points: list[tuple[float, float]]
) -> None:
    rows = [row(cost, mean) for cost, mean in points]
    sign = 1 if goal == "min" else -1
    expected = [
        index
        for index, (cost, mean) in enumerate(points)
        if not any(
            c <= cost and sign * m <= sign * mean and (c, m) != (cost, mean) for c, m in points
        )
    ]
    found = front(rows, lambda one: one.seconds, goal)
    assert sorted(map(id, found)) == sorted(id(rows[index]) for index in expected)
    assert [one.seconds for one in found] == sorted(one.seconds or 0 for one in found)


def test_cells_without_the_numbers_are_left_out() -> None:
    rows = [row(None, 1.0), row(1.0, None), row(2.0, 3.0)]
    assert front(rows, lambda one: one.seconds, "min") == rows[2:]
