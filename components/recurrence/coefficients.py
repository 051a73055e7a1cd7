"""What is linear folds away: gates become token-mixing coefficients.

Within a chunk all gradients are taken at the chunk's first memory, so the momentum and the memory
at token n are fixed sums of the sources' gradients (Atlas Eq. 16 and 34-35, with a halo of the c-1
tokens before the chunk). This file makes the weights of those sums, for all chunks at once, by
products of gates only: a gate of exactly 0 or 1 has its exact value and its exact derivative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Gates:
    """What every token says to the recurrence.

    keep: share of the memory that survives (alpha). lr: step size. theta: momentum decay, None for
    no momentum. gamma: weight of token t-j in the window of token t, j = 0..c-1.
    """

    keep: Float[Tensor, "b t h"]
    lr: Float[Tensor, "b t h"]
    theta: Float[Tensor, "b t h"] | None
    gamma: Float[Tensor, "b t h c"]


class _Decay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rate: Tensor) -> Tensor:
        n = rate.shape[-1]
        below = torch.ones(n, n, dtype=torch.bool, device=rate.device).tril_(-1)
        rows = torch.where(below, rate.unsqueeze(-1), 1.0)
        out = torch.cumprod(rows, dim=-2).tril_()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        # A[t,s] holds rate_j for s < j <= t, as A[t,j] rate_j A[j-1,s]: no division is needed.
        (a,) = ctx.saved_tensors
        later = torch.matmul(a[..., 1:, 1:].mT, grads[0][..., 1:, :-1].tril())
        return F.pad((later * a[..., :-1, :-1]).sum(-1), (1, 0))


def decay_matrix(rate: Float[Tensor, "*p n"]) -> Float[Tensor, "*p n n"]:
    """A[t,s] = rate_{s+1} ... rate_t for s <= t, else 0."""
    out: Tensor = _Decay.apply(rate)  # type: ignore[no-untyped-call]
    return out


def banded(gamma: Float[Tensor, "*p n c"]) -> Float[Tensor, "*p n i"]:
    """Window gates as a matrix over sources: row t has gamma[t, j] at column t + c-1 - j."""
    n, c = gamma.shape[-2:]
    width = n + c - 1
    # A row of width + 1 read back in rows of width moves each row one column to the right.
    skewed = F.pad(gamma.flip(-1), (0, width + 1 - c)).flatten(-2)
    return skewed[..., : n * width].unflatten(-1, (n, width))


@dataclass(frozen=True)
class Coefficients:
    """Weights of one piece of a chunk; g pieces at once, n tokens, i sources, w writes.

    carry: share of the first memory left at token n. read: weight of source i in the memory at
    token n (None when writes are orthogonalised). momentum_read: weight of the first momentum in
    the memory. rows: weight of source i in the momentum at the rows that are made: the last token
    (linear), or every write and the last token (orthogonalised). momentum_carry: weight of the
    first momentum there. written: weight of write w in the memory at token n. pending: the steps
    since the last write.
    """

    carry: Float[Tensor, "g p n 1"]
    rows: Float[Tensor, "g p r i"] | None
    momentum_carry: Float[Tensor, "g p r 1"] | None
    read: Float[Tensor, "g p n i"] | None = None
    momentum_read: Float[Tensor, "g p n 1"] | None = None
    written: Float[Tensor, "g p n w"] | None = None
    pending: Float[Tensor, "g p"] | None = None


def _from_start(rate: Tensor, decay: Tensor) -> Tensor:
    """rate_1 ... rate_t."""
    return rate[..., :1] * decay[..., 0]


def fold_linear(
    keep: Float[Tensor, "g p n"],
    lr: Float[Tensor, "g p n"],
    theta: Float[Tensor, "g p n"] | None,
    gamma: Float[Tensor, "g p n c"],
    *,
    step_inside: bool,
) -> Coefficients:
    """Weights when the momentum itself is written: gradient descent and momentum."""
    memory = decay_matrix(keep)
    carry = _from_start(keep, memory).unsqueeze(-1)
    sums = banded(gamma)
    if step_inside:
        sums = lr.unsqueeze(-1) * sums
    if theta is None:
        sums = sums if step_inside else lr.unsqueeze(-1) * sums
        return Coefficients(carry, None, None, torch.matmul(memory, sums))
    momentum = decay_matrix(theta)
    first = _from_start(theta, momentum).unsqueeze(-1)
    sums = torch.cat([first, torch.matmul(momentum, sums)], dim=-1)
    total = torch.matmul(memory, sums if step_inside else lr.unsqueeze(-1) * sums)
    last = sums[..., -1:, :]
    return Coefficients(carry, last[..., 1:], last[..., :1], total[..., 1:], total[..., :1])


def fold_orthogonal(
    keep: Float[Tensor, "g p n"],
    lr: Float[Tensor, "g p n"],
    theta: Float[Tensor, "g p n"],
    gamma: Float[Tensor, "g p n c"],
    *,
    writes: list[int],
    step: Float[Tensor, " p"] | None,
) -> Coefficients:
    """Weights when the momentum is orthogonalised and written at the tokens `writes`.

    `step` holds the decayed steps since the last write before the piece, None for zero.
    """
    n = keep.shape[-1]
    memory, momentum = decay_matrix(keep), decay_matrix(theta)
    carry = _from_start(keep, memory)
    first = _from_start(theta, momentum).unsqueeze(-1)
    sums = torch.matmul(momentum, banded(gamma))
    last = n - 1
    made = torch.tensor([*writes, *([] if last in writes else [last])], device=keep.device)
    # Steps gathered by each write, and by the open group at the end (the last row).
    starts, ends = [0, *(w + 1 for w in writes)], [*writes, last]
    token = torch.arange(n, device=keep.device)
    start = torch.tensor(starts, device=keep.device).unsqueeze(-1)
    end = torch.tensor(ends, device=keep.device)
    open_group = (token >= start).to(keep.dtype)
    gathered = (memory.index_select(-2, end) * open_group * lr.unsqueeze(-2)).sum(-1)
    if step is not None:
        since = carry[..., ends[0] : ends[0] + 1] * step.unsqueeze(-1)
        gathered = torch.cat([gathered[..., :1] + since, gathered[..., 1:]], dim=-1)
    written = None
    if writes:
        written = memory.index_select(-1, end[:-1]) * gathered[..., None, :-1]
    return Coefficients(
        carry.unsqueeze(-1),
        sums.index_select(-2, made),
        first.index_select(-2, made),
        written=written,
        pending=gathered[..., -1],
    )
