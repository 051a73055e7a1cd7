from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ablate.study.pilot import Pilot
from ablate.study.power import detectable_effect, power_of


def test_the_platforms_numbers() -> None:
    assert power_of(3, 6, Pilot(), "b").smallest_p == 0.25
    assert power_of(5, 6, Pilot(), "b").smallest_p == 0.0625
    assert power_of(5, 6, Pilot(), "b").seeds_for_all == 8
    assert power_of(5, 6, Pilot(), "b").seeds_for_one == 6


def test_the_sentence_names_everything_in_full() -> None:
    assert power_of(3, 8, Pilot(), "b").sentences() == [
        "3 seeds: the smallest p-value that the exact paired test can give is 0.25. To reach 0.05, "
        "one comparison alone needs 6 seeds; all 8 comparisons of this plan, with Holm's "
        "correction for testing so many, need 9."
    ]
    assert power_of(9, 8, Pilot(), "b").sentences() == []
    assert power_of(3, 0, Pilot(), "b").sentences() == []


def test_earlier_runs_give_the_deviation_of_paired_differences() -> None:
    values = {"b": {0: 1.0, 1: 2.0, 2: 4.0}, "c": {0: 1.5, 1: 2.1, 2: 4.3}, "d": {0: 9.0}}
    deviation = np.std([0.5, 0.1, 0.3], ddof=1)
    found = power_of(5, 2, Pilot(values=values), "b")
    assert found.deviation == pytest.approx(deviation)
    assert found.detectable == pytest.approx(detectable_effect(float(deviation), 5))
    assert "5 seeds find an effect of" in found.sentences()[-1]


def test_what_the_exact_test_cannot_find_is_said() -> None:
    values = {"b": {0: 1.0, 1: 2.0}, "c": {0: 1.5, 1: 2.1}}
    found = power_of(2, 1, Pilot(values=values), "b").sentences()[-1]
    assert found.endswith("by the t test; the exact test, which the report decides by, finds none "
                          "with so few.")  # fmt: skip


@pytest.mark.parametrize("seeds", [2, 3, 5, 8, 20])
def test_the_detectable_effect_has_the_power_that_it_claims(seeds: int) -> None:
    effect = detectable_effect(1.0, seeds)
    limit = stats.t.ppf(0.975, seeds - 1)
    power = stats.nct.sf(limit, seeds - 1, effect * seeds**0.5)
    assert power == pytest.approx(0.8, abs=1e-3)


def test_two_seeds_need_the_published_effect() -> None:
    # The noncentrality at one degree of freedom, 16.33, over the root of two.
    assert detectable_effect(1.0, 2) == pytest.approx(16.33 / 2**0.5, rel=1e-3)
