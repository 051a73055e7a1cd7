from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ablate.components.attention import AttentionState, SoftmaxAttention, rotate
from ablate.components.backbone import unit
from ablate.components.backbone_test import draw, initialise
from ablate.components.dims import Dims

DIMS = Dims(model=8, heads=2, key=4, value=3)


def inputs(t: int, rows: int = 2) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k = (unit(draw(rows, t, 2, 4, seed=seed)) for seed in (1, 2))
    return q, k, draw(rows, t, 2, 3, seed=3), draw(rows, t, 8, seed=4)


def by_hand(q: Tensor, k: Tensor, v: Tensor, *, rope: bool, window: int | None) -> Tensor:
    """The definition in loops: softmax of 2 q.k (2 = sqrt of the key width) over what is seen."""
    y = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
    for b in range(q.shape[0]):
        for h in range(q.shape[2]):
            for t in range(q.shape[1]):
                first = 0 if window is None else max(0, t - window + 1)
                weights = []
                for s in range(first, t + 1):
                    query, key = q[b, t, h], k[b, s, h]
                    if rope:
                        query, key = turn(query, t), turn(key, s)
                    weights.append(math.exp(2.0 * float(query @ key)))
                for s, weight in zip(range(first, t + 1), weights, strict=True):
                    y[b, t, h] += weight / sum(weights) * v[b, s, h]
    return y


def turn(x: Tensor, place: int) -> Tensor:
    """Rotary embedding by complex numbers."""
    speeds = torch.tensor([1.0, 0.01], dtype=torch.float64)
    turned = torch.complex(x[:2], x[2:]) * torch.exp(1j * place * speeds)
    return torch.cat((turned.real, turned.imag))


@pytest.mark.parametrize("rope", [True, False])
@pytest.mark.parametrize("window", [None, 1, 3, 50])
def test_equals_the_definition(rope: bool, window: int | None) -> None:
    attention = initialise(SoftmaxAttention(DIMS, rope=rope, window=window))
    q, k, v, x = inputs(6)
    y, _ = attention(q, k, v, x)
    expected = by_hand(q, k, v, rope=rope, window=window)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("window", [None, 1, 3, 50])
@pytest.mark.parametrize("pieces", [[1] * 9, [4, 5], [2, 1, 6], [8, 1]])
def test_pieces_with_the_cache_equal_the_whole(window: int | None, pieces: list[int]) -> None:
    attention = initialise(SoftmaxAttention(DIMS, window=window))
    sequence = inputs(9)
    whole, _ = attention(*sequence)
    state, read = None, []
    for piece in zip(*(torch.split(part, pieces, dim=1) for part in sequence), strict=True):
        y, state = attention(*piece, state)
        read.append(y)
    torch.testing.assert_close(torch.cat(read, dim=1), whole, rtol=0, atol=1e-12)
    assert isinstance(state, AttentionState)
    assert state.position == 9
    assert state.keys.shape[2] == (9 if window is None else min(9, window - 1))


def test_attention_is_the_weighted_least_squares_fit_of_its_window() -> None:
    """y minimises sum_i K(k_i, q) |v_i - y|^2 over the window: identity O14, Atlas Eq. 17-18."""
    attention = initialise(SoftmaxAttention(DIMS, rope=False, window=4))
    q, k, v, x = inputs(9)
    y = attention(q, k, v, x)[0].detach().requires_grad_()
    for t in range(9):
        seen = slice(max(0, t - 3), t + 1)
        kernel = torch.exp(2.0 * torch.einsum("bhd,bshd->bsh", q[:, t], k[:, seen]))
        distance = (v[:, seen] - y[:, t : t + 1]).square().sum(-1)
        (slope,) = torch.autograd.grad((kernel * distance).sum(), y)
        torch.testing.assert_close(slope, torch.zeros_like(slope), rtol=0, atol=1e-12)


def test_rotation_keeps_lengths_and_feels_distance_only() -> None:
    q, k = draw(1, 1, 1, 4), draw(1, 1, 1, 4, seed=1)
    near = (rotate(q, start=7) * rotate(k, start=4)).sum()
    far = (rotate(q, start=100_007) * rotate(k, start=100_004)).sum()
    torch.testing.assert_close(near, far, rtol=0, atol=1e-9)
    torch.testing.assert_close(rotate(q, start=5).norm(), q.norm())
    assert torch.equal(rotate(q, start=0), q)


def test_logits_of_random_unit_vectors_start_with_variance_one() -> None:
    attention = SoftmaxAttention(Dims(model=8, heads=1, key=16, value=16))
    initialise(attention)
    q, k = unit(draw(4000, 16)), unit(draw(4000, 16, seed=1))
    logits = attention.log_scale.exp() * (q * k).sum(dim=-1)
    assert logits.var().item() == pytest.approx(1.0, abs=0.08)


def test_the_logit_factor_is_learned() -> None:
    attention = initialise(SoftmaxAttention(DIMS))
    loss = attention(*inputs(5))[0].square().sum()
    (gradient,) = torch.autograd.grad(loss, list(attention.parameters()))
    assert gradient.count_nonzero() == 2


def test_low_precision_inputs_come_back_in_their_type() -> None:
    attention = initialise(SoftmaxAttention(DIMS)).float()
    exact, _ = attention(*(part.float() for part in inputs(6)))
    coarse, _ = attention(*(part.bfloat16() for part in inputs(6)))
    assert coarse.dtype == torch.bfloat16
    torch.testing.assert_close(coarse.float(), exact, rtol=0, atol=0.05)


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="even key width, but dims.key is 3"):
        SoftmaxAttention(Dims(model=8, heads=2, key=3, value=4))
    with pytest.raises(ValueError, match="window=0"):
        SoftmaxAttention(DIMS, window=0)
