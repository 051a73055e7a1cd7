"""Bands and areas on curves whose answers are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ablate.analysis.frame import Curve
from ablate.analysis.learning_curves import (
    area_under_log_curve,
    band,
    clean,
    paired_band,
)


def curve(tokens: Sequence[float], values: Any) -> Curve:
    return Curve(np.asarray(tokens, float), np.asarray(values, float))


def test_band_is_the_pointwise_t_interval() -> None:
    values = np.array([[3.0, 2.0], [4.0, 2.5], [5.0, 2.1]])
    result = band([curve([10, 100], row) for row in values])
    assert result is not None
    assert result.n == 3
    for point in range(2):
        interval = stats.ttest_1samp(values[:, point], 0).confidence_interval(0.95)
        assert result.mean[point] == pytest.approx(values[:, point].mean())
        assert result.low[point] == pytest.approx(interval.low)
        assert result.high[point] == pytest.approx(interval.high)


def test_one_seed_has_a_mean_without_a_band() -> None:
    result = band([curve([10, 100], [3, 2])])
    assert result is not None
    assert result.mean.tolist() == [3, 2]
    assert np.isnan(result.low).all()
    assert np.isnan(result.high).all()


def test_grids_that_differ_are_joined_where_both_cover() -> None:
    result = band([curve([10, 1000], [3, 1]), curve([100, 10_000], [5, 1])])
    assert result is not None
    assert result.tokens.tolist() == [100, 1000]
    # In log tokens 100 lies halfway between 10 and 1000, and 1000 between 100 and 10,000.
    assert result.mean == pytest.approx([(2 + 5) / 2, (1 + 3) / 2])


def test_curves_that_never_overlap_have_no_band() -> None:
    assert band([curve([1, 2], [1, 1]), curve([5, 6], [1, 1])]) is None
    assert band([]) is None


def test_points_that_are_not_numbers_and_the_start_are_left_out() -> None:
    cleaned = clean(curve([0, 1, 2, 3, 3], [9, np.inf, np.nan, 4, 5]))
    assert cleaned.tokens.tolist() == [3]
    assert cleaned.values.tolist() == [5]
    assert band([curve([1, 2], [np.nan, np.inf])]) is None


def test_paired_band_uses_common_seeds_and_removes_what_seeds_share() -> None:
    left = {0: curve([1, 10], [5, 4]), 1: curve([1, 10], [7, 6]), 2: curve([1, 10], [0, 0])}
    right = {0: curve([1, 10], [4, 4]), 1: curve([1, 10], [6, 6])}
    result = paired_band(left, right)
    assert result is not None
    assert result.n == 2
    assert result.mean.tolist() == [1, 0]
    assert result.low.tolist() == [1, 0]


def test_area_under_the_log_curve_by_hand() -> None:
    # Straight in log tokens from 4 to 2: the mean height is 3; over the second decade it is 2.5.
    falling = curve([10, 1000], [4, 2])
    assert area_under_log_curve(falling, 10, 1000) == pytest.approx(3)
    assert area_under_log_curve(falling, 100, 1000) == pytest.approx(2.5)
    assert area_under_log_curve(falling, 1, 1000) is None
    assert area_under_log_curve(falling, 1000, 1000) is None
