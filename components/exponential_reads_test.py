"""Reads before the write, and positions, for feature maps that are known by their kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu

from ablate.components.attention import SoftmaxAttention, rotate
from ablate.components.backbone import unit
from ablate.components.backbone_test import draw, initialise
from ablate.components.exponential import Exponential, ExponentialMemory
from ablate.components.exponential_test import HEADS, gates_of, in_pieces, inputs, make, truncate
from ablate.components.exponential_test import attend as attend_values
from ablate.components.exponential_test import oracle as run_loop

EVEN = 4


def even_inputs(t: int, rows: int = 2) -> tuple[Tensor, ...]:
    q, k = (unit(draw(rows, t, HEADS, EVEN, seed=seed)) for seed in (1, 2))
    return q, k, draw(rows, t, HEADS, EVEN, seed=3), draw(rows, t, 5, seed=4)


BEFORE: list[dict[str, Any]] = [
    {"memory": "mlp", "bias": "dot", "window": 2},
    {"memory": "mlp", "bias": "l2", "window": 3, "chunk": 4},
    {"memory": "deep", "bias": "l2", "chunk": 4},
    {"memory": "matrix", "bias": "l2", "window": 2, "chunk": 1},
]


@pytest.mark.parametrize("options", BEFORE)
def test_a_read_before_the_write_equals_the_token_loop(options: dict[str, Any]) -> None:
    layer = make(**options, read="before")
    features, sequence = truncate(layer, degree=3), inputs()
    expected = run_loop(layer, features, sequence)
    torch.testing.assert_close(layer(*sequence)[0], expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("memory", ["mlp", "matrix"])
def test_a_read_before_the_write_does_not_see_its_own_token(memory: str) -> None:
    """A span counts the tokens before it then, as it counts its own after the write."""
    q, k, v, x = inputs()
    layer = make(memory, span=3, read="before")
    keys, values = k.clone().requires_grad_(), v.clone().requires_grad_()
    y, _ = layer(q, keys, values, x)
    for gradient in torch.autograd.grad(y[:, 7].sum(), (keys, values)):
        moved = gradient.abs().sum(dim=(0, 2, 3)).nonzero().flatten().tolist()
        assert moved == [4, 5, 6]


def attend(layer: ExponentialMemory, q: Tensor, k: Tensor) -> Tensor:
    """exp(s (q . k - 1)) over the past, b h t s."""
    scale: Tensor = layer.feature_map.log_scale.exp()  # type: ignore[operator]
    return torch.exp(scale[:, None, None] * (torch.einsum("bthd,bshd->bhts", q, k) - 1)).tril()


def test_deep_transformers_are_two_attentions_and_rotate_tokens_but_no_anchor() -> None:
    """Hidden read A exp(Z q) + sum_i lr_i exp(k_i . q_t) u_i with rotated q and k; then linear
    attention over hidden features (identity O6 written out, with positions)."""
    layer = make("mlp", "dot", forget=False, gates="none", rope=True, key=EVEN)
    q, k, v, x = even_inputs(9)
    w2, w1 = layer.memory.initial()  # type: ignore[operator]
    lr = gates_of(layer, x).lr.transpose(1, 2).unsqueeze(2)  # b h 1 s
    scale: Tensor = layer.feature_map.log_scale.exp()  # type: ignore[operator]
    anchors: Tensor = layer.feature_map.anchors  # type: ignore[assignment]

    def start(z: Tensor) -> Tensor:
        near = torch.einsum("bthd,had->bhta", z, anchors)
        return torch.exp(scale[:, None, None] * (near - 1)) @ w2.mT

    h = start(k).requires_grad_()
    slope = torch.autograd.grad(gelu(h).sum(), h)[0]
    u = torch.einsum("heo,bshe->bhso", w1, v) * slope
    turned = attend(layer, rotate(q, start=0), rotate(k, start=0))
    z = gelu(start(q) + (lr * turned) @ u)
    written = (lr * (z @ gelu(h).mT).tril()) @ v.transpose(1, 2)
    expected = q + (z @ w1.mT + written).transpose(1, 2)
    torch.testing.assert_close(layer(q, k, v, x)[0], expected, rtol=0, atol=1e-11)


def test_with_positions_and_a_constant_step_it_is_the_rotary_attention_mixer() -> None:
    layer = make("matrix", normalised=True, forget=False, gates="none", anchors=0, rope=True, key=4)
    torch.nn.init.zeros_(layer.inner_optimizer.lr.project.weight)
    attention = initialise(SoftmaxAttention(layer.dims, rope=True))
    sequence = even_inputs(70)
    expected = 0.4 * 0.5 * attention(*sequence)[0]
    torch.testing.assert_close(layer(*sequence)[0], expected, rtol=0, atol=1e-12)


MIXED: list[dict[str, Any]] = [
    {"memory": "mlp", "bias": "dot", "window": 2, "read": "before"},
    {"memory": "mlp", "bias": "dot", "span": 4, "normalised": True, "read": "before"},
    {"memory": "mlp", "bias": "l2", "window": 3, "chunk": 4, "rope": True},
    {"memory": "matrix", "bias": "l2", "window": 2, "chunk": 1, "rope": True, "read": "before"},
    {"memory": "gated", "bias": "dot", "window": 2, "span": 4, "rope": True, "normalised": True},
]


@pytest.mark.parametrize("options", MIXED)
def test_pieces_equal_the_whole_and_gradients_are_slopes(options: dict[str, Any]) -> None:
    layer, sequence = make(**options, key=EVEN), even_inputs(9)
    whole, _ = layer(*sequence)
    for sizes in ([1] * 9, [4, 5], [2, 6, 1]):
        torch.testing.assert_close(in_pieces(layer, sequence, sizes), whole, rtol=0, atol=1e-11)
    short = [part.requires_grad_() for part in even_inputs(4, rows=1)]
    weights = list(layer.parameters())

    def output(*given: Tensor) -> Tensor:
        y: Tensor = layer(*given[:4])[0]
        return y

    assert torch.autograd.gradcheck(output, (*short, *weights), fast_mode=True)


def test_retrieved_queries_stand_where_the_next_token_will() -> None:
    layer = make("mlp", "l2", window=2, chunk=4, rope=True, key=EVEN, forget=False)
    _, state = layer(*even_inputs(9))
    q, k, v, x = even_inputs(1)
    layer.inner_optimizer.lr_max = 0.0
    retrieved = layer.retrieve(q, layer.frozen(state, 2))
    torch.testing.assert_close(layer(q, k, v, x, state)[0], retrieved, rtol=0, atol=1e-11)


def test_wrong_widths_and_reads_are_refused_by_name() -> None:
    layer = make()
    q, k, v, x = inputs()
    with pytest.raises(ValueError, match=r"q has shape \(2, 9, 2, 2\): must be \(batch, time >= 1"):
        layer(q[..., :2], k[..., :2], v, x)
    with pytest.raises(ValueError, match=r"q has shape \(2, 0, 2, 3\)"):
        layer(q[:, :0], k[:, :0], v[:, :0], x[:, :0])
    with pytest.raises(ValueError, match="read='never': must be one of after, before"):
        make(read="never")
    with pytest.raises(ValueError, match="rope=True needs an even key width, not 3"):
        Exponential(layer.dims, rope=True)


def test_a_windowed_write_counts_a_token_once_for_each_window_it_is_in() -> None:
    layer = make("matrix", window=3, forget=False, gates="none", anchors=0)
    q, k, v, x = inputs()
    lr = gates_of(layer, x).lr
    y, _ = layer(q, k, v, x)
    for t in range(9):
        total = torch.zeros_like(v)
        for i in range(t + 1):
            total[:, i] = v[:, i] * lr[:, i : min(t, i + 2) + 1].sum(1).unsqueeze(-1)
        expected = attend_values(layer, q, k, total, softmax=False)[:, t]
        torch.testing.assert_close(y[:, t], expected, rtol=0, atol=1e-11)
