from __future__ import annotations

import math

import numpy as np
import pytest

from ablate.analysis.crossing import crossing, recover
from ablate.analysis.power_law import Law
from ablate.analysis.scaling import ScalingFit, fit_scaling
from ablate.analysis.scaling_intervals import fit_batch, make_design, profile
from ablate.errors import UserError

SIZES = np.repeat(1e6 * 4.0 ** np.arange(6), 3)
SEEDS = list(range(3)) * 6


def curve(floor: float, alpha: float, seed: int, sigma: float = 0.004) -> ScalingFit:
    noise = np.random.default_rng(seed).standard_normal(18)
    losses = (floor + 400 * SIZES**-alpha) * np.exp(sigma * noise)
    return fit_scaling({"N": SIZES}, losses, seeds=SEEDS)


def root() -> float:
    """Solve 1.8 + 400 n^-0.35 = 2.0 + 400 n^-0.4 by bisection."""
    low, high = 1e6, 1e9
    for _ in range(100):
        middle = math.sqrt(low * high)
        gap = 1.8 + 400 * middle**-0.35 - 2.0 - 400 * middle**-0.4
        low, high = (middle, high) if gap > 0 else (low, middle)
    return low


def test_crossing_of_two_known_curves_is_found_with_its_interval():
    found = crossing(curve(1.8, 0.35, 0), curve(2.0, 0.4, 1))
    assert found.verdict == "crosses"
    assert len(found.estimates) == 1
    assert found.low < found.estimates[0] < found.high
    assert found.low < root() < found.high
    assert not found.extrapolated


def test_exact_curves_cross_at_the_root():
    found = crossing(curve(1.8, 0.35, 0, 0), curve(2.0, 0.4, 1, 0))
    assert found.estimates[0] == pytest.approx(root(), rel=2e-3)
    assert found.high / found.low < 1.01


def test_curves_apart_have_no_crossing():
    below, above = curve(1.8, 0.35, 0), curve(2.6, 0.35, 1)
    assert crossing(below, above).verdict == "first below"
    found = crossing(above, below)
    assert (found.verdict, found.estimates, found.low) == ("second below", (), None)


def test_equal_curves_are_undecided_with_open_ends():
    found = crossing(curve(1.8, 0.35, 0), curve(1.8, 0.35, 1))
    assert found.verdict == "undecided"
    assert (found.low, found.high) == (0.0, math.inf)


def test_interval_of_the_difference_holds_zero_at_the_root():
    generator, ends = np.random.default_rng(5), []
    center = np.log(SIZES).mean()
    at = np.full((1000, 1, 1), math.log(root()) - center)
    design = make_design(
        Law((np.log(SIZES) - center)[:, None], floor=True), np.repeat(np.arange(6), 3), None
    )
    for floor, alpha in ((1.8, 0.35), (2.0, 0.4)):
        noise = generator.standard_normal((1000, 18))
        data = np.log(floor + 400 * SIZES**-alpha) + 0.004 * noise
        ends.append(profile(fit_batch(design, data), at=at))
    _, low, high = recover(*ends)
    assert 0.93 <= np.mean((low <= 0) & (high >= 0)) <= 0.985


def test_curves_over_different_sizes_are_refused():
    other = curve(1.8, 0.35, 0)
    tokens = fit_scaling({"D": SIZES}, other.losses, seeds=SEEDS)
    with pytest.raises(UserError, match="same single size"):
        crossing(other, tokens)
