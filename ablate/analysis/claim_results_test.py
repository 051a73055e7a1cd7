"""Claims are judged by the cells that differ in the claim's factor alone."""

from __future__ import annotations

import dataclasses

import pytest

from ablate.analysis.claim_results import judge_claims, matched_pairs
from ablate.analysis.claims import parse_claim
from ablate.analysis.comparisons import compare
from ablate.analysis.example_designs import factorial_study
from ablate.analysis.example_study import PRIMARY, example_study
from ablate.analysis.frame import StudyResults


def claiming(*claims: str, results: StudyResults | None = None) -> StudyResults:
    return dataclasses.replace(results or example_study(), claims=claims)


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        (f"effect(memory: mlp -> matrix) on {PRIMARY} > 0.01", "supported"),
        (f"effect(memory: mlp -> matrix) on {PRIMARY} < 0", "refuted"),
        (f"effect(retention: scalar -> none) on {PRIMARY} > 0", "undecided"),
    ],
)
def test_a_verdict_follows_from_the_interval(claim: str, verdict: str) -> None:
    (found,) = judge_claims(claiming(claim))
    assert found.verdict == verdict


def test_the_numbers_are_those_of_the_ablation_table() -> None:
    results = claiming(f"effect(window: 16 -> 1) on {PRIMARY} > 0.01")
    (found,) = judge_claims(results)
    row = next(row for row in compare(results).rows if row.cell.label == "window=1")
    assert row.effect is not None
    assert (found.n, found.difference, found.low, found.high) == (
        3, row.effect.difference, row.effect.low, row.effect.high,
    )  # fmt: skip


def test_two_levels_beside_the_baseline_are_compared_directly() -> None:
    results = claiming(f"effect(window: 4 -> 1) on {PRIMARY} > 0")
    four, one = (
        results.values[cell.id] for cell in results.cells if cell.label in ("window=4", "window=1")
    )
    (found,) = judge_claims(results)
    assert found.pairs == 1
    assert found.difference == pytest.approx(sum(one[s] - four[s] for s in four) / 3)


def test_a_level_that_switches_another_factor_off_still_has_one_partner() -> None:
    claim = parse_claim(f"effect(inner_optimizer: muon -> gd) on {PRIMARY} > 0")
    pairs = [(a.label, b.label) for a, b in matched_pairs(example_study(), claim)]
    assert pairs == [("baseline", "inner_optimizer=gd")]


def test_a_full_design_averages_over_all_pairs() -> None:
    results = claiming(f"effect(window: 16 -> 1) on {PRIMARY} > 0.02", results=factorial_study())
    (found,) = judge_claims(results)
    assert (found.pairs, found.n, found.verdict) == (4, 4, "supported")
    by_window: dict[object, list[float]] = {16: [], 1: []}
    for cell in results.cells:
        by_window[cell.axes["window"]] += results.values[cell.id].values()
    expected = (sum(by_window[1]) - sum(by_window[16])) / 16
    assert found.difference == pytest.approx(expected)


def test_what_was_not_measured_is_undecided_with_a_reason() -> None:
    results = claiming("effect(window: 16 -> 1) on val/accuracy > 0.01")
    (found,) = judge_claims(results)
    assert (found.verdict, found.difference) == ("undecided", None)
    assert found.reason == "no seed finished in all of its cells with a value of val/accuracy"
    (single,) = judge_claims(
        claiming(f"effect(window: 16 -> 1) on {PRIMARY} > 0", results=example_study(seeds=1))
    )
    assert (single.verdict, single.reason) == ("undecided", "one seed has no interval")
