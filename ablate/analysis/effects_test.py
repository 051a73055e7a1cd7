"""The statistics against hand computations, scipy, and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ablate.analysis.effects import (
    EXACT_LIMIT,
    hedges_g,
    holm,
    paired_effect,
    seeds_needed,
    sign_flip_p,
    smallest_p,
    summarise,
)


def test_summary_by_hand() -> None:
    # Mean 2, deviation 1, t(0.975, 2) = 4.302653: half width 4.302653 / sqrt(3) = 2.484138.
    summary = summarise([1.0, 2.0, 3.0])
    assert summary.n == 3
    assert summary.mean == pytest.approx(2.0)
    assert summary.deviation == pytest.approx(1.0)
    assert summary.low == pytest.approx(-0.484138, abs=1e-6)
    assert summary.high == pytest.approx(4.484138, abs=1e-6)


def test_one_seed_has_a_mean_and_nothing_else() -> None:
    summary = summarise([1.5])
    assert (summary.n, summary.mean, summary.low, summary.high) == (1, 1.5, None, None)
    effect = paired_effect([1.5], [1.0])
    assert effect.difference == 0.5
    assert (effect.low, effect.high, effect.p, effect.smallest_p, effect.size) == (None,) * 5


def test_no_pairs_give_no_numbers() -> None:
    effect = paired_effect([], [])
    assert effect.n == 0
    assert effect.difference is None
    assert not effect.identical


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_numbers_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        summarise([1.0, bad])
    with pytest.raises(ValueError, match="finite"):
        paired_effect([1.0, bad], [1.0, 1.0])


def test_pairs_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="2 and 1"):
        paired_effect([1.0, 2.0], [1.0])


@pytest.mark.parametrize("n", [2, 3, 5, 9])
def test_difference_and_interval_equal_scipys_paired_t(n: int) -> None:
    rng = np.random.default_rng(n)
    left, right = rng.normal(1, 2, n), rng.normal(0, 1, n)
    effect = paired_effect(left, right)
    interval = stats.ttest_rel(left, right).confidence_interval(0.95)
    assert effect.difference == pytest.approx((left - right).mean())
    assert effect.low == pytest.approx(interval.low)
    assert effect.high == pytest.approx(interval.high)


@pytest.mark.parametrize("n", [2, 3, 4, 6, 8, 10])
def test_p_equals_scipys_exact_paired_permutation(n: int) -> None:
    rng = np.random.default_rng(10 + n)
    left, right = rng.normal(0.4, 1, n), rng.normal(0, 1, n)
    result = stats.permutation_test(
        (left, right),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        n_resamples=np.inf,
        vectorized=True,
    )
    assert paired_effect(left, right).p == pytest.approx(result.pvalue)


def test_p_by_hand() -> None:
    # |1 + 2 + 4| = 7 only for +++ and ---: 2 of 8. For (3, -1, 2) sums are 6, 4, 2, 0 twice each:
    # the observed |4| is reached by 4 of 8.
    assert sign_flip_p([1, 2, 4]) == 0.25
    assert sign_flip_p([3, -1, 2]) == 0.5


def test_ties_from_rounding_count_as_reached() -> None:
    # All eight sums have the same absolute value as exact numbers or are larger: 0.1 + 0.2 != 0.3.
    assert sign_flip_p([0.1, 0.2, -0.3]) == 1.0


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=9))
def test_p_is_a_multiple_of_the_smallest_and_blind_to_sign(differences: list[int]) -> None:
    p = sign_flip_p(differences)
    assert smallest_p(len(differences)) <= p <= 1
    assert p == sign_flip_p([-d for d in differences])
    assert (p / smallest_p(len(differences))).is_integer()


def test_enumeration_reaches_twenty_pairs_and_sampling_takes_over() -> None:
    ones = np.ones(EXACT_LIMIT)
    assert sign_flip_p(ones) == 2.0 ** (1 - EXACT_LIMIT)
    rng = np.random.default_rng(0)
    differences = rng.normal(0.4, 1, EXACT_LIMIT + 4)
    exact_nearby = stats.ttest_1samp(differences, 0).pvalue
    assert sign_flip_p(differences) == pytest.approx(exact_nearby, rel=0.15)
    assert sign_flip_p(differences) == sign_flip_p(differences)


def test_identical_pairs() -> None:
    effect = paired_effect([1.25, 2.5, 0.1], [1.25, 2.5, 0.1])
    assert effect.identical
    assert (effect.difference, effect.low, effect.high, effect.p) == (0.0, 0.0, 0.0, 1.0)
    assert effect.size is None


def test_holm_by_hand() -> None:
    # Sorted .005 .01 .03 .04 with factors 4 3 2 1: .02 .03 .06 .04, then running maxima.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_never_lowers_keeps_order_and_stays_below_bonferroni(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    for p, q in zip(p_values, adjusted, strict=True):
        assert p <= q <= min(1.0, max(p_values) * len(p_values)) + 1e-12
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    assert [adjusted[i] for i in order] == sorted(adjusted)


@pytest.mark.parametrize(("comparisons", "seeds"), [(1, 6), (2, 7), (6, 8), (8, 9)])
def test_seeds_needed(comparisons: int, seeds: int) -> None:
    assert seeds_needed(comparisons) == seeds
    assert comparisons * smallest_p(seeds) <= 0.05 < comparisons * smallest_p(seeds - 1)


def test_effect_size_by_hand() -> None:
    # d_z = 2 / 1; the exact correction for two degrees of freedom is gamma(1) / gamma(1/2).
    assert hedges_g([1, 2, 3]) == pytest.approx(2 / math.sqrt(math.pi))
    assert hedges_g([1, 2]) is None
    assert hedges_g([0.1, 0.1, 0.1]) is None


@pytest.mark.parametrize(("arms", "seeds"), [(1, 6), (5, 8)])
def test_family_wise_error_and_coverage_when_nothing_has_an_effect(arms: int, seeds: int) -> None:
    # All arms share one baseline and the seeds' noise, as the cells of a study do.
    rng = np.random.default_rng(seeds)
    studies, errors, covered = 2000, 0, 0
    for _ in range(studies):
        shared = rng.normal(0, 1, seeds)
        baseline = shared + rng.normal(0, 0.3, seeds)
        effects = [paired_effect(shared + rng.normal(0, 0.3, seeds), baseline) for _ in range(arms)]
        errors += min(holm([effect.p or 0 for effect in effects])) <= 0.05
        covered += sum((effect.low or 0) <= 0 <= (effect.high or 0) for effect in effects)
    assert 0 < errors / studies <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / studies)
    assert 0.93 <= covered / (studies * arms) <= 0.97
