"""Least squares: the memory is the minimum of a weighted ridge regression, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ablate.components.neural_memory import NeuralMemory
from ablate.components.recurrence.chunked import run_chunked
from ablate.components.recurrence.coefficients import Gates

ROWS, HEADS, KEY, VALUE = 2, 2, 4, 3
MakeLayer = Callable[..., NeuralMemory]


class Leaves:
    """Tokens, gates and a start to take gradients for; some gates are exactly 0 or 1."""

    def __init__(self, tokens: int, window: int) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            drawn = torch.randn(*shape, dtype=torch.float64, generator=generator)
            return drawn.requires_grad_()

        def gate(*shape: int) -> Tensor:
            return torch.rand(*shape, dtype=torch.float64, generator=generator)

        bth = (ROWS, tokens, HEADS)
        self.q, self.k, self.v = (normal(*bth, n) for n in (KEY, KEY, VALUE))
        self.keep, self.lr, self.gamma = gate(*bth), gate(*bth), gate(*bth, window)
        self.keep[:, 3], self.keep[:, 6], self.lr[:, 2], self.gamma[:, 5] = 0, 1, 0, 1
        for g in (self.keep, self.lr, self.gamma):
            g.requires_grad_()
        self.start = normal(ROWS, HEADS, VALUE, KEY)


@pytest.mark.parametrize("read", ["after", "before"])
def test_a_read_is_that_of_the_weighted_ridge_regression(make_layer: MakeLayer, read: str) -> None:
    layer = make_layer("matrix", "least squares", window=2, degree=1, key=KEY, read=read)
    x = Leaves(9, window=2)
    squares = x.k.new_zeros(ROWS, HEADS, KEY, KEY).requires_grad_()
    gates = Gates(x.keep, x.lr, None, x.gamma)
    state = replace(
        layer.initial_state(ROWS, dtype=torch.float64),
        weights=(x.start,),
        base=(x.start,),
        momentum=(squares,),
    )
    y, last = run_chunked(layer.rule(), x.q, x.k, x.v, gates, state)
    g, h, outputs = x.start, squares, []
    for t in range(9):
        before = (g, h)
        g, h = (x.keep[:, t, :, None, None] * s for s in (g, h))
        for j in range(min(2, t + 1)):
            size = (x.lr[:, t] * x.gamma[:, t, :, j])[..., None, None]
            k, v = x.k[:, t - j].unsqueeze(-2), x.v[:, t - j].unsqueeze(-1)
            g, h = g + size * v * k, h + size * k.mT * k
        now = (g, h) if read == "after" else before
        ridge = torch.eye(KEY, dtype=torch.float64)
        memory = now[0] @ torch.linalg.inv(now[1] + ridge)
        outputs.append((memory @ x.q[:, t].unsqueeze(-1)).squeeze(-1))
    want = torch.stack(outputs, dim=1)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(last.momentum[0], h)
    leaves = [x.q, x.k, x.v, x.keep, x.lr, x.gamma, squares, x.start]
    seed = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
    for got, wanted in zip(
        torch.autograd.grad(y, leaves, seed), torch.autograd.grad(want, leaves, seed), strict=True
    ):
        torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-8)


def test_without_forgetting_it_is_recursive_least_squares(make_layer: MakeLayer) -> None:
    layer = make_layer("matrix", "least squares", window=1, degree=1, key=KEY)
    x = Leaves(12, window=1)
    ones = torch.ones_like(x.lr)
    state = layer.initial_state(ROWS, dtype=torch.float64)
    state = replace(state, weights=(torch.zeros_like(state.weights[0]),))
    y, _ = run_chunked(
        layer.rule(), x.q, x.k, x.v, Gates(ones, ones, None, ones.unsqueeze(-1)), state
    )
    k, v = x.k[0, :, 0], x.v[0, :, 0]
    p, memory = torch.eye(KEY, dtype=torch.float64), torch.zeros(VALUE, KEY)
    memory = memory.double()
    for t in range(12):
        gain = p @ k[t] / (1 + k[t] @ p @ k[t])
        memory = memory + torch.outer(v[t] - memory @ k[t], gain)
        p = p - torch.outer(gain, k[t] @ p)
        torch.testing.assert_close(y[0, t, 0], memory @ x.q[0, t, 0])
    penalty = torch.eye(KEY, dtype=torch.float64)
    torch.testing.assert_close(memory, v.T @ k @ torch.linalg.inv(k.T @ k + penalty))
