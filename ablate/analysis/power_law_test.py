from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import least_squares

from ablate.analysis.power_law import Law, Pin, fit, robust_fit


def noisy(law: Law, theta: list[float], sigma: float, seed: int, count: int) -> np.ndarray:
    truth = law.predict(np.array([theta]), law.log_sizes)[0]
    noise = np.random.default_rng(seed).standard_normal((count, truth.shape[1]))
    return truth + sigma * noise


def sizes(count: int, each: int) -> np.ndarray:
    logs = np.repeat(np.linspace(0, 6, count), each)
    return (logs - logs.mean())[:, None]


def test_gradient_matches_finite_differences():
    logs = np.random.default_rng(0).normal(size=(7, 2))
    law = Law(logs, floor=True)
    theta = np.array([[0.3, 0.1, 0.4, -0.2, 0.7]])
    gradient = law.predict(theta, logs)[1][0]
    for index in range(5):
        step = np.zeros((1, 5))
        step[0, index] = 1e-6
        up, down = law.predict(theta + step, logs)[0], law.predict(theta - step, logs)[0]
        np.testing.assert_allclose(gradient[:, index], (up - down)[0] / 2e-6, atol=1e-8)


def test_fit_agrees_with_scipys_huber_least_squares():
    law = Law(sizes(6, 3), floor=True)
    data = noisy(law, [0.6, 0.7, 0.3], 0.01, 0, 4)
    data[0, 5] += 0.3
    theta, cut, loss = robust_fit(law, data)
    x = law.log_sizes[:, 0]
    for index in range(4):

        def residual(q, index=index):
            return (data[index] - np.logaddexp(q[0], q[1] - q[2] * x)) / cut[index]

        tries = [
            least_squares(residual, [0, 0, a], loss="huber", xtol=1e-14, ftol=1e-14, gtol=1e-14)
            for a in (0.1, 0.3, 0.8)
        ]
        best = min(tries, key=lambda found: found.cost)
        assert loss[index] == pytest.approx(best.cost * cut[index] ** 2, rel=1e-6)
        np.testing.assert_allclose(theta[index], best.x, atol=1e-4)


def test_published_law_of_hoffmann_is_recovered_from_exact_losses():
    n, d = np.meshgrid([1e8, 4e8, 1e9, 1e10], [2e9, 2e10, 2e11])
    logs = np.log(np.column_stack([n.ravel(), d.ravel()]))
    losses = 1.69 + 406.4 * n.ravel() ** -0.34 + 410.7 * d.ravel() ** -0.28
    center = logs.mean(axis=0)
    theta = robust_fit(Law(logs - center, floor=True), np.log(losses)[None])[0][0]
    assert np.exp(theta[0]) == pytest.approx(1.69, rel=1e-4)
    assert theta[2] == pytest.approx(0.34, rel=1e-4)
    assert theta[4] == pytest.approx(0.28, rel=1e-4)
    assert np.exp(theta[3] + theta[4] * center[1]) == pytest.approx(410.7, rel=1e-3)


def test_pin_holds_the_exponent_and_leaves_a_linear_fit():
    law = Law(sizes(5, 2), floor=False)
    data = noisy(law, [0.5, 0.2], 0.01, 1, 1)
    pin = Pin(np.array([0.25]), np.array([0.0, 1.0]))
    theta, _ = fit(law, data, np.array([[0.4, 0.2]]), np.array([10.0]), pin=pin, steps=50)
    assert theta[0, 1] == pytest.approx(0.25, abs=1e-8)
    level = (data[0] + 0.25 * law.log_sizes[:, 0]).mean()
    assert theta[0, 0] == pytest.approx(level, abs=1e-8)


def test_one_broken_run_hardly_moves_the_exponent():
    law = Law(sizes(6, 3), floor=True)
    clean = noisy(law, [0.6, 0.7, 0.3], 0.005, 2, 1)
    broken = clean.copy()
    broken[0, 17] += 0.5
    good, bad = robust_fit(law, clean)[0], robust_fit(law, broken)[0]
    plain, _ = fit(law, broken, good, np.array([10.0]), steps=100)
    assert abs(bad[0, 2] - good[0, 2]) < 0.01 < 0.1 * abs(plain[0, 2] - good[0, 2]) + 0.005
