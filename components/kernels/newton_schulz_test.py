"""In Triton's interpreter, against torch in float64: outputs and every gradient."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from ablate.components.kernels import newton_schulz
from ablate.components.kernels.exactness import worst
from ablate.components.kernels.newton_schulz import launches
from ablate.components.kernels.products import Products
from ablate.components.newton_schulz import COEFFICIENTS
from ablate.components.orthogonal_sums import orthogonal_sums
from ablate.components.orthogonal_sums_test import EPS, draw, plainly

NAMES = ("s0", "u", "z", "carry", "read", "write", "end", "right")


def gradients(outputs: tuple[Tensor, Tensor], inputs: list[Tensor]) -> tuple[Tensor, ...]:
    stream = torch.Generator().manual_seed(1)
    weights = [torch.randn(y.shape, generator=stream).to(y.dtype) for y in outputs]
    total = sum((y * w).sum() for y, w in zip(outputs, weights, strict=True))
    return torch.autograd.grad(total, inputs)


@pytest.mark.parametrize(
    ("o", "i", "sources", "writes", "tokens", "coefficients"),
    [
        pytest.param(8, 12, 5, 4, 6, "quintic", id="wide, halo"),
        pytest.param(12, 8, 5, 3, 6, "cubic", id="tall, halo, two programs"),
        pytest.param(16, 70, 17, 1, 3, "quintic", id="several blocks of columns and sources"),
        pytest.param(6, 7, 20, 3, 18, "cubic", id="two programs, two tiles of tokens and sources"),
        pytest.param(3, 60, 4, 3, 5, "quintic", id="on small coordinates"),
        pytest.param(4, 6, 2, 2, 0, "quintic", id="nothing is read"),
        pytest.param(5, 5, 1, 1, 1, "quintic", id="one token"),
    ],
)
def test_sums_and_every_gradient_are_those_of_torch(
    o: int,
    i: int,
    sources: int,
    writes: int,
    tokens: int,
    coefficients: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(newton_schulz, "GROUP", 2)
    schedule = COEFFICIENTS[coefficients] * 2
    inputs = [x.float().requires_grad_() for x in draw(o, i, sources, writes, tokens)]
    true_inputs = [x.detach().double().requires_grad_() for x in inputs]
    outputs = newton_schulz.orthogonal_sums(*inputs, schedule=schedule, eps=EPS)
    truth = plainly(tuple(true_inputs), schedule)
    assert worst(outputs, truth) < 2e-5
    made, right = gradients(outputs, inputs), gradients(truth, true_inputs)
    for name, found, true in zip(NAMES, made, right, strict=True):
        assert worst([found], [true]) < 5e-5, name


def test_bf16_inputs_are_read_as_fp32() -> None:
    inputs = [x.to(torch.bfloat16) for x in draw(8, 8, 3, 2, 3)]
    y, made = newton_schulz.orthogonal_sums(*inputs, schedule=COEFFICIENTS["cubic"] * 2, eps=EPS)
    true_y, true_made = plainly(tuple(x.double() for x in inputs), COEFFICIENTS["cubic"] * 2)
    assert (y.dtype, made.dtype) == (torch.bfloat16, torch.bfloat16)
    assert worst((y, made), (true_y, true_made)) < 4e-3  # one rounding to 8 bits


def test_a_gate_of_zero_and_no_momentum_have_finite_gradients() -> None:
    inputs = [x.float() for x in draw(8, 8, 3, 2, 3)]
    inputs[3], inputs[4] = torch.zeros_like(inputs[3]), torch.zeros_like(inputs[4])
    inputs = [x.requires_grad_() for x in inputs]
    y, made = newton_schulz.orthogonal_sums(*inputs, schedule=COEFFICIENTS["cubic"] * 2, eps=EPS)
    assert not y.any()
    assert not made.any()
    assert all(torch.isfinite(grad).all() for grad in gradients((y, made), inputs))


def test_lanes_have_the_gradients_of_torch() -> None:
    inputs = tuple(x.float() for x in draw(4, 6, 1, 1, 2, lanes=(2,)))
    shared = inputs[-1][0]
    schedule = COEFFICIENTS["cubic"]

    def slopes(form: Callable[..., tuple[Tensor, Tensor]]) -> tuple[Tensor, ...]:
        def total(s0: Tensor, right: Tensor, *rest: Tensor) -> Tensor:
            y, end = form(s0, *rest, right, schedule=schedule, eps=EPS)
            return y.square().sum() + end.sum()

        mapped = vmap(grad(total, argnums=(0, 1)), in_dims=(0, None, *(0,) * 6))
        found: tuple[Tensor, ...] = mapped(inputs[0], shared, *inputs[1:7])
        return found

    torch.testing.assert_close(slopes(newton_schulz.orthogonal_sums), slopes(orthogonal_sums))


def test_every_launch_gives_the_same() -> None:
    inputs = tuple(x[:1].float() for x in draw(20, 70, 1, 1, 2))
    tried = launches(20, 70, Products("float32", "ieee"), shared=1 << 20)
    assert [(one.block, one.cols, one.warps) for one in tried] == [(32, 96, 4), (16, 80, 4)]
    schedule = COEFFICIENTS["cubic"]
    one, other = (newton_schulz.sums(inputs, schedule, EPS, launch) for launch in tried)
    torch.testing.assert_close(one, other)
    slopes = [newton_schulz.gradients(inputs, *one, schedule, EPS, launch) for launch in tried]
    torch.testing.assert_close(slopes[0], slopes[1])


def test_launches_are_those_that_fit_into_shared_memory() -> None:
    kind = Products("bfloat16", "ieee")
    assert [one.block for one in launches(64, 64, kind, shared=24_576)] == [64, 32, 64]
    assert [one.block for one in launches(64, 64, kind, shared=24_575)] == [32]
    with pytest.raises(ValueError, match="128 by 128 take 65536 bytes of shared memory"):
        launches(128, 128, kind, shared=40_000)


def test_what_the_kernel_cannot_hold_is_refused_by_its_size() -> None:
    with pytest.raises(ValueError, match="160 by 200; the smaller side must be at most 128"):
        newton_schulz.orthogonal_sums(
            *(x.float() for x in draw(160, 200, 1, 1, 1)),
            schedule=COEFFICIENTS["quintic"], eps=EPS,
        )  # fmt: skip
