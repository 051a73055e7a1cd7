from __future__ import annotations

import itertools
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.analysis.factorial import aliases
from ablate.errors import UserError
from ablate.study.designs import points
from ablate.study.factors import make_factors, same
from ablate.study.fractional import generators
from ablate.study.schema import Design
from ablate.study.space import Point

KINDS = ["one_factor", "full"]


def design(factors: dict[str, Any], **rest: Any) -> Design:
    spelt = {k: v if isinstance(v, dict) else {"levels": v} for k, v in factors.items()}
    return Design.model_validate({"factors": spelt, **rest})


def plan(factors: dict[str, Any], **rest: Any) -> list[Point]:
    declared = design(factors, **rest)
    return points(declared, make_factors(declared, "s.yaml: design"), "s.yaml: design")


def frozen(found: list[Point]) -> set[frozenset[tuple[str, Any]]]:
    return {frozenset(point.levels.items()) for point in found}


def test_one_factor_changes_one_thing_at_a_time() -> None:
    found = plan({"a": [1, 2, 3], "b": ["x", "y"]})
    assert [point.levels for point in found] == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": "x"},
        {"a": 3, "b": "x"},
        {"a": 1, "b": "y"},
    ]
    assert found[0].compared_with is None
    assert all(point.compared_with == found[0].levels for point in found[1:])


FACTORS = st.dictionaries(
    st.sampled_from("abcdef"),
    st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True),
    max_size=5,
)


@given(FACTORS, st.randoms(use_true_random=False))
def test_full_is_the_product_in_any_order_of_keys(factors: dict[str, Any], random: Any) -> None:
    found = plan(factors, kind="full")
    assert len(found) == len(frozen(found)) == math.prod(map(len, factors.values()))
    keys = list(factors)
    random.shuffle(keys)
    assert frozen(plan({key: factors[key] for key in keys}, kind="full")) == frozen(found)
    assert found[0].levels == {key: levels[0] for key, levels in factors.items()}


@given(FACTORS)
def test_one_factor_is_the_baseline_and_every_other_level(factors: dict[str, Any]) -> None:
    found = plan(factors)
    assert len(found) == 1 + sum(len(levels) - 1 for levels in factors.values())
    assert len(frozen(found)) == len(found)


MUON_ONLY = {"levels": [5, 1, 3], "when": {"inner_optimizer": "muon"}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizers", [["muon", "gd"], ["gd", "muon"]])
def test_a_conditional_factor_exists_where_its_condition_holds(
    kind: str, optimizers: list[str]
) -> None:
    found = plan({"inner_optimizer": optimizers, "steps": MUON_ONLY}, kind=kind)
    assert frozen(found) == {
        frozenset({("inner_optimizer", "gd")}),
        *(frozenset({("inner_optimizer", "muon"), ("steps", k)}) for k in (5, 1, 3)),
    }


def test_a_conditional_factor_is_compared_where_it_applies() -> None:
    found = plan({"inner_optimizer": ["gd", "muon"], "steps": MUON_ONLY})
    compared = {str(point.levels.get("steps")): point.compared_with for point in found}
    assert compared["None"] is None
    assert compared["5"] == {"inner_optimizer": "gd"}
    assert compared["1"] == compared["3"] == {"inner_optimizer": "muon", "steps": 5}


def test_conditions_may_follow_one_another_in_any_order() -> None:
    chain = {
        "c": {"levels": [1, 2], "when": {"b": 2}},
        "b": {"levels": [1, 2], "when": {"a": [2, 3]}},
        "a": [1, 2, 3],
    }
    found = plan(chain, kind="full")
    assert len(found) == 1 + 2 * (1 + 2)
    assert len(plan(chain)) == len(frozen(plan(chain))) == 5


def test_excluded_combinations_are_left_out() -> None:
    factors = {"memory": ["mlp", "matrix"], "window": [16, 1, 4]}
    found = plan(factors, kind="full", exclude=[{"memory": "matrix", "window": [1, 4]}])
    assert len(found) == 4
    assert frozenset({("memory", "matrix"), ("window", 16)}) in frozen(found)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"memory": "mlp"}, "s.yaml: design.exclude.0 removes the baseline."),
        ({"memory": "matrix", "window": 1}, "s.yaml: design.exclude.0 matches no cell that is s"),
        ({"memry": "mlp"}, "s.yaml: design.exclude.0: 'memry' is no factor. Did you mean 'memory'"),
        ({"window": 2}, "s.yaml: design.exclude.0: '2' is no level of window. Valid: 1, 16."),
        ({}, "s.yaml: design.exclude.0 is empty; it would exclude every cell."),
    ],
)
def test_a_bad_exclusion_is_told(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        plan({"memory": ["mlp", "matrix"], "window": [16, 1]}, exclude=[rule])
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("factors", "rest", "message"),
    [
        ({"a": [1, 2, 1.0]}, {}, "s.yaml: design.factors.a: level 1.0 is given twice."),
        ({"a": [1]}, {"kind": "ful"}, "s.yaml: design.kind: 'ful' is no kind of design. Did you m"),
        (
            {"a": [1], "b": {"levels": [1], "when": {"c": 1}}},
            {},
            "s.yaml: design.factors.b.when: 'c' is no factor.",
        ),
        (
            {"a": [1], "b": {"levels": [1], "when": {"a": 2}}},
            {},
            "s.yaml: design.factors.b.when: '2' is no level of a. Valid: 1.",
        ),
        (
            {"a": {"levels": [1], "when": {"b": 1}}, "b": {"levels": [1], "when": {"a": 1}}},
            {},
            "s.yaml: design.factors: the conditions of a, b lead in a circle.",
        ),
        (
            {key: list(range(10)) for key in "abcdefghij"},
            {"kind": "full"},
            "s.yaml: design: 10,000,000,000 cells, at most 10,000 are run. kind: one_factor has",
        ),
    ],
)
def test_a_bad_design_is_told(factors: dict[str, Any], rest: Any, message: str) -> None:
    began = time.perf_counter()
    with pytest.raises(UserError) as caught:
        plan(factors, **rest)
    assert str(caught.value).startswith(message)
    assert time.perf_counter() - began < 2, "counted, not listed"


def test_levels_compare_by_value_but_true_is_no_number() -> None:
    assert same(1, 1.0)
    assert not same(True, 1)
    assert not same(None, "null")
    assert len(plan({"a": [True, 1, None, "1"]})) == 4


def test_a_cap_draws_so_many_of_a_design_that_is_too_large() -> None:
    large = {key: list(range(10)) for key in "abcdefghij"}
    found = plan(large, kind="full", cap=50)
    assert len(frozen(found)) == 50
    assert found[0].levels == dict.fromkeys("abcdefghij", 0)
    assert [p.levels for p in plan(large, kind="full", cap=50)] == [p.levels for p in found]
    assert len(plan({"a": [1, 2]}, kind="full", cap=50)) == 2


def test_zipped_factors_move_together() -> None:
    factors = {"a": [1, 2, 3], "b": ["x", "y", "z"], "c": [0, 1]}
    found = plan(factors, kind="full", zip=[["a", "b"]])
    pairs = {(point.levels["a"], point.levels["b"]) for point in found}
    assert len(found) == 6
    assert pairs == {(1, "x"), (2, "y"), (3, "z")}
    assert len(plan(factors, zip=[["a", "b"]])) == 1 + 2 + 1
    with pytest.raises(UserError, match="zip.0: zipped factors need as many levels each, but a"):
        plan(factors, zip=[["a", "c"]])


def test_zipped_blocks_move_together() -> None:
    blocks = {"long": {"levels": [64, 128]}, "rows": {"levels": [8, 4]}, "x": {"levels": [0, 1]}}
    found = plan({"a": [1, 2], "b": [1, 2]}, blocks=blocks, zip=[["a", "b"], ["long", "rows"]])
    assert len(found) == 2 * 2 * 2
    assert {(p.levels["long"], p.levels["rows"]) for p in found} == {(64, 8), (128, 4)}
    assert {(p.levels["a"], p.levels["b"]) for p in found} == {(1, 1), (2, 2)}
    second = found[-1]
    assert second.levels == {"long": 128, "rows": 4, "x": 1, "a": 2, "b": 2}
    assert second.compared_with == {"long": 128, "rows": 4, "x": 1, "a": 1, "b": 1}
    with pytest.raises(UserError, match="zip.0: x is a block and a is not"):
        plan({"a": [1, 2]}, blocks=blocks, zip=[["a", "x"]])
    three = blocks | {"rows": {"levels": [8, 4, 2]}}
    with pytest.raises(UserError, match="zip.1: zipped factors need as many levels each, but long"):
        plan({"a": [1, 2], "b": [1, 2]}, blocks=three, zip=[["a", "b"], ["long", "rows"]])


def test_of_zipped_blocks_one_may_stay_while_another_moves() -> None:
    blocks = {"wide": {"levels": [768, 1024, 1536]}, "deep": {"levels": [12, 24, 24]}}
    found = plan({"a": [1, 2]}, blocks=blocks, zip=[["wide", "deep"]])
    assert [(p.levels["wide"], p.levels["deep"]) for p in found[::2]] == [
        (768, 12), (1024, 24), (1536, 24)
    ]  # fmt: skip
    with pytest.raises(UserError, match="deep: level 24 is given twice"):
        plan({"a": [1, 2]}, blocks=blocks)
    blocks["wide"] = {"levels": [768, 1024, 1024]}
    with pytest.raises(UserError, match="zip.0: the same levels of all are given twice"):
        plan({"a": [1, 2]}, blocks=blocks, zip=[["wide", "deep"]])


def test_a_design_is_repeated_in_every_block() -> None:
    blocks = {"task_args.corpus": {"levels": ["prose", "code"]}}
    found = plan({"a": [1, 2], "b": [1, 2]}, blocks=blocks)
    assert len(found) == 2 * 3
    code = [point for point in found if point.levels["task_args.corpus"] == "code"]
    assert code[0].compared_with == {"task_args.corpus": "prose", "a": 1, "b": 1}
    assert code[1].compared_with == {"task_args.corpus": "code", "a": 1, "b": 1}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("window <= chunk", 3),
        ("window == 1 or chunk in [4, 8]", 3),
        ("not (window * 2 > chunk)", 2),
        ("other.size != null", 0),
    ],
)
def test_a_constraint_keeps_the_cells_that_meet_it(text: str, kept: int) -> None:
    factors = {"window": [1, 4], "chunk": [4, 2]}
    if not kept:
        with pytest.raises(UserError, match="constraints.0: 'other.size' is no factor"):
            plan(factors, kind="full", constraints=[text])
        return
    assert len(plan(factors, kind="full", constraints=[text])) == kept


@pytest.mark.parametrize(
    "text", ["__import__('os')", "window.__class__", "1 <", "lambda: 1", "f'x'"]
)
def test_a_constraint_is_no_program(text: str) -> None:
    with pytest.raises(UserError, match="constraints.0"):
        plan({"window": [1, 4]}, kind="full", constraints=[text])


def resolution(words: list[int]) -> int:
    """The length of the shortest product of columns that is the mean."""
    for size in range(1, len(words) + 1):
        for some in itertools.combinations(words, size):
            product = 0
            for word in some:
                product ^= word
            if product == 0:
                return size
    return len(words) + 1


@given(st.integers(1, 9), st.integers(3, 5))
def test_a_regular_fraction_has_the_resolution_that_it_claims(factors: int, wanted: int) -> None:
    words = generators(factors, wanted)
    assert len(words) == factors
    assert resolution(words) >= min(wanted, factors + 1)


@pytest.mark.parametrize(
    ("factors", "wanted", "runs"), [(3, 3, 4), (7, 3, 8), (15, 3, 16), (8, 4, 16), (5, 5, 16)]
)
def test_a_regular_fraction_is_as_small_as_the_textbooks(
    factors: int, wanted: int, runs: int
) -> None:
    found = plan({f"f{i}": [0, 1] for i in range(factors)}, kind="fractional", resolution=wanted)
    assert len(frozen(found)) == runs
    assert found[0].compared_with is None
    assert set(found[0].levels.values()) == {0}


def test_a_budget_of_runs_buys_the_highest_resolution() -> None:
    factors = {f"f{i}": [0, 1] for i in range(5)}
    assert len(plan(factors, kind="fractional", runs=17)) == 16
    assert len(plan(factors, kind="fractional", runs=8)) == 8
    with pytest.raises(UserError, match="runs is 6: 5 factors at resolution 3 need 8"):
        plan(factors, kind="fractional", runs=6)


def test_a_mixed_fraction_tells_all_main_effects_apart() -> None:
    factors = {
        "a": [1, 2, 3, 4],
        "b": [1, 2, 3],
        "c": [1, 2],
        "d": {"levels": [1, 2, 3], "when": {"c": 1}},
    }
    found = plan(factors, kind="fractional", runs=14, exclude=[{"a": 2, "b": 3}])
    assert len(frozen(found)) == 14
    assert not any(p.levels["a"] == 2 and p.levels["b"] == 3 for p in found)
    columns = {key: [str(point.levels.get(key)) for point in found] for key in "abc"}
    assert aliases(columns, [("a",), ("b",), ("c",)]) == []
    with pytest.raises(UserError, match="runs is 5: main effects and the mean are 9 numb"):
        plan(factors, kind="fractional", runs=5)
