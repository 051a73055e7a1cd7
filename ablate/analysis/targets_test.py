from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from ablate.analysis.targets import (
    Reach,
    loss_at_budget,
    median_time,
    restricted_mean_time,
    simultaneous_band,
    survival,
    time_to_target,
)
from ablate.errors import UserError


def test_target_is_met_between_two_points_in_log_tokens():
    found = time_to_target([1, 10, 100, 1000], [4, 3, 2, 1], 2.5)
    assert found.reached
    assert found.tokens == pytest.approx(10**1.5)
    assert time_to_target([10, 100], [0.2, 0.8], 0.5, goal="max").tokens == pytest.approx(10**1.5)
    assert time_to_target([10, 100], [2, 1], 2.0) == Reach(10.0, True)


def test_trial_that_stops_or_diverges_is_censored_where_it_was_last_seen():
    assert time_to_target([10, 100], [4, 3], 2.5) == Reach(100.0, False)
    assert time_to_target([10, 100, 200], [4, math.nan, math.inf], 2.5) == Reach(10.0, False)
    assert time_to_target([10], [math.nan], 2.5) == Reach(0.0, False)


def test_target_met_before_divergence_counts():
    found = time_to_target([10, 100, 200], [4, 2, math.nan], 2.0)
    assert found.reached
    assert found.tokens == pytest.approx(100)


def test_loss_at_budget_interpolates_and_never_extrapolates():
    assert loss_at_budget([10, 1000], [4, 2], 100) == pytest.approx(3)
    assert loss_at_budget([0, 10, 1000], [9, 4, 2], 10) == pytest.approx(4)
    assert loss_at_budget([10, 1000], [4, 2], 2000) is None
    assert loss_at_budget([10, 1000], [4, math.nan], 100) is None


TIMES = [6, 6, 6, 7, 10, 13, 16, 22, 23, 6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
REACHED = [True] * 9 + [False] * 12


def test_survival_of_the_textbook_remission_times():
    # Freireich et al. 1963, 6-mercaptopurine arm: 0.857, 0.807, 0.753, 0.690, 0.627, 0.538, 0.448
    points, alive, at_risk, _ = survival(TIMES, REACHED)
    assert points.tolist() == [6, 7, 10, 13, 16, 22, 23]
    np.testing.assert_allclose(alive, [0.857, 0.807, 0.753, 0.690, 0.627, 0.538, 0.448], atol=5e-4)
    assert at_risk.tolist() == [21, 17, 15, 12, 11, 7, 6]
    assert median_time(TIMES, REACHED).estimate == 23


def test_survival_agrees_with_statsmodels():
    from statsmodels.duration.survfunc import SurvfuncRight

    other = SurvfuncRight(TIMES, np.array(REACHED, dtype=int))
    points, alive, _, _ = survival(TIMES, REACHED)
    np.testing.assert_allclose(alive, other.surv_prob[np.isin(other.surv_times, points)])
    assert median_time(TIMES, REACHED).estimate == other.quantile(0.5)


def test_median_interval_of_ten_is_from_the_second_to_the_ninth():
    found = median_time(range(1, 11), [True] * 10)
    assert (found.estimate, found.low, found.high) == (5, 2, 9)
    late = median_time(range(1, 11), [True] * 7 + [False] * 3)
    assert (late.low, late.high) == (2, math.inf)
    assert median_time(range(1, 6), [True] * 5).low is None
    assert median_time([5, 5], [False, False]).estimate == math.inf


def test_median_interval_covers_even_when_the_slow_are_pruned():
    generator, hits = np.random.default_rng(0), 0
    for _ in range(1000):
        times = generator.exponential(size=8)
        seen = np.where(times > 1.5, 0.4, times)
        hits += math.log(2) in median_time(seen, times <= 1.5)
    assert hits / 1000 >= 0.95


def test_restricted_mean_without_censoring_is_the_t_interval_of_the_mean():
    times = np.array([3.0, 5, 8, 9, 14])
    found = restricted_mean_time(times, [True] * 5)
    low, high = stats.t.interval(0.95, 4, times.mean(), stats.sem(times))
    assert (found.estimate, found.low, found.high) == pytest.approx((times.mean(), low, high))
    cut = restricted_mean_time([3, 5, 8, 10, 10], [True, True, True, False, False])
    clipped = np.minimum(times, 10)
    clipped[3] = 10
    low, high = stats.t.interval(0.95, 4, clipped.mean(), stats.sem(clipped))
    assert (cut.estimate, cut.low, cut.high) == pytest.approx((clipped.mean(), low, high))


def test_restricted_mean_needs_a_trial_that_was_followed_to_the_horizon():
    with pytest.raises(UserError, match="no trial was followed to 20 tokens; the longest ran 10"):
        restricted_mean_time([3, 10], [True, False], horizon=20)
    assert restricted_mean_time([3, 10], [True, True], horizon=20).estimate == pytest.approx(6.5)
    assert restricted_mean_time([10, 10], [False, False]).low is None


def test_restricted_mean_covers_with_censoring():
    generator, hits, tried = np.random.default_rng(1), 0, 0
    truth = 1 - math.exp(-1)
    for _ in range(1000):
        times = generator.exponential(size=12)
        gone = np.minimum(generator.uniform(0.3, 3.0, size=12), 1.0)
        seen, reached = np.minimum(times, gone), times <= gone
        if (seen < 1).all():
            continue
        tried += 1
        hits += truth in restricted_mean_time(seen, reached, horizon=1.0)
    assert tried > 900
    assert 0.92 <= hits / tried <= 0.98


@pytest.mark.parametrize(("seeds", "low"), [(3, 0.94), (5, 0.93), (8, 0.93)])
def test_band_holds_the_whole_curve(seeds: int, low: float):
    generator = np.random.default_rng(seeds)
    points, hits = 15, 0
    correlation = np.exp(-np.abs(np.subtract.outer(range(points), range(points))) / 4)
    root = np.linalg.cholesky(correlation)
    for _ in range(300):
        curves = generator.standard_normal((seeds, points)) @ root.T * np.linspace(2, 1, points)
        band = simultaneous_band(curves)
        hits += bool((band.low <= 0).all() and (band.high >= 0).all())
    assert low - 0.03 <= hits / 300 <= 0.995


def test_band_of_few_seeds_is_honest():
    assert simultaneous_band([[1.0, 2.0]]).low is None
    assert simultaneous_band([[1.0, 2.0], [2.0, 3.0]]).low is None
    curves = np.random.default_rng(0).normal(size=(3, 10))
    band = simultaneous_band(curves)
    assert band.method == "Bonferroni"
    assert band.critical == pytest.approx(stats.t.ppf(1 - 0.0025, 2))


def test_band_of_one_point_is_the_t_interval():
    values = np.array([[1.0], [2.0], [4.0], [3.0], [6.0]])
    band = simultaneous_band(values)
    half = stats.t.ppf(0.975, 4) * stats.sem(values[:, 0])
    assert band.high[0] - band.mean[0] == pytest.approx(half, rel=0.1)


def test_equal_curves_have_a_band_of_no_width():
    band = simultaneous_band(np.ones((6, 4)))
    assert band.low.tolist() == band.high.tolist() == [1.0] * 4
