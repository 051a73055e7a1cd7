"""The coefficients of linear writes, by the recurrence itself on rows of numbers.

Row t of the memory says how much of W, of S and of each source's gradient is in it. It is
keep_t times the row before plus what token t writes, so all chunks, rows and heads take one step
at once, and the cost of a chunk grows with its length as its output does. A gate of exactly 0 or 1
has its exact value and its exact derivative.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.components.recurrence.lanes import Slopes, by_rows


def fold(
    keep: Float[Tensor, "r n"],
    theta: Float[Tensor, "r n"] | None,
    scale: Float[Tensor, "r n"] | None,
    gamma: Float[Tensor, "r n c"],
    again: Float[Tensor, "r n c"] | None = None,
) -> tuple[
    Float[Tensor, "r n m"], Float[Tensor, "r n i"], Float[Tensor, "r m m"], Float[Tensor, "r i m"]
]:
    """`share`, `read`, `mix` and `last` of `fast_weight`.

    S_t = theta_t S_{t-1} + sum_j gamma[t, j] gradient_{t-j}, M_t = keep_t M_{t-1} - scale_t S_t;
    `again` weighs gradients that are taken off M_t beside S_t. Without theta, S_t is the sum alone.
    """
    share, read, mix, last, _ = _Fold.apply(keep, theta, scale, gamma, again)  # type: ignore[no-untyped-call]
    return share, read, mix, last


@by_rows((0,) * 5, (0,) * 5)
class _Fold(torch.autograd.Function):
    @staticmethod
    def forward(
        keep: Tensor,
        theta: Tensor | None,
        scale: Tensor | None,
        gamma: Tensor,
        again: Tensor | None,
    ) -> tuple[Tensor, ...]:
        n, r, i = keep.shape[1], keep.shape[0], sum(gamma.shape[1:]) - 1
        m = 1 if theta is None else 2
        memory = keep.new_zeros(n, r, m + i)  # columns W, S, sources: W as it is, the others less
        momentum = keep.new_zeros(n, r, 1 + i)  # columns S, sources
        momentum[..., 1:].scatter_(2, _sources(gamma), _oldest_first(gamma))
        if theta is not None:
            momentum[0, :, 0] = theta[:, 0]
            _run(momentum, theta)
        written = momentum if theta is not None else momentum[..., 1:]
        rest = memory[..., 1:]
        rest.copy_(written) if scale is None else torch.mul(written, _steps(scale), out=rest)
        if again is not None:
            memory[..., m:].scatter_add_(2, _sources(again), _oldest_first(again))
        memory[0, :, 0] = keep[:, 0]
        _run(memory, keep)
        share = memory[..., :m].transpose(0, 1).clone()
        share[..., 1:].neg_()
        read = memory[..., m:].transpose(0, 1)
        last = keep.new_empty(r, i, m)
        torch.neg(read[:, -1], out=last[..., 0])
        mix = keep.new_zeros(r, m, m)
        mix[:, 0] = share[:, -1]
        if theta is not None:
            mix[:, 1, 1], last[..., 1] = momentum[-1, :, 0], momentum[-1, :, 1:]
        return share, read, mix, last, momentum.transpose(0, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *given, again = inputs
        ctx.again = again is not None
        share, read, _, _, momentum = output
        ctx.mark_non_differentiable(momentum)
        ctx.save_for_backward(*given, share, read, momentum)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        slopes: tuple[Tensor | None, ...] = _FoldBack.apply(  # type: ignore[no-untyped-call]
            *ctx.saved_tensors, *grads[:4], ctx.again
        )
        return slopes


@by_rows((0,) * 12, (0,) * 5)
class _FoldBack(Slopes):
    """The gradient of `_Fold`: the recurrence from the last token on."""

    @staticmethod
    def forward(
        keep: Tensor,
        theta: Tensor | None,
        scale: Tensor | None,
        gamma: Tensor,
        share: Tensor,
        read: Tensor,
        momentum: Tensor,
        d_share: Tensor,
        d_read: Tensor,
        d_mix: Tensor,
        d_last: Tensor,
        again: bool,
    ) -> tuple[Tensor | None, ...]:
        m, momentum = share.shape[-1], momentum.transpose(0, 1)
        columns = m + read.shape[-1]
        d_memory = keep.new_empty(keep.shape[1], keep.shape[0], columns)
        d_memory[..., :m] = d_share.transpose(0, 1)
        d_memory[..., m:] = d_read.transpose(0, 1)
        d_memory[-1, :, :m] += d_mix[:, 0]
        d_memory[-1, :, m:] -= d_last[..., 0]
        d_memory[..., 1:m].neg_()
        _run_back(d_memory, keep)
        d_keep = torch.empty_like(keep)
        d_keep[:, 0] = d_memory[0, :, 0]
        before = torch.cat([share[..., :1], -share[..., 1:], read], dim=-1).transpose(0, 1)[:-1]
        torch.sum((d_memory[1:] * before), -1, out=d_keep[:, 1:].t())
        rest = d_memory[..., 1:]
        d_theta = d_scale = None
        if scale is not None:
            written = momentum if theta is not None else momentum[..., 1:]
            d_scale = (rest * written).sum(-1).t()
        d_written = rest.clone() if scale is None else rest * _steps(scale)
        if theta is not None:
            d_written[-1, :, 0] += d_mix[:, 1, 1]
            d_written[-1, :, 1:] += d_last[..., 1]
            _run_back(d_written, theta)
            d_theta = torch.empty_like(theta)
            d_theta[:, 0] = d_written[0, :, 0]
            torch.sum(d_written[1:] * momentum[:-1], -1, out=d_theta[:, 1:].t())
        c = gamma.shape[-1]
        d_gamma = _oldest_first(_band(d_written[..., m - 1 :], c))
        d_again = _oldest_first(_band(d_memory[..., m:], c)) if again else None
        return d_keep, d_theta, d_scale, d_gamma, d_again


def _run(rows: Tensor, rate: Tensor) -> None:
    """rows[t] += rate_t rows[t-1], in place."""
    each, rates = rows.unbind(0), _steps(rate).unbind(0)
    for t in range(1, len(each)):
        each[t].addcmul_(rates[t], each[t - 1])


def _run_back(rows: Tensor, rate: Tensor) -> None:
    """rows[t] += rate_{t+1} rows[t+1], in place."""
    each, rates = rows.unbind(0), _steps(rate).unbind(0)
    for t in range(len(each) - 2, -1, -1):
        each[t].addcmul_(rates[t + 1], each[t + 1])


def _steps(rate: Tensor) -> Tensor:
    """r n -> n r 1."""
    return rate.t().unsqueeze(-1)


def _oldest_first(gamma: Tensor) -> Tensor:
    """r n c -> n r c, the other way round; or back."""
    return gamma.flip(-1).transpose(0, 1)


def _sources(gamma: Tensor) -> Tensor:
    """Which sources the window of each token has, oldest first, r n c -> n r c.

    For writing: torch.compile cannot write to the view that `_band` is.
    """
    r, n, c = gamma.shape
    at = torch.arange(n, device=gamma.device)[:, None] + torch.arange(c, device=gamma.device)
    return at.unsqueeze(1).expand(n, r, c)


def _band(rows: Tensor, c: int) -> Tensor:
    """The sources of each token's own window, oldest first: n r i -> n r c, a view."""
    n, r, _ = rows.shape
    token, row, source = rows.stride()
    return rows.as_strided((n, r, c), (token + source, row, source))
