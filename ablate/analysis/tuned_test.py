from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest

from ablate.analysis.tuned import expected_best, fresh_evaluation, tuned_best
from ablate.errors import UserError


@pytest.mark.parametrize("goal", ["min", "max"])
def test_expected_best_is_the_mean_over_all_subsets(goal):
    values = np.random.default_rng(0).normal(size=7)
    best = min if goal == "min" else max
    curve = expected_best(values, goal=goal)
    for m in range(1, 8):
        subsets = [best(chosen) for chosen in itertools.combinations(values, m)]
        assert curve[m - 1] == pytest.approx(np.mean(subsets))


def test_expected_best_of_thousands_is_quick_and_exact():
    n, began = 2000, time.perf_counter()
    curve = expected_best(np.arange(1, n + 1))
    assert time.perf_counter() - began < 2
    # The expected minimum of m of the numbers 1 .. n is (n + 1) / (m + 1).
    np.testing.assert_allclose(curve, (n + 1) / (np.arange(1, n + 1) + 1), rtol=1e-12)


def test_expected_best_is_unbiased():
    # The expected minimum of m uniform numbers is 1 / (m + 1).
    generator = np.random.default_rng(1)
    curves = np.mean([expected_best(generator.uniform(size=8)) for _ in range(4000)], axis=0)
    np.testing.assert_allclose(curves, 1 / np.arange(2, 10), atol=0.01)


def test_diverged_setting_makes_one_draw_infinite_but_not_the_best_of_all():
    curve = expected_best([2.0, math.nan, 1.0])
    assert curve[0] == math.inf
    assert curve[1] == pytest.approx((1 + 1 + 2) / 3)
    assert curve[2] == 1.0


def test_held_out_seed_judges_the_choice_of_the_others_by_hand():
    # Without seed 0 setting b wins (1 < 2), without seed 1 setting a wins (0 < 4).
    found = tuned_best([[0.0, 2.0], [4.0, 1.0]], ["a", "b"])
    assert found.held_out == (4.0, 2.0)
    assert (found.chosen, found.naive, found.honest.estimate) == ("a", 1.0, 3.0)
    assert found.optimism == 2.0
    assert found.label == "best of 2"


def test_naive_best_of_equal_settings_is_too_good_and_the_honest_one_is_not():
    generator = np.random.default_rng(2)
    found = [tuned_best(generator.normal(size=(6, 3)), range(6)) for _ in range(2000)]
    assert np.mean([one.naive for one in found]) < -0.6
    assert np.mean([one.honest.estimate for one in found]) == pytest.approx(0, abs=0.05)
    highest = [tuned_best(generator.normal(size=(6, 3)), range(6), goal="max") for _ in range(500)]
    assert np.mean([one.naive for one in highest]) > 0.6
    assert all(one.optimism > -5 for one in highest)


def test_honest_interval_covers_where_one_setting_is_clearly_best():
    generator, hits = np.random.default_rng(3), 0
    for _ in range(1000):
        table = generator.normal(size=(4, 4)) + np.array([[0.0], [9], [9], [9]])
        hits += 0.0 in tuned_best(table, range(4)).honest
    assert 0.93 <= hits / 1000 <= 0.97


def test_diverged_settings_are_never_chosen():
    found = tuned_best([[math.nan, 1.0], [3.0, 3.0]], ["hot", "cool"])
    assert found.chosen == "cool"
    assert found.honest.estimate == math.inf
    assert found.honest.low is None


def test_one_seed_is_refused():
    with pytest.raises(UserError, match="best of 2 settings cannot be judged on the one seed"):
        tuned_best([[1.0], [2.0]], ["a", "b"])


def test_fresh_seeds_give_a_plain_mean():
    assert fresh_evaluation([1.0, 2.0, 3.0]).estimate == 2.0
