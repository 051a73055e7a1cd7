from __future__ import annotations

import pytest
import torch

from ablate.components.dims import Dims
from ablate.components.newton_schulz import COEFFICIENTS, NewtonSchulz, orthogonalise

DIMS = Dims(model=4, heads=1, key=4, value=4)
QUINTIC, CUBIC = COEFFICIENTS["quintic"], COEFFICIENTS["cubic"]


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _plain(s: torch.Tensor, steps: int, abc: tuple[float, float, float]) -> torch.Tensor:
    a, b, c = abc
    x = s / (s.norm() + 1e-7)
    x = x.T if s.shape[0] > s.shape[1] else x
    for _ in range(steps):
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


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (6, 6)])
@pytest.mark.parametrize("abc", [QUINTIC, CUBIC])
@pytest.mark.parametrize("steps", [1, 3, 5])
def test_value_and_derivative_equal_plain_autograd(
    shape: tuple[int, int], abc: tuple[float, float, float], steps: int
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
        ({"coefficients": "septic"}, "coefficients='septic': must be one of quintic, cubic"),
        ({"granularity": "row"}, "granularity='row': must be token, chunk, or a number >= 1"),
        ({"granularity": 0}, "granularity=0: must be token, chunk, or a number >= 1"),
        ({"eps": 0.0}, "eps=0.0: must be > 0"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        NewtonSchulz(DIMS, **options)  # type: ignore[arg-type]
