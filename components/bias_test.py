"""Each bias is the gradient of the loss that it names, and has its limits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ablate.components.bias import L2, Bias, Dot, Huber, Lp, ValueShift
from ablate.components.dims import Dims

DIMS = Dims(model=5, heads=2, key=4, value=3)


def _pair(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y, v = (torch.randn(4, 6, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    return y.requires_grad_(), v


def _slope(loss: Tensor, y: Tensor) -> Tensor:
    (grad,) = torch.autograd.grad(loss.sum(), y, retain_graph=True)
    return grad


def test_l2_and_dot_are_the_gradients_of_their_losses() -> None:
    y, v = _pair()
    torch.testing.assert_close(L2(DIMS)(y, v), _slope(0.5 * (y - v) ** 2, y))
    torch.testing.assert_close(Dot(DIMS)(y, v), _slope(-y * v, y))


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0, 4.0])
def test_lp_is_the_gradient_of_the_smoothed_power(p: float) -> None:
    y, v = _pair()
    want = _slope(((y - v) ** 2 + 1e-6) ** (p / 2) / p, y)
    torch.testing.assert_close(Lp(DIMS, p=p)(y, v), want)
    exact = torch.sign(y - v) * (y - v).abs() ** (p - 1)
    torch.testing.assert_close(Lp(DIMS, p=p, eps=1e-14)(y, v), exact)
    sharp = Lp(DIMS, p=p, surrogate="tanh", sharpness=1e6, eps=1e-14)
    torch.testing.assert_close(sharp(y, v), exact)


def test_the_limits_of_every_bias_are_l2() -> None:
    y, v = _pair()
    want = L2(DIMS)(y, v)
    limits: list[Bias] = [
        Lp(DIMS, p=2.0),
        *(Huber(DIMS, form=f, delta=math.inf, producer="fixed") for f in ("coordinate", "norm")),
        Huber(DIMS, form="switched", delta=1e9, producer="fixed"),
        ValueShift(DIMS, delta=0.0, producer="fixed"),
    ]
    for bias in limits:
        assert torch.equal(bias(y, v), want)


def test_huber_forms_are_the_gradients_of_their_losses() -> None:
    y, v = _pair()
    delta = 0.9
    r = y - v
    size, length = r.abs(), r.norm(dim=-1)
    assert (size > delta).any()
    assert (length < delta).any()
    each = torch.where(size <= delta, 0.5 * r**2, delta * (size - delta / 2))
    whole = torch.where(length <= delta, 0.5 * length**2, delta * (length - delta / 2))
    switched = torch.where(length <= delta, 0.5 * (r**2).sum(-1), delta * size.sum(-1))
    for form, loss in (("coordinate", each), ("norm", whole), ("switched", switched)):
        bias = Huber(DIMS, form=form, delta=delta, producer="fixed", sharpness=1e9)
        torch.testing.assert_close(bias(y, v), _slope(loss, y))


def test_a_small_huber_delta_is_a_scaled_direction() -> None:
    y, v = _pair()
    r = y - v
    bias = Huber(DIMS, delta=1e-3, producer="fixed")
    torch.testing.assert_close(bias(y, v) * 1e3, r / r.norm(dim=-1, keepdim=True))


def test_an_outlier_moves_yaad_less_than_l2() -> None:
    y, v = _pair()
    v[0, 0] *= 100
    bias = Huber(DIMS, form="switched", producer="fixed")
    assert bias(y, v)[0, 0].norm() <= math.sqrt(3)
    assert L2(DIMS)(y, v)[0, 0].norm() > 20


def test_value_shift_is_the_gradient_of_the_worst_case() -> None:
    y, v = _pair()
    generator = torch.Generator().manual_seed(2)
    around = torch.randn(4000, 3, generator=generator, dtype=torch.float64)
    around = 0.3 * around / around.norm(dim=-1, keepdim=True)
    worst = (0.5 * (y[0, 0] - v[0, 0] - around).square().sum(-1)).max()
    r = (y - v)[0, 0].norm()
    torch.testing.assert_close(worst, 0.5 * r**2 + 0.3 * r + 0.3**2 / 2, rtol=1e-3, atol=0)
    length = ((y - v).square().sum(-1) + 1e-6).sqrt()
    bias = ValueShift(DIMS, delta=0.3, producer="fixed")
    torch.testing.assert_close(bias(y, v), _slope(0.5 * (y - v).square().sum(-1) + 0.3 * length, y))


@pytest.mark.parametrize("kind", [Huber, ValueShift])
def test_delta_may_be_learned_or_come_from_the_token(kind: type[Huber] | type[ValueShift]) -> None:
    y, v = _pair()
    x = torch.randn(2, 6, 5, generator=torch.Generator().manual_seed(1))
    fixed, learned = (
        kind(DIMS, delta=0.7, producer="fixed"),
        kind(DIMS, delta=0.7, producer="learned"),
    )
    torch.testing.assert_close(learned(y, v), fixed(y, v))
    with torch.no_grad():
        learned.log_factor.copy_(torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(learned(y, v)[0::2], fixed(y, v)[0::2])
    assert not torch.allclose(learned(y, v)[1::2], fixed(y, v)[1::2])
    gated = kind(DIMS, delta=0.7, producer="input")
    assert gated.gate is not None
    torch.nn.init.zeros_(gated.gate.project.weight)
    rows = v.unflatten(0, (2, 2)).movedim(1, 2)
    target = gated.target(rows, x).movedim(2, 1).flatten(0, 1)
    assert target.shape == (4, 6, 4)
    torch.testing.assert_close(gated(y, target), fixed(y, v))


@pytest.mark.parametrize("bias", [Lp(DIMS, p=1.0), Huber(DIMS, producer="fixed"), ValueShift(DIMS)])
def test_derivatives_are_finite_at_no_error(bias: Bias) -> None:
    y = torch.zeros(2, 1, 3, requires_grad=True)
    if isinstance(bias, ValueShift):
        bias.init_weights(lambda _: torch.Generator())
    assert _slope(bias(y, torch.zeros(2, 1, 3)), y).isfinite().all()


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: Lp(DIMS, p=0.5), r"Lp\.p=0\.5: must be >= 1"),
        (lambda: Lp(DIMS, surrogate="hard"), "must be one of root, tanh"),
        (lambda: Huber(DIMS, form="both"), "must be one of coordinate, norm, switched"),
        (lambda: Huber(DIMS, producer="token"), "must be one of fixed, learned, input"),
        (lambda: Huber(DIMS, delta=math.inf), "must be positive and finite, or fixed"),
        (lambda: ValueShift(DIMS, eps=0.0), r"ValueShift\.eps=0\.0: must be > 0"),
    ],
)
def test_bad_options_are_refused(make: object, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        make()  # type: ignore[operator]
