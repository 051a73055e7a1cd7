"""The five functions to be learned, as sequences of input and output pairs (Atlas section 6.4)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import gelu, scaled_dot_product_attention

Target = Literal["low_rank", "mlp", "attention_mlp", "attention_input", "window_mlp"]
Stream = Callable[[str], np.random.Generator]
Pairs = tuple[Float[Tensor, "t d"], Float[Tensor, "t d"]]


def make_pairs(
    target: Target, stream: Stream, *, length: int, dim: int, rank: int, window: int
) -> Pairs:
    """Draw one sequence of inputs and what the target function answers.

    Inputs and each weight matrix have a stream of their own, so under one seed all five targets see
    the same Gaussian inputs, all that attend use the same attention, and all but ``low_rank`` the
    same MLP.

    Args:
        target: which function; ``attention_input`` gives the attention's outputs as inputs.
        stream: named random streams.
        length: number of pairs.
        dim: width of inputs and outputs.
        rank: of ``low_rank``'s matrix.
        window: tokens that ``window_mlp``'s attention sees, itself included.
    """
    x = _gaussian(stream, "inputs", length, dim)
    if target == "low_rank":
        left, right = _gaussian(stream, "left", dim, rank), _gaussian(stream, "right", rank, dim)
        return x, x @ (left @ right / math.sqrt(dim * rank)).T
    if target == "mlp":
        return x, _mlp(x, stream)
    q, k, v = (x @ _weight(stream, name, dim).T for name in ("query", "key", "value"))
    attended = attend(q, k, v, window=window if target == "window_mlp" else None)
    return attended if target == "attention_input" else x, _mlp(attended, stream)


def attend(
    q: Float[Tensor, "t d"],
    k: Float[Tensor, "t d"],
    v: Float[Tensor, "t d"],
    *,
    window: int | None = None,
) -> Float[Tensor, "t d"]:
    """Causal softmax attention of one head with logits q.k / sqrt(d), over the last `window`."""
    if window is None or window >= len(q):
        return scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    place = torch.arange(len(q))
    age = place[:, None] - place
    seen = (age >= 0) & (age < window)
    return scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=seen)[0]


def _mlp(x: Tensor, stream: Stream) -> Tensor:
    """One hidden layer as wide as the input: W2 gelu(W1 x)."""
    dim = x.shape[1]
    hidden: Tensor = gelu(x @ _weight(stream, "hidden", dim).T)
    return hidden @ _weight(stream, "output", dim).T


def _weight(stream: Stream, name: str, dim: int) -> Tensor:
    return _gaussian(stream, name, dim, dim) / math.sqrt(dim)


def _gaussian(stream: Stream, name: str, rows: int, columns: int) -> Tensor:
    drawn = stream(f"target.{name}").standard_normal((rows, columns), dtype=np.float32)
    return torch.from_numpy(drawn)
