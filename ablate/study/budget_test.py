from __future__ import annotations

import pytest

from ablate.errors import UserError
from ablate.study.budget import Proposal, parse_budget, propose
from ablate.study.cells import Cell
from ablate.study.pilot import Pilot
from ablate.study.power import power_of
from ablate.trial.cost import Cost


def cells(*seconds: float | None) -> list[Cell]:
    return [
        Cell(str(i), f"c{i}", {}, {}, None, {}, Cost(seconds_per_trial=value), "")
        for i, value in enumerate(seconds)
    ]


def offers(budget: float, *seconds: float, seeds: int = 3) -> list[Proposal]:
    made = cells(*seconds)
    return propose(made, power_of(seeds, len(made) - 1, Pilot(), "0"), budget)


@pytest.mark.parametrize(
    ("text", "seconds"), [("8h", 28800), ("90m", 5400), (" 1.5 H ", 5400), ("2d", 172800)]
)
def test_a_budget_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["8", "h", "-1h", "0h", "8 weeks"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="write a number and a unit"):
        parse_budget(text)


def test_what_is_proposed_fits_and_uses_the_budget() -> None:
    found = offers(100.0, 10.0, 10.0, 5.0)
    assert (found[0].seeds, found[0].left_out) == (4, ())
    assert all(one.seconds <= 100 for one in found)
    found = offers(125.0, 10.0, 10.0, 5.0)
    kept = next(one for one in found if one.seeds == 6)
    assert (kept.labels, kept.left_out, kept.seconds) == (("c0", "c1"), ("c2",), 120.0)


def test_a_budget_that_pays_for_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="does not pay for one trial of 10 s"):
        offers(5.0, 10.0, 10.0)
    with pytest.raises(UserError, match="this task's is not known"):
        propose(cells(1.0, None), power_of(3, 1, Pilot(), "0"), 9.0)
