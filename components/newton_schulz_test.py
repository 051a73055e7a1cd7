from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ablate.components.dims import Dims
from ablate.components.newton_schulz import (
    COEFFICIENTS,
    NewtonSchulz,
    Schedule,
    orthogonalise,
    set_steps,
)

DIMS = Dims(model=4, heads=1, key=4, value=4)
QUINTIC, CUBIC, POLAR = (COEFFICIENTS[name] for name in ("quintic", "cubic", "polar"))


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _plain(s: torch.Tensor, steps: int, schedule: Schedule) -> torch.Tensor:
    x = s / (s.norm() + 1e-7)
    x = x.T if s.shape[0] > s.shape[1] else x
    for step in range(steps):
        a, b, c = schedule[min(step, len(schedule) - 1)]
        gram = x @ x.T
        x = a * x + b * gram @ x + c * gram @ gram @ x
    return x.T if s.shape[0] > s.shape[1] else x


@pytest.mark.parametrize("steps", [3, 4, 5, 8, 12])
def test_quintic_singular_values_stay_in_their_band(steps: int) -> None:
    values = torch.linalg.svdvals(orthogonalise(_random(64, 256), steps=steps))
    assert values.min() > 0.67
    assert values.max() < 1.14


def test_quintic_does_not_converge_and_cubic_does() -> None:
    s = _random(64, 256)
    cubic = torch.linalg.svdvals(orthogonalise(s, steps=10, coefficients=CUBIC))
    torch.testing.assert_close(cubic, torch.ones_like(cubic), atol=1e-3, rtol=0)
    quintic = torch.linalg.svdvals(orthogonalise(s, steps=12))
    assert (quintic - 1).abs().max() > 0.05


def test_polar_converges_from_small_singular_values() -> None:
    s, u, v = torch.logspace(-3, 0, 6).double(), _random(6, 6), _random(9, 6, seed=1)
    matrix = torch.linalg.qr(u)[0] @ torch.diag(s) @ torch.linalg.qr(v)[0].T
    matrix = matrix / matrix.norm()
    for steps, far in ((5, 0.4), (7, 1e-2), (9, 1e-6)):
        polar = torch.linalg.svdvals(orthogonalise(matrix, steps=steps, coefficients=POLAR))
        assert (polar - 1).abs().max() < far


def test_polar_steps_are_the_best_quintics_for_what_is_left() -> None:
    # Remez on [l, u], as Amsel et al. 2025 (arXiv 2505.16932), with the lower end kept above a
    # fraction of the upper one and the step then centred.
    low, high, cushion = 1e-3, 1.0, 0.02407327424182761
    for want in POLAR[:-1]:
        best = _best_quintic(max(low, cushion * high), high)
        if cushion * high > low:
            ends = sum(best @ np.array([x, x**3, x**5]) for x in (low, high))
            best = best * 2 / ends
        np.testing.assert_allclose(best, want, rtol=1e-9)
        low = float(best @ np.array([low, low**3, low**5]))
        high = 2 - low


def _best_quintic(low: float, high: float) -> Any:
    """The odd quintic nearest to 1 on an interval: its error has four equal extremes."""
    q, r = (3 * low + high) / 4, (low + 3 * high) / 4
    for _ in range(60):
        places = np.array([low, q, r, high])
        system = np.stack([places, places**3, places**5, [1, -1, 1, -1]], axis=1)
        a, b, c, _ = np.linalg.solve(system, np.ones(4))
        root = np.sqrt(9 * b**2 - 20 * a * c)
        q, r = np.sqrt((-3 * b - root) / (10 * c)), np.sqrt((-3 * b + root) / (10 * c))
    return np.array([a, b, c])


@pytest.mark.parametrize("shape", [(8, 2), (2, 8)])
def test_scales_set_the_size_of_the_write(shape: tuple[int, int]) -> None:
    s = _random(3, *shape)
    plain = NewtonSchulz(DIMS, coefficients="cubic", steps=30)(s)
    by_shape = NewtonSchulz(DIMS, coefficients="cubic", steps=30, scale="shape")(s)
    torch.testing.assert_close(by_shape, plain * (2 if shape == (8, 2) else 1))
    by_rms = NewtonSchulz(DIMS, coefficients="cubic", steps=30, scale="rms")(s)
    torch.testing.assert_close(by_rms.square().mean((1, 2)).sqrt(), torch.full((3,), 0.2).double())
    raw = NewtonSchulz(DIMS, steps=0, scale="rms")
    assert raw(s) is s


def test_steps_can_be_set_on_a_trained_model() -> None:
    model = torch.nn.ModuleList([NewtonSchulz(DIMS, steps=1), NewtonSchulz(DIMS, steps=1)])
    assert set_steps(model, 7) == 2
    s = _random(3, 5)
    torch.testing.assert_close(model[1](s), orthogonalise(s, steps=7))
    with pytest.raises(ValueError, match="steps=-1: must be >= 0"):
        set_steps(model, -1)


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (6, 6)])
@pytest.mark.parametrize("abc", [QUINTIC, CUBIC, POLAR])
@pytest.mark.parametrize("steps", [1, 3, 5])
def test_value_and_derivative_equal_plain_autograd(
    shape: tuple[int, int], abc: Schedule, steps: int
) -> None:
    s = _random(4, *shape).requires_grad_()
    weight = _random(4, *shape, seed=1)
    want = torch.stack([_plain(x, steps, abc) for x in s])
    got = orthogonalise(s, steps=steps, coefficients=abc)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)
    (want_grad,) = torch.autograd.grad((want * weight).sum(), s)
    (got_grad,) = torch.autograd.grad((got * weight).sum(), s)
    torch.testing.assert_close(got_grad, want_grad, rtol=1e-9, atol=1e-11)


def test_batches_larger_than_the_cache_equal_single_matrices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    s, weight = _random(7, 3, 5).requires_grad_(), _random(7, 3, 5, seed=1)
    want = torch.autograd.grad((orthogonalise(s, steps=4) * weight).sum(), s)[0]
    monkeypatch.setattr("ablate.components.newton_schulz.CACHED", 40)
    got = orthogonalise(s, steps=4)
    torch.testing.assert_close(got, torch.stack([_plain(x, 4, QUINTIC) for x in s]))
    torch.testing.assert_close(torch.autograd.grad((got * weight).sum(), s)[0], want)


def test_positive_scale_does_not_matter() -> None:
    s = _random(6, 10)
    torch.testing.assert_close(
        orthogonalise(37 * s, steps=5), orthogonalise(s, steps=5), atol=1e-6, rtol=0
    )


def test_rank_one_stays_rank_one() -> None:
    s = torch.outer(_random(6), _random(10, seed=1))
    values = torch.linalg.svdvals(orthogonalise(s, steps=5))
    assert values[0] > 0.6
    assert values[1] < 1e-12


def test_no_step_leaves_the_matrix_as_it_is() -> None:
    s = _random(2, 3, 4)
    assert orthogonalise(s, steps=0) is s


def test_a_zero_matrix_is_finite_with_a_finite_derivative() -> None:
    s = torch.zeros(3, 4, 5, dtype=torch.float64)
    s[1] = _random(4, 5)
    s.requires_grad_()
    y = orthogonalise(s, steps=5)
    y.sum().backward()
    assert s.grad is not None
    assert (y[0] == 0).all()
    assert s.grad.isfinite().all()


def test_granularity_counts_tokens() -> None:
    for given, want in (("token", 1), ("chunk", 16), (4, 4), (64, 16)):
        assert NewtonSchulz(DIMS, granularity=given).group(16) == want


def test_the_module_applies_its_options() -> None:
    s = _random(2, 3, 5)
    module = NewtonSchulz(DIMS, steps=2, coefficients="cubic", eps=0.5)
    torch.testing.assert_close(module(s), orthogonalise(s, steps=2, coefficients=CUBIC, eps=0.5))
    assert not torch.allclose(module(s), orthogonalise(s, steps=2, coefficients=CUBIC))


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"steps": -1}, "steps=-1: must be >= 0"),
        ({"coefficients": "septic"}, "coefficients='septic': must be one of quintic, cubic, polar"),
        ({"granularity": "row"}, "granularity='row': must be token, chunk, or a number >= 1"),
        ({"granularity": 0}, "granularity=0: must be token, chunk, or a number >= 1"),
        ({"scale": "norm"}, "scale='norm': must be one of none, shape, rms"),
        ({"eps": 0.0}, "eps=0.0: must be > 0"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        NewtonSchulz(DIMS, **options)  # type: ignore[arg-type]
