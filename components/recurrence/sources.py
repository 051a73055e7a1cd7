"""Stretches of tokens together with those before them, which windows reach back to."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.components.recurrence.lanes import Slopes, by_rows


def with_halo(x: Float[Tensor, "p t d"], halo: int, length: int) -> Float[Tensor, "g p i d"]:
    """Stretches of `length` tokens, each after the `halo` ones before it, which `x` begins with.

    Stretches overlap in memory where they can: nothing may be written to them.
    """
    made: Tensor = _WithHalo.apply(x, halo, length)  # type: ignore[no-untyped-call]
    made = made.transpose(0, 1)
    # A copy unless each stretch is a row.
    rows: Tensor = made.flatten(0, 1).unflatten(0, made.shape[:2])
    return rows


@by_rows((0,) * 3, 0)
class _WithHalo(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, halo: int, length: int) -> Tensor:
        return x.unfold(1, halo + length, length).mT  # p g i d

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.length = inputs[2]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        slope: Tensor = _WithHaloBack.apply(grads[0], ctx.length)  # type: ignore[no-untyped-call]
        return slope, None, None


@by_rows((0,) * 2, 0)
class _WithHaloBack(Slopes):
    """The gradient of `_WithHalo`: as many sums as stretches have a token in."""

    @staticmethod
    def forward(d: Tensor, length: int) -> Tensor:
        p, count, sources, width = d.shape
        blocks = count + math.ceil(sources / length) - 1
        dx = d.new_empty(p, blocks, length, width)
        dx[:, :count] = d[:, :, :length]
        dx[:, count:] = 0.0
        for k, part in enumerate(d.split(length, dim=2)):
            if k:
                dx[:, k : k + count, : part.shape[2]].add_(part)
        return dx.flatten(1, 2)[:, : (count - 1) * length + sources]
