from __future__ import annotations

import math

import pytest
from scipy import stats

from ablate.analysis.failures import failure_rates, rate_interval
from ablate.errors import UserError


def test_no_failure_in_n_by_the_closed_form():
    for total in (1, 3, 10):
        found = rate_interval(0, total)
        assert found.low == 0
        assert found.high == pytest.approx(1 - 0.025 ** (1 / total))


def test_interval_agrees_with_the_beta_quantiles_of_statsmodels():
    from statsmodels.stats.proportion import proportion_confint

    for count, total in ((1, 3), (2, 8), (5, 5), (17, 40)):
        low, high = proportion_confint(count, total, method="beta")
        found = rate_interval(count, total)
        assert (found.low, found.high) == pytest.approx((low, high))


def test_coverage_is_at_least_95_percent_at_every_rate():
    for total in (3, 5, 20):
        for rate in (0.01, 0.05, 0.2, 0.5, 0.9):
            covered = sum(
                stats.binom.pmf(count, total, rate)
                for count in range(total + 1)
                if rate in rate_interval(count, total)
            )
            assert covered >= 0.95


def test_rates_per_level_count_ended_trials_only():
    levels = {"window": [1, 1, 1, 16, 16, 16], "steps": [None, None, 5, 5, 5, 5]}
    states = ["diverged", "done", "missing", "oom", "failed", "pruned"]
    found = {(r.factor, r.level, r.state): r for r in failure_rates(levels, states)}
    assert (found["window", 1, "diverged"].count, found["window", 1, "diverged"].total) == (1, 2)
    assert found["window", 16, "any"].rate.estimate == pytest.approx(2 / 3)
    assert found["steps", 5, "any"].total == 3
    assert ("steps", None, "any") not in found


def test_level_without_ended_trials_has_no_rate():
    found = failure_rates({"a": [1]}, ["running"])[0]
    assert math.isnan(found.rate.estimate)
    assert found.rate.low is None


def test_unknown_state_is_refused_with_the_nearest():
    with pytest.raises(UserError, match="'divergd' is no trial state. Did you mean 'diverged'"):
        failure_rates({"a": [1]}, ["divergd"])
