from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from ablate.experiments.learnability.targets import Pairs, Target, attend, make_pairs

TARGETS: tuple[Target, ...] = (
    "low_rank",
    "mlp",
    "attention_mlp",
    "attention_input",
    "window_mlp",
)


def stream(name: str) -> np.random.Generator:
    return np.random.default_rng(list(name.encode()))


def pairs(target: Target, *, length: int = 9, dim: int = 6, window: int = 4) -> Pairs:
    return make_pairs(target, stream, length=length, dim=dim, rank=2, window=window)


def drawn(name: str, rows: int, columns: int) -> Tensor:
    numbers = stream(f"target.{name}").standard_normal((rows, columns), dtype=np.float32)
    return torch.from_numpy(numbers).double()


def mlp_by_hand(x: Tensor) -> Tensor:
    hidden = drawn("hidden", 6, 6) @ x / math.sqrt(6)
    active = torch.tensor([h * 0.5 * (1 + math.erf(h / math.sqrt(2))) for h in hidden.tolist()])
    return drawn("output", 6, 6) @ active.double() / math.sqrt(6)


def attention_by_hand(window: int | None) -> Tensor:
    x = drawn("inputs", 9, 6)
    q, k, v = (x @ drawn(name, 6, 6).T / math.sqrt(6) for name in ("query", "key", "value"))
    out = torch.zeros(9, 6, dtype=torch.float64)
    for t in range(9):
        first = 0 if window is None else max(0, t - window + 1)
        weights = {s: math.exp(float(q[t] @ k[s]) / math.sqrt(6)) for s in range(first, t + 1)}
        for s, weight in weights.items():
            out[t] += weight / sum(weights.values()) * v[s]
    return out


@pytest.mark.parametrize("target", TARGETS)
def test_pairs_have_the_stated_shape_and_follow_from_the_streams(target: Target) -> None:
    x, o = pairs(target)
    assert x.shape == o.shape == (9, 6)
    assert x.dtype == o.dtype == torch.float32
    again = pairs(target)
    assert torch.equal(x, again[0])
    assert torch.equal(o, again[1])


def test_low_rank_is_one_matrix_of_that_rank() -> None:
    x, o = pairs("low_rank", length=40)
    solved = torch.linalg.lstsq(x.double(), o.double()).solution.T
    product = drawn("left", 6, 2) @ drawn("right", 2, 6) / math.sqrt(12)
    torch.testing.assert_close(solved, product, rtol=0, atol=1e-5)
    assert torch.linalg.matrix_rank(product) == 2


def test_mlp_is_two_matrices_with_gelu_between() -> None:
    x, o = pairs("mlp")
    torch.testing.assert_close(x.double(), drawn("inputs", 9, 6))
    expected = torch.stack([mlp_by_hand(row) for row in x.double()])
    torch.testing.assert_close(o.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("target", "window"), [("attention_mlp", None), ("window_mlp", 4), ("window_mlp", 1)]
)
def test_attention_targets_are_the_mlp_of_softmax_attention(
    target: Target, window: int | None
) -> None:
    x, o = pairs(target, window=window or 4)
    torch.testing.assert_close(x.double(), drawn("inputs", 9, 6))
    expected = torch.stack([mlp_by_hand(row) for row in attention_by_hand(window)])
    torch.testing.assert_close(o.double(), expected, rtol=0, atol=1e-5)


def test_attention_input_gives_the_attention_as_input_to_the_same_mlp() -> None:
    x, o = pairs("attention_input")
    torch.testing.assert_close(x.double(), attention_by_hand(None), rtol=0, atol=1e-5)
    torch.testing.assert_close(o, pairs("attention_mlp")[1])


@pytest.mark.parametrize("window", [1, 3, 7])
def test_a_window_sees_so_many_tokens_and_no_more(window: int) -> None:
    q, k, v = (torch.from_numpy(stream(name).standard_normal((12, 4))) for name in "qkv")
    before = attend(q, k, v, window=window)
    v[4] += 10
    changed = (attend(q, k, v, window=window) != before).any(dim=1).nonzero().flatten().tolist()
    assert changed == list(range(4, min(12, 4 + window)))


def test_a_window_longer_than_the_sequence_is_full_attention() -> None:
    short, full = pairs("window_mlp", window=9), pairs("attention_mlp")
    torch.testing.assert_close(short[1], full[1])


def test_outputs_at_the_papers_width_have_the_scale_of_one_matrix() -> None:
    x, o = make_pairs("low_rank", stream, length=512, dim=256, rank=32, window=512)
    assert (o.norm() / x.norm()).item() == pytest.approx(1.0, abs=0.1)
