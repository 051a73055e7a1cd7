from __future__ import annotations

import pytest
import torch

from ablate.components.recurrence.coefficients import (
    banded,
    decay_matrix,
    fold_linear,
    fold_orthogonal,
)


def _uniform(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _decay(rate: torch.Tensor) -> torch.Tensor:
    n = len(rate)
    rows = [
        [rate[s + 1 : t + 1].prod() if s <= t else rate[0] * 0 for s in range(n)] for t in range(n)
    ]
    return torch.stack([torch.stack(row) for row in rows])


@pytest.mark.parametrize("n", [1, 2, 6])
def test_decay_is_the_product_of_the_rates_between(n: int) -> None:
    rate = _uniform(3, n)
    torch.testing.assert_close(decay_matrix(rate), torch.stack([_decay(r) for r in rate]))


def test_decay_has_exact_derivatives_at_gates_of_zero_and_one() -> None:
    rate = torch.tensor([0.3, 0.0, 1.0, 0.0, 0.7, 1.0], dtype=torch.float64, requires_grad=True)
    weight = _uniform(6, 6, seed=1) - 0.5
    want = torch.autograd.grad((_decay(rate) * weight).sum(), rate)
    got = torch.autograd.grad((decay_matrix(rate) * weight).sum(), rate)
    torch.testing.assert_close(got, want)
    assert got[0].abs().max() > 0
    assert torch.autograd.gradcheck(decay_matrix, rate)


@pytest.mark.parametrize(("n", "c"), [(1, 1), (4, 1), (4, 3), (1, 3), (3, 5)])
def test_banded_puts_offset_j_on_the_source_j_tokens_back(n: int, c: int) -> None:
    gamma = _uniform(2, n, c)
    got = banded(gamma)
    want = torch.zeros(2, n, n + c - 1, dtype=torch.float64)
    for t in range(n):
        for j in range(c):
            want[:, t, t + c - 1 - j] = gamma[:, t, j]
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("step_inside", [True, False])
def test_linear_weights_equal_the_recurrence(step_inside: bool) -> None:
    n, c = 5, 3
    keep, lr, theta, gamma = (_uniform(n, seed=s) for s in range(3)), None, None, None
    keep, lr, theta = keep
    gamma = _uniform(n, c, seed=3)
    weights = fold_linear(
        *(g.view(1, 1, n) for g in (keep, lr, theta)),
        gamma.view(1, 1, n, c),
        step_inside=step_inside,
    )
    sources = n + c - 1
    memory = torch.zeros(2 + sources, dtype=torch.float64)  # weights of W, S and every gradient
    memory[0] = 1
    momentum = torch.zeros_like(memory)
    momentum[1] = 1
    assert weights.momentum is not None
    assert weights.next_read is not None
    for t in range(n):
        fresh = torch.zeros_like(memory)
        for j in range(c):
            fresh[2 + t + c - 1 - j] = gamma[t, j]
        momentum = theta[t] * momentum + (lr[t] if step_inside else 1) * fresh
        memory = keep[t] * memory - (1 if step_inside else lr[t]) * momentum
        row = torch.cat(
            [weights.carry[0, 0, t], -weights.momentum[0, 0, t], -weights.read[0, 0, t]]
        )
        torch.testing.assert_close(row, memory)
    torch.testing.assert_close(weights.next_read[0, 0, :, 0], momentum[2:])


@pytest.mark.parametrize("writes", [[], [1, 3], [0, 1, 2, 3, 4], [4]])
def test_orthogonal_weights_gather_the_steps_of_each_group(writes: list[int]) -> None:
    n = 5
    keep, lr, theta = (_uniform(n, seed=s) for s in range(3))
    step = torch.tensor([0.4], dtype=torch.float64)
    weights = fold_orthogonal(
        *(g.view(1, 1, n) for g in (keep, lr, theta)),
        _uniform(1, 1, n, 1, seed=3),
        writes=writes,
        step=step,
    )
    pending, memory = step[0], torch.zeros(len(writes), dtype=torch.float64)
    for t in range(n):
        pending, memory = keep[t] * pending + lr[t], keep[t] * memory
        if t in writes:
            memory[writes.index(t)] = pending
            pending = pending * 0
        if weights.write is not None:
            torch.testing.assert_close(weights.write[0, 0, t], memory)
    torch.testing.assert_close(weights.pending[0, 0], pending)
    assert (weights.write is None) == (not writes)
