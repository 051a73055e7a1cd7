from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from ablate.analysis.interval import Interval, mean_interval


def test_mean_interval_agrees_with_scipy():
    values = [1.0, 4.0, 2.0, 7.0]
    found = mean_interval(values, 0.9)
    low, high = stats.t.interval(0.9, 3, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high))


def test_one_value_has_no_interval_and_holds_nothing():
    found = mean_interval([3.0])
    assert found == Interval(3.0, None, None)
    assert 3.0 not in found


def test_open_end_holds_everything_beyond():
    assert 1e9 in Interval(2.0, 1.0, math.inf)
    assert 0.5 not in Interval(2.0, 1.0, math.inf)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_values_that_have_no_mean_are_refused(values):
    with pytest.raises(ValueError, match="finite values"):
        mean_interval(values)
