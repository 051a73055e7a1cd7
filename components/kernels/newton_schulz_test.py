"""In Triton's interpreter, against torch in float64: outputs and every gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ablate.components.kernels.newton_schulz import orthogonal_sums
from ablate.components.newton_schulz import COEFFICIENTS
from ablate.components.orthogonal_sums_test import EPS, draw, plainly

NAMES = ("s0", "u", "z", "carry", "read", "write", "end", "right")


def apart(found: Tensor, true: Tensor) -> float:
    """Distance relative to the true tensor's norm."""
    return float((found.double() - true).norm() / true.norm().clamp_min(1e-30))


def gradients(outputs: tuple[Tensor, Tensor], inputs: list[Tensor]) -> tuple[Tensor, ...]:
    stream = torch.Generator().manual_seed(1)
    weights = [torch.randn(y.shape, generator=stream).to(y.dtype) for y in outputs]
    total = sum((y * w).sum() for y, w in zip(outputs, weights, strict=True))
    return torch.autograd.grad(total, inputs)


@pytest.mark.parametrize(
    ("o", "i", "sources", "writes", "tokens"),
    [
        pytest.param(8, 12, 5, 4, 6, id="wide, halo"),
        pytest.param(12, 8, 5, 4, 6, id="tall, halo"),
        pytest.param(16, 70, 17, 2, 3, id="several blocks of columns"),
        pytest.param(5, 5, 1, 1, 1, id="one token"),
    ],
)
@pytest.mark.parametrize("coefficients", ["quintic", "cubic"])
def test_sums_and_every_gradient_are_those_of_torch(
    o: int, i: int, sources: int, writes: int, tokens: int, coefficients: str
) -> None:
    schedule = COEFFICIENTS[coefficients] * 3
    inputs = [x.float().requires_grad_() for x in draw(o, i, sources, writes, tokens)]
    true_inputs = [x.detach().double().requires_grad_() for x in inputs]
    outputs = orthogonal_sums(*inputs, schedule=schedule, eps=EPS)
    truth = plainly(tuple(true_inputs), schedule)
    for found, true in zip(outputs, truth, strict=True):
        assert apart(found, true) < 2e-5
    made, right = gradients(outputs, inputs), gradients(truth, true_inputs)
    for name, found, true in zip(NAMES, made, right, strict=True):
        assert apart(found, true) < 5e-5, name


def test_bf16_inputs_are_read_as_fp32() -> None:
    inputs = [x.to(torch.bfloat16) for x in draw(8, 8, 3, 2, 3)]
    y, made = orthogonal_sums(*inputs, schedule=COEFFICIENTS["quintic"] * 2, eps=EPS)
    true_y, true_made = plainly(tuple(x.double() for x in inputs), COEFFICIENTS["quintic"] * 2)
    assert (y.dtype, made.dtype) == (torch.bfloat16, torch.bfloat16)
    assert apart(y, true_y) < 4e-3  # one rounding to 8 bits
    assert apart(made, true_made) < 4e-3


def test_a_gate_of_zero_and_no_momentum_have_finite_gradients() -> None:
    inputs = [x.float() for x in draw(8, 8, 3, 2, 3)]
    inputs[3], inputs[4] = torch.zeros_like(inputs[3]), torch.zeros_like(inputs[4])
    inputs = [x.requires_grad_() for x in inputs]
    y, made = orthogonal_sums(*inputs, schedule=COEFFICIENTS["quintic"] * 2, eps=EPS)
    assert not y.any()
    assert not made.any()
    assert all(torch.isfinite(grad).all() for grad in gradients((y, made), inputs))


def test_what_the_kernel_cannot_hold_is_refused_by_its_size() -> None:
    with pytest.raises(ValueError, match="160 by 200; the smaller side must be at most 128"):
        orthogonal_sums(*draw(160, 200, 1, 1, 1), schedule=COEFFICIENTS["quintic"], eps=EPS)
    with pytest.raises(ValueError, match="65 tokens; at most 64"):
        orthogonal_sums(*draw(8, 8, 1, 1, 65), schedule=COEFFICIENTS["quintic"], eps=EPS)
