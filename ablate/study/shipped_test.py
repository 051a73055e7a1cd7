"""Every study that comes with Ablate: all its cells are made, and two whole plans.

The large ones take a minute each to count, which is not done here."""

from __future__ import annotations

import pytest

from ablate.analysis.claims import check_claim, parse_claim
from ablate.experiments.catalogue import study_names
from ablate.study.configure import Configured, Workshop
from ablate.study.designs import points
from ablate.study.expand import all_factors, expand
from ablate.study.load import load_study
from ablate.study.plan import make_plan
from ablate.study.schema import Study

LARGE = "_paper"
SMALL = [name for name in study_names() if not name.endswith(LARGE)]
PAIRS = [(name.removesuffix(LARGE), name) for name in study_names() if name.endswith(LARGE)]


def cells(name: str) -> tuple[Study, list[Configured]]:
    """What the study declares, and its cells resolved but not built or counted."""
    declared, file = load_study(name)
    workshop = Workshop(declared, file.name)
    designs = expand(workshop)
    made = [
        workshop.configure(point.levels)
        for one in designs
        for point in points(one.design, one.factors, one.where)
    ]
    factors = {factor.key: factor.levels for factor in all_factors(designs)}
    for text in declared.claims:
        check_claim(parse_claim(text), factors, made[0].task.metrics)
    return declared, made


@pytest.mark.parametrize("name", SMALL)
def test_every_small_study_makes_distinct_cells_that_it_can_compare(name: str) -> None:
    declared, made = cells(name)
    assert declared.question
    assert len(declared.seeds) >= 3
    assert len({cell.id for cell in made}) == len(made) > 1


@pytest.mark.parametrize(("small", "large"), PAIRS)
def test_a_papers_size_is_the_same_study_with_larger_numbers(small: str, large: str) -> None:
    (few, _), (many, made) = cells(small), cells(large)
    assert (many.task, many.question, many.claims) == (few.task, few.question, few.claims)
    assert {key for one in many.all_designs.values() for key in one.factors} == {
        key for one in few.all_designs.values() for key in one.factors
    }
    assert len({cell.id for cell in made}) == len(made) > 1
    assert not {cell.id for cell in made} & {cell.id for cell in cells(small)[1]}


@pytest.mark.parametrize("name", ["capacity", "yaad_table4"])
def test_a_plan_of_one_with_a_model_and_of_one_without(name: str) -> None:
    plan = make_plan(name)
    assert len(plan.trials()) == len(plan.cells) * len(plan.seeds)
    assert all(cell.id for cell in plan.cells)
