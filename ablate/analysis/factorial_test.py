from __future__ import annotations

import itertools
import warnings

import numpy as np
import pandas as pd
import pytest

from ablate.analysis.factorial import aliases, factorial_effects
from ablate.errors import UserError


def runs(*levels: int, seeds: int) -> tuple[dict[str, list[int]], list[int]]:
    table = list(itertools.product(*map(range, levels), range(seeds)))
    names = "abcdef"[: len(levels)]
    return {name: [row[k] for row in table] for k, name in enumerate(names)}, [
        row[-1] for row in table
    ]


def by_term(found) -> dict:
    return {(effect.term, effect.changes): effect for effect in found.effects}


def test_two_by_two_by_hand():
    levels, seeds = runs(2, 2, seeds=2)
    # cells a0b0, a0b1, a1b0, a1b1, two seeds each
    found = factorial_effects([1, 3, 4, 6, 2, 4, 9, 11], levels, seeds)
    effects = by_term(found)
    assert effects[("a",), ((0, 1),)].effect.estimate == pytest.approx((3 + 10) / 2 - (2 + 5) / 2)
    assert effects[("b",), ((0, 1),)].effect.estimate == pytest.approx((5 + 10) / 2 - (2 + 3) / 2)
    assert effects[("a", "b"), ((0, 1), (0, 1))].effect.estimate == pytest.approx(
        (10 - 5) - (3 - 2)
    )
    assert found.error == pytest.approx(0, abs=1e-12)
    assert found.degrees == 3


def test_estimates_and_errors_agree_with_statsmodels_least_squares():
    from statsmodels.formula.api import ols

    levels, seeds = runs(2, 3, seeds=4)
    y = np.random.default_rng(0).normal(size=24)
    frame = pd.DataFrame({**levels, "seed": seeds, "y": y})
    model = ols("y ~ C(a, Sum) * C(b, Sum) + C(seed, Sum)", frame).fit()
    found = factorial_effects(y, levels, seeds)
    contrast = pd.Series(0.0, model.params.index)
    contrast["C(a, Sum)[S.0]"] = -2
    other = model.t_test(contrast.to_numpy())
    mine = by_term(found)[("a",), ((0, 1),)]
    assert mine.effect.estimate == pytest.approx(float(np.squeeze(other.effect)))
    np.testing.assert_allclose([mine.effect.low, mine.effect.high], other.conf_int()[0])
    assert mine.p == pytest.approx(float(other.pvalue))
    contrast[:] = 0.0
    # b: 0 -> 2, where level 2 is minus the sum of the first two.
    contrast["C(b, Sum)[S.0]"], contrast["C(b, Sum)[S.1]"] = -2, -1
    other = model.t_test(contrast.to_numpy())
    assert by_term(found)[("b",), ((0, 2),)].effect.estimate == pytest.approx(
        float(np.squeeze(other.effect))
    )


def test_mixed_model_with_random_seeds_gives_the_same_estimates():
    from statsmodels.formula.api import mixedlm

    levels, seeds = runs(2, 2, 2, seeds=5)
    generator = np.random.default_rng(1)
    y = generator.normal(size=40) + 2 * generator.normal(size=5)[seeds] + np.array(levels["a"])
    frame = pd.DataFrame({**levels, "seed": seeds, "y": y})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = mixedlm("y ~ (C(a, Sum) + C(b, Sum) + C(c, Sum)) ** 2", frame, groups="seed").fit()
    found = by_term(factorial_effects(y, levels, seeds))
    a = found[("a",), ((0, 1),)].effect.estimate
    assert a == pytest.approx(-2 * model.params["C(a, Sum)[S.0]"], rel=1e-6)
    ab = found[("a", "b"), ((0, 1), (0, 1))].effect.estimate
    assert ab == pytest.approx(4 * model.params["C(a, Sum)[S.0]:C(b, Sum)[S.0]"], rel=1e-6)


def test_half_fraction_refuses_interactions_and_names_the_alias():
    levels = {"a": [-1, 1, -1, 1] * 2, "b": [-1, -1, 1, 1] * 2}
    levels["c"] = [a * b for a, b in zip(levels["a"], levels["b"], strict=True)]
    y = np.arange(8.0)
    with pytest.raises(UserError, match=r"cannot tell a x b from c;.*a x c from b"):
        factorial_effects(y, levels, [0] * 4 + [1] * 4)
    found = factorial_effects(y, levels, [0] * 4 + [1] * 4, interactions=())
    assert [effect.term for effect in found.effects] == [("a",), ("b",), ("c",)]
    assert found.assumed_zero == (("a", "b"), ("a", "c"), ("b", "c"))


def test_full_design_has_no_aliases_and_a_copied_factor_has():
    levels, _ = runs(2, 3, seeds=1)
    assert aliases(levels) == []
    copied = {"a": [0, 0, 1, 1], "same": [0, 0, 1, 1]}
    assert (("a",), ("same",)) in aliases(copied)
    with pytest.raises(UserError, match="cannot tell same from a"):
        factorial_effects([1, 2, 3, 4], copied, [0, 1, 0, 1], interactions=())


def test_constant_factor_is_refused():
    with pytest.raises(UserError, match="single level 7"):
        factorial_effects([1, 2], {"a": [0, 1], "b": [7, 7]}, [0, 0])


def test_one_seed_is_judged_by_what_is_left_out_and_says_so():
    levels, seeds = runs(2, 2, 2, seeds=1)
    found = factorial_effects(np.arange(8.0) ** 2, levels, seeds)
    assert (found.pure, found.degrees) == (False, 1)
    levels, seeds = runs(2, 2, seeds=1)
    found = factorial_effects([1, 2, 3, 5], levels, seeds)
    assert found.error is None
    assert all(effect.effect.low is None and effect.p is None for effect in found.effects)


def test_lost_runs_are_dropped_and_counted():
    levels, seeds = runs(2, 2, seeds=3)
    y = np.array(levels["a"]) * 2.0 + np.array(seeds)
    y[5] = np.nan
    found = factorial_effects(y, levels, seeds)
    assert found.dropped == 1
    assert by_term(found)[("a",), ((0, 1),)].effect.estimate == pytest.approx(2)


def test_intervals_cover_and_the_null_is_rejected_at_5_percent():
    levels, seeds = runs(2, 2, 2, seeds=3)
    generator = np.random.default_rng(2)
    hits, rejected = 0, 0
    for _ in range(1000):
        y = generator.normal(size=24) + 3 * generator.normal(size=3)[seeds]
        y += 1.5 * np.array(levels["a"])
        found = by_term(factorial_effects(y, levels, seeds))
        hits += 1.5 in found[("a",), ((0, 1),)].effect
        rejected += found[("b", "c"), ((0, 1), (0, 1))].p < 0.05
    assert 0.93 <= hits / 1000 <= 0.97
    assert 0.03 <= rejected / 1000 <= 0.07
