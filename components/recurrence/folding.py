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
    *,
    idle: int = 0,
) -> tuple[
    Float[Tensor, "r n m"], Float[Tensor, "r n i"], Float[Tensor, "r m m"], Float[Tensor, "r i m"]
]:
    """`share`, `read`, `mix` and `last` of `fast_weight`.

    S_t = theta_t S_{t-1} + sum_j gamma[t, j] gradient_{t-j}, M_t = keep_t M_{t-1} - scale_t S_t;
    `again` weighs gradients that are taken off M_t beside S_t. Without theta, S_t is the sum alone.
    The first `idle` sources are in no window.
    """
    share, read, mix, last, *_ = _Fold.apply(keep, theta, scale, gamma, again, idle)  # type: ignore[no-untyped-call]
    return share, read, mix, last


@by_rows((0,) * 6, (0,) * 6)
class _Fold(torch.autograd.Function):
    @staticmethod
    def forward(
        keep: Tensor,
        theta: Tensor | None,
        scale: Tensor | None,
        gamma: Tensor,
        again: Tensor | None,
        idle: int,
    ) -> tuple[Tensor, ...]:
        n, r, i = keep.shape[1], keep.shape[0], idle + sum(gamma.shape[1:]) - 1
        m = 1 if theta is None else 2
        momentum = keep.new_zeros(n, r, m + i)  # columns W (nothing), S, sources
        momentum[..., m:].scatter_(2, _sources(gamma, idle), _oldest_first(gamma))
        if theta is not None:
            momentum[0, :, 1] = theta[:, 0]
            _run(momentum, theta, momentum)
        # Columns as those: W as it is, the others less.
        memory = torch.empty_like(momentum)
        written = momentum if scale is None else torch.mul(momentum, _steps(scale), out=memory)
        if again is not None:
            written = memory.copy_(written)
            memory[..., m:].scatter_add_(2, _sources(again, idle), _oldest_first(again))
        memory[0] = written[0]
        memory[0, :, 0] = keep[:, 0]
        _run(memory, keep, written)
        share = memory[..., :m].transpose(0, 1).clone()
        share[..., 1:].neg_()
        read = memory[..., m:].transpose(0, 1)
        last = keep.new_empty(r, i, m)
        torch.neg(read[:, -1], out=last[..., 0])
        mix = keep.new_zeros(r, m, m)
        mix[:, 0] = share[:, -1]
        if theta is not None:
            mix[:, 1, 1], last[..., 1] = momentum[-1, :, 1], momentum[-1, :, 2:]
        return share, read, mix, last, memory.transpose(0, 1), momentum.transpose(0, 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *given, again, ctx.idle = inputs
        ctx.again = again is not None
        *_, memory, momentum = output
        ctx.mark_non_differentiable(memory, momentum)
        ctx.save_for_backward(*given, memory, momentum)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        slopes: tuple[Tensor | None, ...] = _FoldBack.apply(  # type: ignore[no-untyped-call]
            *ctx.saved_tensors, *grads[:4], ctx.again, ctx.idle
        )
        return *slopes, None


@by_rows((0,) * 12, (0,) * 5)
class _FoldBack(Slopes):
    """The gradient of `_Fold`: the recurrence from the last token on."""

    @staticmethod
    def forward(
        keep: Tensor,
        theta: Tensor | None,
        scale: Tensor | None,
        gamma: Tensor,
        memory: Tensor,
        momentum: Tensor,
        d_share: Tensor,
        d_read: Tensor,
        d_mix: Tensor,
        d_last: Tensor,
        again: bool,
        idle: int,
    ) -> tuple[Tensor | None, ...]:
        m, c = d_share.shape[-1], gamma.shape[-1]
        first = m + idle
        memory, momentum = memory.transpose(0, 1), momentum.transpose(0, 1)
        d_rows = torch.empty_like(memory)
        d_rows[..., :m] = d_share.transpose(0, 1)
        d_rows[..., m:] = d_read.transpose(0, 1)
        d_rows[-1, :, :m] += d_mix[:, 0]
        d_rows[-1, :, m:] -= d_last[..., 0]
        d_rows[..., 1:m].neg_()
        d_keep = _run_back(d_rows, keep, memory, 0)
        d_again = _oldest_first(_band(d_rows[..., first:], c)) if again else None
        d_rows[..., 0] = 0.0
        d_theta = d_scale = None
        if scale is not None:
            d_scale = (d_rows * momentum).sum(-1).t()
            d_rows.mul_(_steps(scale))
        if theta is not None:
            d_rows[-1, :, 1] += d_mix[:, 1, 1]
            d_rows[-1, :, 2:] += d_last[..., 1]
            d_theta = _run_back(d_rows, theta, momentum, 1)
        return d_keep, d_theta, d_scale, _oldest_first(_band(d_rows[..., first:], c)), d_again


def _run(rows: Tensor, rate: Tensor, added: Tensor) -> None:
    """rows[t] = added[t] + rate_t rows[t-1], from the second token on."""
    each, rates, parts = rows.unbind(0), _steps(rate).unbind(0), added.unbind(0)
    for t in range(1, len(each)):
        torch.addcmul(parts[t], rates[t], each[t - 1], out=each[t])


def _run_back(slopes: Tensor, rate: Tensor, rows: Tensor, first: int) -> Tensor:
    """The gradients of `rows`, in place of those by their tokens alone, and that of the rate.

    first: the column that the first rate is in, of nothing else.
    """
    each, rates = slopes.unbind(0), _steps(rate).unbind(0)
    for t in range(len(each) - 2, -1, -1):
        each[t].addcmul_(rates[t + 1], each[t + 1])
    slope = torch.empty_like(rate)
    slope[:, 0] = slopes[0, :, first]
    torch.sum(slopes[1:] * rows[:-1], -1, out=slope[:, 1:].t())
    return slope


def _steps(rate: Tensor) -> Tensor:
    """r n -> n r 1."""
    return rate.t().unsqueeze(-1)


def _oldest_first(gamma: Tensor) -> Tensor:
    """r n c -> n r c, the other way round; or back."""
    return gamma.flip(-1).transpose(0, 1)


def _sources(gamma: Tensor, idle: int) -> Tensor:
    """Which sources the window of each token has, oldest first, r n c -> n r c.

    For writing: torch.compile cannot write to the view that `_band` is.
    """
    r, n, c = gamma.shape
    token = torch.arange(idle, idle + n, device=gamma.device)
    at = token.unsqueeze(-1) + torch.arange(c, device=gamma.device)
    return at.unsqueeze(1).expand(n, r, c)


def _band(rows: Tensor, c: int) -> Tensor:
    """The sources of each token's own window, oldest first: n r i -> n r c, a view."""
    n, r, _ = rows.shape
    token, row, source = rows.stride()
    return rows.as_strided((n, r, c), (token + source, row, source))
