"""A fast weight that is read, written and scanned through coefficients, with its gradients.

The state X of a map is its weight and, where there is one, its momentum: m matrices side by side.
Sources s have gradients u_s z_s^T. All that gates, steps, momentum, decay and windows do is in the
coefficients: `share` and `read` of what a token sees, `mix` and `last` of what a stretch leaves.

    seen by token n:  sum_m share[n,m] X_m - sum_s read[n,s] u_s z_s^T
    left at the end:  X'_m = sum_k mix[m,k] X_k + sum_s last[s,m] u_s z_s^T

Backward passes are written out and keep inputs and results only, and of reads the z_s . z.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.components.recurrence.lanes import Slopes, by_rows

ROWS = (0,) * 6  # where the rows of the inputs of reads and writes lie


def read_weight(
    z: Float[Tensor, "p n i"],
    state: Float[Tensor, "p m o i"],
    zs: Float[Tensor, "p s i"],
    us: Float[Tensor, "p s o"],
    share: Float[Tensor, "p n m"],
    read: Float[Tensor, "p n s"],
) -> Float[Tensor, "p n o"]:
    """What each token's weight says of its `z`: an attention over the sources, and no matrix."""
    y, _ = _Read.apply(z, state, zs, us, share, read)  # type: ignore[no-untyped-call]
    made: Tensor = y
    return made


def write_weight(
    state: Float[Tensor, "p m o i"],
    zs: Float[Tensor, "p s i"],
    us: Float[Tensor, "p s o"],
    mix: Float[Tensor, "p m m"],
    last: Float[Tensor, "p s m"],
) -> Float[Tensor, "p m o i"]:
    """The state after the last token of a stretch."""
    after: Tensor = _Write.apply(state, zs, us, mix, last)  # type: ignore[no-untyped-call]
    return after


def scan_weight(
    state: Float[Tensor, "p m o i"],
    probes: Float[Tensor, "g p k s i"] | None,
    zs: Float[Tensor, "g p s i"],
    values: Float[Tensor, "g p s o"],
    mix: Float[Tensor, "g p m m"],
    last: Float[Tensor, "g p s m"],
) -> tuple[Float[Tensor, "g p s o"], Float[Tensor, "g p m o i"], Float[Tensor, "p m o i"]]:
    """Stretches one after another, where u_s = sum_k X_k probe_{k,s} - v_s at their start.

    Probes are the keys for squared errors at a stretch's first memory (k = 1), and what a
    triangular system makes of them for errors at every token's own; without them u_s = -v_s. What
    depends on no state is done for all stretches at once.

    Returns:
        Gradients at the maps' outputs, the state that each stretch starts from, and the last one.
    """
    us, starts, end = _Scan.apply(state, probes, zs, values, mix, last)  # type: ignore[no-untyped-call]
    return us, starts, end


@by_rows(ROWS, (0, 0))
class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        z: Tensor, state: Tensor, zs: Tensor, us: Tensor, share: Tensor, read: Tensor
    ) -> tuple[Tensor, Tensor]:
        y = torch.bmm(z, state[:, 0].mT).mul_(share[..., :1])
        for m in range(1, state.shape[1]):
            y.addcmul_(share[..., m : m + 1], torch.bmm(z, state[:, m].mT))
        kernel = torch.bmm(z, zs.mT)
        return torch.baddbmm(y, kernel * read, us, alpha=-1, out=y), kernel

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        _, kernel = output
        ctx.mark_non_differentiable(kernel)
        ctx.save_for_backward(*inputs, kernel)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        slopes: tuple[Tensor, ...] = _ReadBack.apply(*ctx.saved_tensors, grads[0])  # type: ignore[no-untyped-call]
        return slopes


@by_rows((*ROWS, 0, 0), ROWS)
class _ReadBack(Slopes):
    """The gradient of `_Read`."""

    @staticmethod
    def forward(
        z: Tensor,
        state: Tensor,
        zs: Tensor,
        us: Tensor,
        share: Tensor,
        read: Tensor,
        kernel: Tensor,
        dy: Tensor,
    ) -> tuple[Tensor, ...]:
        slope = _less(dy, us.mT)
        d_read = kernel * slope
        d_us = _less((kernel * read).mT, dy)
        d_zs = torch.bmm(slope.mul_(read).mT, z)
        dz = torch.bmm(slope, zs)
        d_state = torch.bmm(_weighted(share, dy).mT, z).view(state.shape)
        d_share = torch.empty_like(share)
        for m in range(state.shape[1]):
            on = torch.bmm(dy, state[:, m])
            dz.addcmul_(share[..., m : m + 1], on)
            torch.sum(on.mul_(z), -1, out=d_share[..., m])
        return dz, d_state, d_zs, d_us, d_share, d_read


@by_rows(ROWS[:5], 0)
class _Write(torch.autograd.Function):
    @staticmethod
    def forward(state: Tensor, zs: Tensor, us: Tensor, mix: Tensor, last: Tensor) -> Tensor:
        after = torch.bmm(mix, state.flatten(2)).view(state.shape[0], -1, state.shape[-1])
        torch.baddbmm(after, _weighted(last, us).mT, zs, out=after)
        return after.view_as(state)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        slopes: tuple[Tensor, ...] = _WriteBack.apply(*ctx.saved_tensors, *grads)  # type: ignore[no-untyped-call]
        return slopes


@by_rows(ROWS[:6], ROWS[:5])
class _WriteBack(Slopes):
    """The gradient of `_Write`."""

    @staticmethod
    def forward(
        state: Tensor, zs: Tensor, us: Tensor, mix: Tensor, last: Tensor, d: Tensor
    ) -> tuple[Tensor, ...]:
        rows = d.flatten(1, 2)  # p m*o i
        on = torch.bmm(zs, rows.mT).unflatten(-1, d.shape[1:3])  # p s m o
        d_zs = torch.bmm(_weighted(last, us), rows)
        d_mix = torch.bmm(d.flatten(2), state.flatten(2).mT)
        d_state = torch.bmm(mix.mT, d.flatten(2)).view_as(d)
        d_us = last[..., :1] * on[..., 0, :]
        for m in range(1, d.shape[1]):
            d_us.addcmul_(last[..., m : m + 1], on[..., m, :])
        return d_state, d_zs, d_us, d_mix, on.mul_(us.unsqueeze(2)).sum(-1)


@by_rows((0, 1, 1, 1, 1, 1), (1, 1, 0))
class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        state: Tensor, probes: Tensor | None, zs: Tensor, values: Tensor, mix: Tensor, last: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        count, (p, m, o, i) = zs.shape[0], state.shape
        states, us = state.new_empty(count + 1, p, m, o, i), values.neg()
        states[0] = state
        asked = [] if probes is None else [each.unbind(0) for each in probes.unbind(2)]
        shown = [states[:, :, k].mT.unbind(0) for k in range(len(asked))]
        rows, flat = states.view(count + 1, p, m * o, i).unbind(0), states.flatten(3).unbind(0)
        turns = _in_turns(us, us.unsqueeze(3), zs, mix, last.unsqueeze(-1))
        for g, (u, each_u, z, mixed, weight) in enumerate(turns):
            for probe, x in zip(asked, shown, strict=True):
                torch.baddbmm(u, probe[g], x[g], out=u)
            torch.bmm(mixed, flat[g], out=flat[g + 1])
            written = (weight * each_u).view(p, -1, m * o)
            torch.baddbmm(rows[g + 1], written.mT, z, out=rows[g + 1])
        return us, states[:-1], states[-1].clone()

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor | None, ...], output: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        _, probes, zs, _, mix, last = inputs
        ctx.save_for_backward(probes, zs, mix, last, *output[:2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d, d_probes, d_zs, d_values, d_mix, d_last = _ScanBack.apply(*ctx.saved_tensors, *grads)  # type: ignore[no-untyped-call]
        return d, d_probes, d_zs, d_values, d_mix, d_last


@by_rows((*(1,) * 8, 0), (0, 1, 1, 1, 1, 1))
class _ScanBack(Slopes):
    """The gradient of `_Scan`: the same turns, from the last on."""

    @staticmethod
    def forward(
        probes: Tensor | None,
        zs: Tensor,
        mix: Tensor,
        last: Tensor,
        us: Tensor,
        starts: Tensor,
        d_us: Tensor,
        d_starts: Tensor,
        d_end: Tensor,
    ) -> tuple[Tensor | None, ...]:
        count, p, m, o, i = starts.shape
        # Of the state after stretch g in row g + 1; of the first of all in row 0.
        ds = starts.new_empty(count + 1, p, m, o, i)
        ds[-1] = d_end
        errors, d_last = torch.empty_like(us), torch.empty_like(last)
        on = zs.new_empty(*zs.shape[1:3], m * o)
        each_on, parts = on.unflatten(-1, (m, o)), on.split(o, dim=-1)
        asked = [] if probes is None else [each.unbind(0) for each in probes.unbind(2)]
        shown = [ds[:, :, k].unbind(0) for k in range(len(asked))]
        rows, flat = ds.view(count + 1, p, m * o, i).unbind(0), ds.flatten(3).unbind(0)
        weights = [each.unbind(0) for each in last.split(1, dim=-1)]
        given = d_starts.flatten(3)
        turns = list(_in_turns(given, d_us, errors, us.unsqueeze(3), zs, mix.mT, d_last))
        for g in reversed(range(count)):
            d, before, error, u, z, mixed, slope = turns[g]
            torch.bmm(z, rows[g + 1].mT, out=on)
            for weight, part in zip(weights, parts, strict=True):
                before = torch.addcmul(before, weight[g], part, out=error)
            torch.sum(each_on.mul_(u), -1, out=slope)
            torch.baddbmm(d, mixed, flat[g + 1], out=flat[g])
            for probe, x in zip(asked, shown, strict=True):
                torch.baddbmm(x[g], error.mT, probe[g], out=x[g])
        after = ds[1:]
        d_zs = torch.matmul(_weighted(last, us), after.flatten(2, 3))
        d_mix = torch.matmul(after.flatten(3), starts.flatten(3).mT)
        d_probes = None
        if probes is not None:
            d_probes = torch.matmul(errors.unsqueeze(2), starts[:, :, : probes.shape[2]])
        return ds[0].clone(), d_probes, d_zs, errors.neg_(), d_mix, d_last


def _in_turns(*parts: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Stretch by stretch."""
    return zip(*(part.unbind(0) for part in parts), strict=True)


def _less(a: Tensor, b: Tensor) -> Tensor:
    """-a b."""
    out = a.new_empty(*a.shape[:2], b.shape[-1])
    return torch.baddbmm(out, a, b, beta=0, alpha=-1, out=out)


def _weighted(last: Tensor, us: Tensor) -> Tensor:
    """last[s,m] u_s, p s m*o."""
    return (last.unsqueeze(-1) * us.unsqueeze(-2)).flatten(-2)
