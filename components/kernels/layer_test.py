"""A whole memory layer through the kernels, in Triton's interpreter, against torch in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from ablate.components.kernels import newton_schulz
from ablate.components.kernels.backend import served

if TYPE_CHECKING:
    from ablate.components.conftest import MakeLayer


def outcome(layer: Any, tokens: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Outputs and state of two calls, the second from the first one's state; all gradients."""
    stream = torch.Generator().manual_seed(3)
    dims, dtype = layer.dims, next(layer.parameters()).dtype
    shapes = [(1, tokens, dims.heads, n) for n in (dims.key, dims.key, dims.value)]
    shapes.append((1, tokens, dims.model))
    whole = [
        torch.randn(shape, generator=stream, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in shapes
    ]
    first, state = layer(*(x[:, :5] for x in whole))
    second, state = layer(*(x[:, 5:] for x in whole), state)
    outputs = [first, second, *state.weights, *state.momentum]
    total = sum((y * torch.arange(y.numel()).to(y).view_as(y).cos()).sum() for y in outputs)
    given = dict(zip("qkvx", whole, strict=True)) | dict(layer.named_parameters())
    slopes = torch.autograd.grad(total, list(given.values()), allow_unused=True)
    return outputs, {n: g for n, g in zip(given, slopes, strict=True) if g is not None}


@pytest.mark.parametrize(
    ("memory", "made"),
    [
        pytest.param("matrix", {"window": 3, "degree": 2, "value": 2}, id="halo, odd, features"),
        pytest.param("mlp", {"window": 2, "degree": 1, "granularity": 2}, id="deep, in pairs"),
    ],
)
def test_a_layer_and_every_gradient_are_those_of_torch(
    make_layer: MakeLayer, monkeypatch: pytest.MonkeyPatch, memory: str, made: dict[str, Any]
) -> None:
    layer = make_layer(memory, "muon", chunk=4, steps=2, **made)
    truth, true_slopes = outcome(layer, 7)
    layer = layer.float()
    layer.backend = "triton"
    calls: list[str] = []
    for name in ("sums", "gradients"):
        form = getattr(newton_schulz, name)
        monkeypatch.setattr(
            newton_schulz, name, lambda *a, f=form, n=name: calls.append(n) or f(*a)
        )
    found, slopes = outcome(layer, 7)
    assert {one.backend for one in served(layer, torch.device("cpu"))} == {"triton"}
    assert set(calls) == {"sums", "gradients"}
    assert slopes.keys() == true_slopes.keys()
    for one, true in zip(found, truth, strict=True):
        torch.testing.assert_close(one.double(), true, rtol=1e-4, atol=2e-5)
    for name, slope in slopes.items():
        error = (slope.double() - true_slopes[name]).norm() / true_slopes[name].norm()
        assert error < 2e-4, name
