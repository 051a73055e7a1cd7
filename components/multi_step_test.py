"""Several steps for every token: products of Householder matrices, read after the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv1d, normalize, pad, silu

from ablate.components.dims import Dims
from ablate.components.multi_step import MultiStepGradientDescent
from ablate.components.neural_memory import NeuralMemory
from ablate.components.recurrence.oracle import Definition, run_oracle
from ablate.components.state_size import state_bytes

MakeLayer = Callable[..., NeuralMemory]


def inputs(layer: NeuralMemory, tokens: int = 7) -> list[Tensor]:
    generator, dims = torch.Generator().manual_seed(3), layer.dims

    def normal(*shape: int) -> Tensor:
        return torch.randn(2, tokens, *shape, dtype=torch.float64, generator=generator)

    q, k = (normalize(normal(dims.heads, dims.key), dim=-1) for _ in range(2))
    return [q, k, normal(dims.heads, dims.value), normal(dims.model)]


def steps_of(layer: NeuralMemory, k: Tensor, v: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of all steps, b t n h d, written from the parameters."""
    optimizer: Any = layer.inner_optimizer
    taps = optimizer.conv.weight
    projected = (x @ optimizer.project.weight.T).mT
    mixed = conv1d(pad(projected, (taps.shape[-1] - 1, 0)), taps, groups=taps.shape[0])
    keys, values = silu(mixed.mT).split(optimizer.widths, dim=-1)
    shape = (optimizer.steps - 1, layer.dims.heads, -1)
    keys = keys.unflatten(-1, shape)
    keys = keys / torch.sqrt((keys**2).sum(-1, keepdim=True) + 1e-6)
    return (
        torch.cat([keys, k.unsqueeze(2)], dim=2),
        torch.cat([values.unflatten(-1, shape), v.unsqueeze(2)], dim=2),
    )


@pytest.mark.parametrize("read", ["after", "before"])
def test_a_token_multiplies_by_householder_matrices(make_layer: MakeLayer, read: str) -> None:
    """M_n = alpha_n M_{n-1} prod_j (I - lr_j k_j k_j^T) + the later factors on lr_j v_j k_j^T."""
    layer = make_layer("matrix", "multi step", window=1, chunk=1, degree=1, key=4, read=read)
    q, k, v, x = inputs(layer)
    leaves = [q, k, v, x, *layer.parameters()]
    for leaf in leaves:
        leaf.requires_grad_()
    y, _ = layer(q, k, v, x)
    gates, _ = layer.gates(x, layer.initial_state(2, dtype=torch.float64))
    keep, lr, gamma = (part.unflatten(1, (7, 2)) for part in (gates.keep, gates.lr, gates.gamma))
    assert (keep[:, :, 1] == 1).all()
    keys, values = steps_of(layer, k, v, x)
    m = layer.memory.initial()[0].expand(2, -1, -1, -1)  # type: ignore[operator]
    eye, rows = torch.eye(4, dtype=torch.float64), []
    for t in range(7):
        rows += [m] if read == "before" else []
        product, writes = eye.expand(2, 2, 4, 4), torch.zeros_like(m)
        for j in range(2):
            step = (lr[:, t, j] * gamma[:, t, j, :, 0])[..., None, None]
            outer = keys[:, t, j].unsqueeze(-1) * keys[:, t, j].unsqueeze(-2)
            write = step * values[:, t, j].unsqueeze(-1) * keys[:, t, j].unsqueeze(-2)
            product = product @ (eye - step * outer)
            writes = writes @ (eye - step * outer) + write
        m = keep[:, t, 0, :, None, None] * m @ product + writes
        rows += [m] if read == "after" else []
    want = torch.einsum("tbhed,bthd->bthe", torch.stack(rows), q)
    torch.testing.assert_close(y, want, rtol=1e-10, atol=1e-11)
    seed = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
    got_grads = torch.autograd.grad(y, leaves, seed, allow_unused=True)
    want_grads = torch.autograd.grad(want, leaves, seed, allow_unused=True)
    for g, w in zip(got_grads, want_grads, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-8, atol=1e-9)


def test_a_deep_memory_equals_the_token_loop_on_all_steps(make_layer: MakeLayer) -> None:
    layer = make_layer("mlp", "three steps", window=1, chunk=1, degree=1)
    q, k, v, x = inputs(layer, tokens=5)
    keys, values = steps_of(layer, k, v, x)
    gates, _ = layer.gates(x, layer.initial_state(2, dtype=torch.float64))
    weights = tuple(w.expand(2, -1, -1, -1) for w in layer.memory.initial())  # type: ignore[operator]
    definition = Definition(bias="l2", chunk=1, window=1, step_inside=True, residual=True)
    asked = q.repeat_interleave(3, dim=1)
    tokens = (asked, keys.flatten(1, 2), values.flatten(1, 2))
    want, last, _ = run_oracle(definition, lambda z: z, *tokens, gates, weights)
    y, state = layer(q, k, v, x)
    torch.testing.assert_close(y, want[:, 2::3], rtol=1e-10, atol=1e-11)
    for g, w in zip(state.weights, last, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-10, atol=1e-11)


def test_the_state_has_the_convolutions_tail_and_no_more(make_layer: MakeLayer) -> None:
    layer = make_layer("matrix", "multi step", window=1, chunk=1, degree=1, key=4)
    _, state = layer(*inputs(layer))
    matrix, tail = 2 * 2 * 3 * 4, 2 * 3 * 2 * (4 + 3)
    assert state_bytes(state) == 8 * (matrix + tail)


def test_impossible_options_are_refused() -> None:
    dims = Dims(model=5, heads=2, key=4, value=3)
    with pytest.raises(ValueError, match="steps=0: must be >= 1"):
        MultiStepGradientDescent(dims, steps=0)
    with pytest.raises(ValueError, match="prediction='new': must be one of undecayed, decayed"):
        MultiStepGradientDescent(dims, prediction="new")
