from __future__ import annotations

import math

import numpy as np
import pytest

from ablate.analysis.scaling import (
    ScalingFit,
    bootstrap_scaling,
    fit_scaling,
    leave_largest_out,
    predict_loss,
)
from ablate.errors import UserError

SIZES = np.repeat(1e6 * 4.0 ** np.arange(6), 3)
SEEDS = list(range(3)) * 6


def law(n: np.ndarray) -> np.ndarray:
    return 1.8 + 400 * n**-0.35


def fitted(seed: int = 0, *, sigma: float = 0.005, floor: bool = True) -> ScalingFit:
    noise = np.random.default_rng(seed).standard_normal(len(SIZES))
    losses = law(SIZES) * np.exp(sigma * noise)
    return fit_scaling({"N": SIZES}, losses, seeds=SEEDS, floor=floor)


def test_exact_losses_give_the_law_back_with_empty_intervals():
    fit = fit_scaling({"N": SIZES}, law(SIZES), seeds=SEEDS)
    for name, value in (("E", 1.8), ("A", 400), ("alpha", 0.35)):
        found = fit.parameters[name]
        assert found.estimate == pytest.approx(value, rel=1e-4)
        assert found.high - found.low < 1e-3 * value


def test_parameters_are_in_the_units_of_the_sizes():
    fit = fitted()
    for name, value in (("E", 1.8), ("A", 400), ("alpha", 0.35)):
        assert value in fit.parameters[name]
    in_millions = fit_scaling({"N": SIZES / 1e6}, fit.losses, seeds=SEEDS).parameters
    assert in_millions["alpha"].estimate == pytest.approx(fit.parameters["alpha"].estimate)
    scaled = fit.parameters["A"].estimate * 1e6 ** -fit.parameters["alpha"].estimate
    assert in_millions["A"].estimate == pytest.approx(scaled, rel=1e-6)


def test_prediction_at_no_distance_is_the_curve():
    fit = fitted()
    found = predict_loss(fit, {"N": [1e6]})[0]
    p = {name: value.estimate for name, value in fit.parameters.items()}
    assert found.estimate == pytest.approx(p["E"] + p["A"] * 1e6 ** -p["alpha"], rel=1e-9)
    assert found.low < found.estimate < found.high


def test_common_seed_shift_widens_levels_but_not_the_exponent():
    fit = fitted()
    shift = np.exp(0.05 * np.tile([1.0, -2.0, 1.0], 6))
    moved = fit_scaling({"N": SIZES}, fit.losses * shift, seeds=SEEDS)
    assert moved.parameters["alpha"].low == pytest.approx(fit.parameters["alpha"].low, rel=1e-6)
    before, after = fit.parameters["E"], moved.parameters["E"]
    assert after.high - after.low > 2 * (before.high - before.low)


def test_two_sizes_recover_both_exponents():
    n, d = np.meshgrid([1e6, 4e6, 16e6, 64e6], [1e8, 1e9, 4e9])
    n, d = np.repeat(n.ravel(), 2), np.repeat(d.ravel(), 2)
    noise = np.random.default_rng(1).standard_normal(24)
    losses = (1.7 + 400 * n**-0.34 + 410 * d**-0.28) * np.exp(0.003 * noise)
    fit = fit_scaling({"N": n, "D": d}, losses, seeds=[0, 1] * 12)
    assert 0.34 in fit.parameters["alpha"]
    assert 0.28 in fit.parameters["beta"]
    assert fit.parameters["alpha"].high - fit.parameters["alpha"].low < 0.05


def test_largest_size_is_predicted_from_the_others():
    found = leave_largest_out(fitted(sigma=1e-4))
    assert found is not None
    assert found.sizes == {"N": SIZES.max()}
    assert abs(found.error) < 1e-3
    assert found.observed in found.predicted


def test_leaving_one_of_four_sizes_out_says_nothing():
    sizes = 1e6 * 4.0 ** np.arange(4)
    fit = fit_scaling({"N": sizes}, law(sizes))
    assert leave_largest_out(fit) is None


def test_sizes_that_miss_the_law_are_noticed():
    bend = np.exp(np.repeat([0.02, -0.02, 0.02, -0.02, 0.02, -0.02], 3))
    noise = np.exp(0.001 * np.random.default_rng(0).standard_normal(18))
    fit = fit_scaling({"N": SIZES}, law(SIZES) * bend * noise, seeds=SEEDS)
    assert fit.misfit is not None
    assert fit.misfit < 1e-6
    assert any("scatter about the law" in note for note in fit.notes)
    assert fitted().misfit > 0.01


def test_bootstrap_is_fast_and_as_wide_as_the_profile():
    fit = fitted(3)
    draws = bootstrap_scaling(fit, draws=200)
    assert draws["alpha"].shape == (200,)
    low, high = np.percentile(draws["alpha"], [2.5, 97.5])
    interval = fit.parameters["alpha"]
    assert 0.4 < (high - low) / (interval.high - interval.low) < 1.3
    assert np.corrcoef(draws["alpha"], draws["E"])[0, 1] > 0.8


def test_runs_without_a_finite_loss_are_left_out_and_counted():
    losses = law(SIZES)
    losses[4], losses[9] = np.nan, np.inf
    fit = fit_scaling({"N": SIZES}, losses, seeds=SEEDS)
    assert fit.dropped == 2
    assert "2 runs without a finite loss are left out" in fit.notes
    assert fit.parameters["alpha"].estimate == pytest.approx(0.35, rel=1e-4)


def test_noise_larger_than_the_curve_leaves_the_exponent_open():
    sizes = np.repeat([1.0, 2.0, 4.0, 8.0, 16.0], 2)
    losses = np.array([2.6, 2.0, 2.9, 1.7, 2.7, 2.2, 2.9, 1.8, 1.7, 2.1])
    fit = fit_scaling({"N": sizes}, losses, seeds=[0, 1] * 5)
    alpha = fit.parameters["alpha"]
    assert alpha.low == 0 or alpha.high == math.inf
    assert any("do not bound the exponent" in note for note in fit.notes)


@pytest.mark.parametrize(
    ("sizes", "losses", "floor", "words"),
    [
        ([1, 4, 16], [3, 2, 1.5], True, "at least 4 sizes of N, got 3: add sizes or fix E = 0"),
        ([1, 4], [3, 2], False, "at least 3 sizes of N, got 2"),
        ([1, 2, 3, 3.9], [3, 2, 1.5, 1.4], True, "span a factor of 3.9"),
        ([1, 4, 16, 64], [1, 2, 3, 4], True, "does not fall with N"),
        ([0, 4, 16, 64], [4, 3, 2, 1], True, "positive sizes"),
        ([1, 4, 16, 64], [np.nan] * 4, True, "positive sizes and losses"),
    ],
)
def test_data_that_cannot_carry_a_law_are_refused(sizes, losses, floor, words):
    with pytest.raises(UserError, match=words.replace("+", r"\+")):
        fit_scaling({"N": sizes}, losses, floor=floor)


def test_sizes_that_move_together_are_refused():
    n = 1e6 * 4.0 ** np.arange(7)
    with pytest.raises(UserError, match="move together"):
        fit_scaling({"N": n, "D": 20 * n}, law(n))
