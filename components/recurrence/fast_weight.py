"""A fast weight that is read, written and scanned through coefficients, with its gradients.

The state X of a map is its weight and, where there is one, its momentum: m matrices side by side.
Sources s have gradients u_s z_s^T. All that gates, steps, momentum, decay and windows do is in the
coefficients: `share` and `read` of what a token sees, `mix` and `last` of what a stretch leaves.

    seen by token n:  sum_m share[n,m] X_m - sum_s read[n,s] u_s z_s^T
    left at the end:  X'_m = sum_k mix[m,k] X_k + sum_s last[s,m] u_s z_s^T

Backward passes are written out and keep inputs and results only.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def read_weight(
    z: Float[Tensor, "p n i"],
    state: Float[Tensor, "p m o i"],
    zs: Float[Tensor, "p s i"],
    us: Float[Tensor, "p s o"],
    share: Float[Tensor, "p n m"],
    read: Float[Tensor, "p n s"],
) -> Float[Tensor, "p n o"]:
    """What each token's weight says of its `z`: an attention over the sources, and no matrix."""
    y: Tensor = _Read.apply(z, state, zs, us, share, read)  # type: ignore[no-untyped-call]
    return y


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


def _lanes(info: Any, x: Tensor | None, at: int | None, rows: int) -> Tensor | None:
    """Lanes before the rows, as more of them."""
    if x is None:
        return None
    x = x.unsqueeze(0).expand(info.batch_size, *x.shape) if at is None else x.movedim(at, 0)
    return x.movedim(0, rows).flatten(rows, rows + 1)


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(
        z: Tensor, state: Tensor, zs: Tensor, us: Tensor, share: Tensor, read: Tensor
    ) -> Tensor:
        y = share[..., :1] * torch.bmm(z, state[:, 0].mT)
        for m in range(1, state.shape[1]):
            y = torch.addcmul(y, share[..., m : m + 1], torch.bmm(z, state[:, m].mT))
        return torch.baddbmm(y, torch.bmm(z, zs.mT) * read, us, alpha=-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        flat = [_lanes(info, x, at, 0) for x, at in zip(inputs, in_dims, strict=True)]
        y: Tensor = _Read.apply(*flat)  # type: ignore[no-untyped-call]
        return y.unflatten(0, (info.batch_size, -1)), 0

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        z, state, zs, us, share, read = ctx.saved_tensors
        dy = grads[0]
        kernel = torch.bmm(z, zs.mT)
        slope = torch.bmm(dy, us.mT).neg_()
        d_read, slope = kernel * slope, slope * read
        d_us = torch.bmm((kernel * read).mT, dy).neg_()
        d_zs = torch.bmm(slope.mT, z)
        dz = torch.bmm(slope, zs)
        d_state, d_share = [], []
        for m in range(state.shape[1]):
            part = share[..., m : m + 1]
            on = torch.bmm(dy, state[:, m])
            d_share.append((on * z).sum(-1))
            dz = torch.addcmul(dz, part, on)
            d_state.append(torch.bmm((part * dy).mT, z))
        return dz, torch.stack(d_state, 1), d_zs, d_us, torch.stack(d_share, -1), d_read


class _Write(torch.autograd.Function):
    @staticmethod
    def forward(state: Tensor, zs: Tensor, us: Tensor, mix: Tensor, last: Tensor) -> Tensor:
        return torch.baddbmm(_mixed(mix, state), _weighted(last, us).mT, zs).view_as(state)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        flat = [_lanes(info, x, at, 0) for x, at in zip(inputs, in_dims, strict=True)]
        after: Tensor = _Write.apply(*flat)  # type: ignore[no-untyped-call]
        return after.unflatten(0, (info.batch_size, -1)), 0

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        state, zs, us, mix, last = ctx.saved_tensors
        d = grads[0]
        rows = d.flatten(1, 2)  # p m*o i
        on = torch.bmm(zs, rows.mT).unflatten(-1, d.shape[1:3])  # p s m o
        d_us = (last.unsqueeze(-1) * on).sum(2)
        d_last = (us.unsqueeze(2) * on).sum(-1)
        d_zs = torch.bmm(_weighted(last, us), rows)
        d_mix = torch.bmm(d.flatten(2), state.flatten(2).mT)
        return _mixed(mix.mT, d).view_as(d), d_zs, d_us, d_mix, d_last


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        state: Tensor, probes: Tensor | None, zs: Tensor, values: Tensor, mix: Tensor, last: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        states, us, x = [], [], state
        for g in range(zs.shape[0]):
            u = -values[g] if probes is None else _errors(x, probes[g], values[g])
            states.append(x)
            us.append(u)
            x = torch.baddbmm(_mixed(mix[g], x), _weighted(last[g], u).mT, zs[g]).view_as(x)
        return torch.stack(us), torch.stack(states), x

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor | None, ...], output: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        _, *given = inputs
        ctx.save_for_backward(*given, *output[:2])

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], *inputs: Tensor | None
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        at_rows = (0, 1, 1, 1, 1, 1)
        flat = [_lanes(info, *each) for each in zip(inputs, in_dims, at_rows, strict=True)]
        us, starts, end = _Scan.apply(*flat)  # type: ignore[no-untyped-call]
        sizes = (info.batch_size, -1)
        return (us.unflatten(1, sizes), starts.unflatten(1, sizes), end.unflatten(0, sizes)), (
            1, 1, 0,
        )  # fmt: skip

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        probes, zs, _, mix, last, us, starts = ctx.saved_tensors
        d_us, d_starts, d = grads
        m, o = d.shape[1:3]
        ons, errors, ends = [], [], []
        for g in reversed(range(zs.shape[0])):
            on = torch.bmm(zs[g], d.flatten(1, 2).mT).unflatten(-1, (m, o))
            error = torch.add(d_us[g], (last[g].unsqueeze(-1) * on).sum(2))
            ons.append(on)
            errors.append(error)
            ends.append(d)
            d = d_starts[g] + _mixed(mix[g].mT, d).view_as(d)
            if probes is not None:
                d = _through(d, error, probes[g])
        ons, errors, ends = (torch.stack(x[::-1]) for x in (ons, errors, ends))
        d_last = (us.unsqueeze(3) * ons).sum(-1)
        rows = ends.flatten(2, 3)
        d_zs = torch.matmul(
            _weighted(last.flatten(0, 1), us.flatten(0, 1)).view(*zs.shape[:3], -1), rows
        )
        d_mix = torch.matmul(ends.flatten(3), starts.flatten(3).mT)
        d_probes = None
        if probes is not None:
            d_probes = torch.matmul(errors.unsqueeze(2), starts[:, :, : probes.shape[2]])
        return d, d_probes, d_zs, -errors, d_mix, d_last


def _mixed(mix: Tensor, state: Tensor) -> Tensor:
    """sum_k mix[m,k] X_k, p m*o i."""
    mixed: Tensor = torch.bmm(mix, state.flatten(2)).view(state.shape[0], -1, state.shape[-1])
    return mixed


def _weighted(last: Tensor, us: Tensor) -> Tensor:
    """last[s,m] u_s, p s m*o."""
    return (last.unsqueeze(-1) * us.unsqueeze(2)).flatten(2)


def _errors(state: Tensor, probes: Tensor, values: Tensor) -> Tensor:
    u = torch.baddbmm(values, probes[:, 0], state[:, 0].mT, beta=-1)
    for k in range(1, probes.shape[1]):
        u = torch.baddbmm(u, probes[:, k], state[:, k].mT)
    return u


def _through(d: Tensor, error: Tensor, probes: Tensor) -> Tensor:
    """What the errors of a stretch add to the gradient of the state that they were taken at."""
    first = [torch.baddbmm(d[:, k], error.mT, probes[:, k]) for k in range(probes.shape[1])]
    return torch.stack([*first, *d[:, len(first) :].unbind(1)], dim=1)
