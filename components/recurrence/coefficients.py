"""What is linear folds away: gates become token-mixing coefficients.

Within a chunk all gradients are taken at the chunk's first memory, so the momentum and the memory
at token n are fixed sums of the sources' gradients (Atlas Eq. 16 and 34-35, with a halo of the c-1
tokens before the chunk). This file makes the weights of those sums, for all chunks at once: by
`folding` where the momentum itself is written, by matrices of products of gates where it is
orthogonalised. A gate of exactly 0 or 1 has its exact value and its exact derivative.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ablate.components.recurrence.folding import fold


@dataclass(frozen=True)
class Gates:
    """What every token says to the recurrence.

    keep: share of the memory that survives (alpha), perhaps by channel. lr: step size. theta:
    momentum decay, None for no momentum. gamma: weight of token t-j in the window of token t,
    j = 0..c-1.
    """

    keep: Float[Tensor, "b t h *d"]
    lr: Float[Tensor, "b t h"]
    theta: Float[Tensor, "b t h"] | None
    gamma: Float[Tensor, "b t h c"]


class _Decay(torch.autograd.Function):
    @staticmethod
    def forward(rate: Tensor) -> Tensor:
        n = rate.shape[-1]
        below = torch.ones(n, n, dtype=torch.bool, device=rate.device).tril_(-1)
        rows = torch.where(below, rate.unsqueeze(-1), 1.0)
        return torch.cumprod(rows, dim=-2).tril_()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], rate: Tensor) -> tuple[Tensor, int]:
        return decay_matrix(rate.movedim(in_dims[0], 0)), 0

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


def banded(gamma: Float[Tensor, "*p n c"], idle: int = 0) -> Float[Tensor, "*p n i"]:
    """Window gates as a matrix over sources: row t has gamma[t, j] at column idle + t + c-1 - j."""
    n, c = gamma.shape[-2:]
    width = idle + n + c - 1
    # A row of width + 1 read back in rows of width moves each row one column to the right.
    skewed = F.pad(gamma.flip(-1), (idle, n)).flatten(-2)
    out: Tensor = skewed[..., : n * width].unflatten(-1, (n, width))
    return out


@dataclass(frozen=True)
class LinearWeights:
    """What the memory is made of when the momentum itself is written.

    Memory at token n = carry W - momentum S - sum_i read[n, i] gradient_i, with W and S from the
    stretch's start. The `end_` parts are the last token's. Momentum at the end = next_carry S +
    sum_i next_read[i] gradient_i. Without momentum the parts that weigh or make S are None.
    """

    carry: Float[Tensor, "*g p n 1"]
    read: Float[Tensor, "*g p n i"]
    end_carry: Float[Tensor, "*g p 1 1"]
    end_read: Float[Tensor, "*g p i 1"]
    momentum: Float[Tensor, "*g p n 1"] | None = None
    end_momentum: Float[Tensor, "*g p 1 1"] | None = None
    next_carry: Float[Tensor, "*m 1 1"] | None = None
    next_read: Float[Tensor, "*m i 1"] | None = None


@dataclass(frozen=True)
class Folded:
    """The same numbers as `fast_weight` takes them, for states of m matrices."""

    share: Float[Tensor, "*g p n m"]
    read: Float[Tensor, "*g p n i"]
    mix: Float[Tensor, "*g p m m"]
    last: Float[Tensor, "*g p i m"]

    @property
    def carry(self) -> Tensor:
        """As of `LinearWeights`."""
        return self.share[..., :1]

    @property
    def end_carry(self) -> Tensor:
        """As of `LinearWeights`."""
        return self.share[..., -1:, :1]


@dataclass(frozen=True)
class OrthogonalWeights:
    """What the memory is made of when the momentum is orthogonalised before each write.

    Momentum at write w = momentum_carry S + sum_i momentum_read[w, i] gradient_i. Memory at token
    n = carry W - sum_w write[n, w] NS(momentum_w). Without a write in the stretch these are None.
    `end_` and `next_` as in `LinearWeights`; `pending` gathers the steps since the last write.
    """

    carry: Float[Tensor, "*g p n 1"]
    end_carry: Float[Tensor, "*g p 1 1"]
    next_carry: Float[Tensor, "*g p 1 1"]
    next_read: Float[Tensor, "*g p i 1"]
    pending: Float[Tensor, "*g p"]
    momentum_carry: Float[Tensor, "*g p w 1"] | None = None
    momentum_read: Float[Tensor, "*g p w i"] | None = None
    write: Float[Tensor, "*g p n w"] | None = None
    end_write: Float[Tensor, "*g p 1 w"] | None = None


def _from_start(rate: Tensor, decay: Tensor) -> Tensor:
    """rate_1 ... rate_t."""
    return rate[..., :1] * decay[..., 0]


def fold_states(
    keep: Float[Tensor, "*k n"],
    lr: Float[Tensor, "*g n"],
    theta: Float[Tensor, "*g n"] | None,
    gamma: Float[Tensor, "*g n c"],
    *,
    step_inside: bool,
    nesterov: bool = False,
    idle: int = 0,
) -> Folded:
    """Weights of gradient descent (`theta` None) and momentum.

    `keep` may have more rows than the others, which then are broadcast to them.
    `nesterov` writes theta S_n + lr G_n, the momentum looked ahead, instead of S_n. The first
    `idle` sources are in no window.
    """
    inside = step_inside or theta is None
    fresh = lr.unsqueeze(-1) * gamma if inside else gamma
    scale, again = None if inside else lr, None
    if nesterov:
        again = fresh if inside else lr.unsqueeze(-1) * fresh
        scale = theta if scale is None or theta is None else scale * theta
    rows, shape = keep.shape[:-1], keep.shape

    def flat(x: Tensor | None, *last: int) -> Tensor | None:
        return None if x is None else x.expand(*shape, *last).reshape(-1, shape[-1], *last)

    windows = (fresh.shape[-1],)
    gamma = fresh.expand(*shape, *windows).reshape(-1, shape[-1], *windows)
    given = (keep.reshape(-1, shape[-1]), flat(theta), flat(scale), gamma, flat(again, *windows))
    made = fold(*given, idle=idle)
    return Folded(*(part.unflatten(0, rows) for part in made))


def fold_linear(
    keep: Float[Tensor, "*k n"],
    lr: Float[Tensor, "*g n"],
    theta: Float[Tensor, "*g n"] | None,
    gamma: Float[Tensor, "*g n c"],
    *,
    step_inside: bool,
    nesterov: bool = False,
    idle: int = 0,
) -> LinearWeights:
    """As `fold_states`, part by part."""
    how = {"step_inside": step_inside, "nesterov": nesterov}
    w = fold_states(keep, lr, theta, gamma, **how, idle=idle)
    carry, end_read = w.share[..., :1], -w.last[..., :1]
    if theta is None:
        return LinearWeights(carry, w.read, carry[..., -1:, :], end_read)
    momentum = -w.share[..., 1:]
    return LinearWeights(
        carry,
        w.read,
        carry[..., -1:, :],
        end_read,
        momentum,
        momentum[..., -1:, :],
        w.mix[..., 1:, 1:],
        w.last[..., 1:],
    )


def fold_orthogonal(
    keep: Float[Tensor, "g p n"],
    lr: Float[Tensor, "g p n"],
    theta: Float[Tensor, "g p n"],
    gamma: Float[Tensor, "g p n c"],
    *,
    writes: list[int],
    step: Float[Tensor, " p"] | None,
    idle: int = 0,
) -> OrthogonalWeights:
    """Weights when the tokens `writes` write.

    `step` holds the decayed steps since the last write before the stretch, None for zero.
    """
    memory, decay = decay_matrix(keep), decay_matrix(theta)
    carry = _from_start(keep, memory)
    first = _from_start(theta, decay).unsqueeze(-1)
    sums = torch.matmul(decay, banded(gamma, idle))
    ends = torch.tensor([*writes, keep.shape[-1] - 1], device=keep.device)
    gathered = _gathered(memory.index_select(-2, ends), lr, writes)
    if step is not None:
        since = carry.index_select(-1, ends[:1]) * step.unsqueeze(-1)
        gathered = torch.cat([gathered[..., :1] + since, gathered[..., 1:]], dim=-1)
    weights = OrthogonalWeights(
        carry.unsqueeze(-1),
        carry[..., -1:, None],
        first[..., -1:, :],
        sums[..., -1:, :].mT,
        gathered[..., -1],
    )
    if not writes:
        return weights
    write = memory.index_select(-1, ends[:-1]) * gathered[..., None, :-1]
    return replace(
        weights,
        momentum_carry=first.index_select(-2, ends[:-1]),
        momentum_read=sums.index_select(-2, ends[:-1]),
        write=write,
        end_write=write[..., -1:, :],
    )


def _gathered(memory: Tensor, lr: Tensor, writes: list[int]) -> Tensor:
    """Decayed steps of each group at its end: those of `writes`, then of the open group."""
    token = torch.arange(lr.shape[-1], device=lr.device)
    start = torch.tensor([0, *(w + 1 for w in writes)], device=lr.device)
    inside = (token >= start.unsqueeze(-1)).to(lr.dtype)
    return (memory * inside * lr.unsqueeze(-2)).sum(-1)
