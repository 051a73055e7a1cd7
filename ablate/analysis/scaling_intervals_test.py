from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import huber
from scipy.stats import linregress, t

from ablate.analysis.power_law import Law
from ablate.analysis.scaling_intervals import Design, Fits, fit_batch, make_design, profile

TRUE = 0.3


def design(settings: int, seeds: int, *, floor: bool = True, paired: bool = True) -> Design:
    logs = np.repeat(np.linspace(0, np.log(1024), settings), seeds)
    law = Law((logs - logs.mean())[:, None], floor)
    setting = np.repeat(np.arange(settings), seeds)
    return make_design(law, setting, np.tile(np.arange(seeds), settings) if paired else None)


def simulate(
    at: Design, seed: int, count: int, *, own: float = 0.005, size: float = 0, shift: float = 0
) -> np.ndarray:
    """Draw log losses of L = 1.8 + 2 x^-0.3 with noise of runs, sizes and seeds."""
    generator = np.random.default_rng(seed)
    theta = [0.7, TRUE] if not at.law.floor else [np.log(1.8), np.log(2.0), TRUE]
    truth = at.law.predict(np.array([theta]), at.law.log_sizes)[0]
    runs = generator.standard_normal((count, truth.shape[1]))
    sizes = generator.standard_normal((count, at.settings))[:, at.setting]
    block = np.tile(np.arange(at.seeds), at.settings) if at.seeds > 1 else at.setting * 0
    seeds = generator.standard_normal((count, at.seeds))[:, block]
    return truth + own * runs + size * sizes + shift * seeds


def exponent(fits: Fits) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    weights = np.zeros(fits.design.law.parameters)
    weights[fits.design.law.exponents[0]] = 1
    return profile(fits, weights=weights)


def test_profile_ends_agree_with_a_brute_force_profile():
    at = design(6, 3)
    fits = fit_batch(at, simulate(at, 0, 1))
    _, low, high = exponent(fits)
    x, cut = at.law.log_sizes[:, 0], fits.cut[0]

    def loss(alpha: float) -> float:
        def total(q: np.ndarray) -> float:
            residual = fits.log_loss[0] - np.logaddexp(q[0], q[1] - alpha * x)
            return 1e6 * float(huber(cut, residual).sum())

        options = {"xatol": 1e-10, "fatol": 1e-12, "maxiter": 4000}
        return float(minimize(total, fits.theta[0, :2], method="Nelder-Mead", options=options).fun)

    rise = 1e6 * float(fits.critical(0.95)[0])
    bottom = 1e6 * float(fits.loss[0])
    assert loss(low[0]) - bottom == pytest.approx(rise, rel=2e-3)
    assert loss(high[0]) - bottom == pytest.approx(rise, rel=2e-3)


def test_straight_law_without_outliers_gives_the_t_interval_of_least_squares():
    at = design(5, 4, floor=False, paired=False)
    x = at.law.log_sizes[:, 0]
    data = (1 - TRUE * x + 0.01 * np.tile([1, -1, -1, 1], 5))[None]
    estimate, low, high = exponent(fit_batch(at, data, exact=True))
    line = linregress(x, data[0])
    half = t.ppf(0.975, 18) * line.stderr
    assert estimate[0] == pytest.approx(-line.slope, rel=1e-6)
    np.testing.assert_allclose([low[0], high[0]], [-line.slope - half, -line.slope + half], 1e-5)


def test_common_shift_of_a_seed_changes_neither_exponent_nor_interval():
    at = design(6, 3)
    data = simulate(at, 1, 1)
    shifted = data + 0.2 * np.tile([1.0, -2.0, 1.0], 6)
    np.testing.assert_allclose(exponent(fit_batch(at, data)), exponent(fit_batch(at, shifted)))


@pytest.mark.parametrize(
    ("settings", "seeds", "size"),
    [(6, 3, 0.0), (6, 3, 0.01), (5, 3, 0.003), (6, 1, 0.0)],
    ids=["seeds_only", "sizes_dominate", "both", "one_seed"],
)
def test_95_percent_interval_of_the_exponent_covers(settings: int, seeds: int, size: float):
    at = design(settings, seeds, paired=seeds > 1)
    data = simulate(at, 7, 1000, size=size, shift=0.01 if seeds > 1 else 0)
    estimate, low, high = exponent(fit_batch(at, data))
    assert 0.93 <= np.mean((low <= TRUE) & (high >= TRUE)) <= 0.97
    assert abs(estimate.mean() / TRUE - 1) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("size", [0.0, 0.004, 0.016])
@pytest.mark.parametrize(("settings", "seeds"), [(5, 3), (6, 5), (8, 3)])
def test_coverage_over_designs_and_misfits(settings: int, seeds: int, size: float):
    at = design(settings, seeds)
    _, low, high = exponent(fit_batch(at, simulate(at, 11, 2000, size=size)))
    assert 0.925 <= np.mean((low <= TRUE) & (high >= TRUE)) <= 0.975


@pytest.mark.parametrize("log_size", [0.0, 7.0], ids=["within", "beyond"])
def test_95_percent_interval_of_a_prediction_covers(log_size: float):
    at = design(6, 3, paired=False)
    fits = fit_batch(at, simulate(at, 5, 1000, size=0.01))
    _, low, high = profile(fits, at=np.full((1000, 1, 1), log_size))
    truth = np.log(1.8 + 2 * np.exp(-TRUE * log_size))
    assert 0.93 <= np.mean((low <= truth) & (high >= truth)) <= 0.97


def test_interval_that_knows_the_law_is_exact_is_narrower_and_covers():
    at = design(4, 3)
    data = simulate(at, 3, 1000)
    _, low, high = exponent(fit_batch(at, data, exact=True))
    _, wide_low, wide_high = exponent(fit_batch(at, data[:50]))
    assert 0.93 <= np.mean((low <= TRUE) & (high >= TRUE)) <= 0.97
    assert np.median(high - low) < 0.5 * np.median(wide_high - wide_low)


def print_coverage(count: int = 4000) -> None:
    """Print the table of docs/statistics.md: `python -m ablate.analysis.scaling_intervals_test`."""
    print("sizes seeds E     size/seed noise  covered %  bias %  median width")
    for settings, seeds, floor in (
        (5, 3, True), (6, 3, True), (8, 3, True), (6, 5, True), (6, 1, True), (4, 3, True),
        (4, 3, False), (6, 3, False),
    ):  # fmt: skip
        at = design(settings, seeds, floor=floor, paired=seeds > 1)
        for ratio in (0.0, 0.5, 1.0, 3.0):
            data = simulate(at, 17, count, size=0.005 * ratio, shift=0.005 * (seeds > 1))
            estimate, low, high = exponent(fit_batch(at, data))
            covered = 100 * np.mean((low <= TRUE) & (high >= TRUE))
            bias, width = 100 * (estimate.mean() / TRUE - 1), np.median(high - low)
            row = f"{settings:5} {seeds:5} {'free ' if floor else 'fixed'} {ratio:15.1f}"
            print(f"{row} {covered:10.1f} {bias:7.2f} {width:13.4f}")


if __name__ == "__main__":
    print_coverage()
