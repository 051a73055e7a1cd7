"""Stretches of a matrix whose writes are orthogonalised, one after another, with their gradients.

`fast_weight.scan_weight` does this for linear writes. Here each stretch reads what it makes, since
the matrices of its writes are not kept: what is kept is what stretches start from and their errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.components.newton_schulz import Schedule
from ablate.components.orthogonal_sums import OrthogonalSums
from ablate.components.recurrence.coefficients import OrthogonalWeights
from ablate.components.recurrence.lanes import Slopes, by_rows


@dataclass(frozen=True)
class Orthogonal:
    """What orthogonalises: in which form, by which steps, to matrices of which size.

    errors: whether gradients are those of squared errors at a stretch's first memory; else they are
    those of the dot product, -v.
    """

    sums: OrthogonalSums
    schedule: Schedule
    eps: float
    size: float
    errors: bool


def scan_orthogonal(
    weight: Float[Tensor, "p o i"],
    momentum: Float[Tensor, "p o i"],
    zs: Float[Tensor, "g p s i"],
    values: Float[Tensor, "g p s o"],
    right: Float[Tensor, "g p n i"],
    w: OrthogonalWeights,
    how: Orthogonal,
) -> tuple[
    Float[Tensor, "g p n o"],
    Float[Tensor, "p o i"],
    Float[Tensor, "p o i"],
    Float[Tensor, "p o i"],
]:
    """Read and write stretches that have writes, as `OrthogonalWrite` does one.

    Returns:
        What each token reads; the memory that the last stretch starts from; weight and momentum at
        the end.
    """
    given = (weight, momentum, zs, values, right)
    parts = (
        w.carry, w.end_carry, w.next_carry, w.next_read,
        w.momentum_carry, w.momentum_read, w.write, w.end_write,
    )  # fmt: skip
    y, _, starts, end = _Scan.apply(*given, *parts, how)  # type: ignore[no-untyped-call]
    return y, starts[-1, :, 0], end[:, 0], end[:, 1]


@by_rows((0, 0, *(1,) * 11, 0), (1, 1, 1, 0))
class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        weight, momentum, zs, values, right, *parts, how = inputs
        carry, end_carry, next_carry, next_read, *_ = parts
        first = torch.stack([weight, momentum], dim=1)
        starts, end = first.new_empty(zs.shape[0], *first.shape), torch.empty_like(first)
        starts[0] = first
        us, read = values.neg(), []
        rates, later = _rates(end_carry, next_carry), [*starts[1:], end]
        for g, given in enumerate(_turns(how, us, zs, right, *parts[4:])):
            (w, s), (u, z, *_) = starts[g].unbind(1), given
            if how.errors:
                torch.baddbmm(u, z, w.mT, out=u)
            y, last = how.sums.forward((s, *given), how.schedule, how.eps)
            read.append(y)
            after = torch.mul(rates[g], starts[g], out=later[g])
            after[:, 0] -= last
            after[:, 1].baddbmm_((next_read[g] * u).mT, z)
        y = torch.matmul(right, starts[:, :, 0].mT).mul_(carry)
        return y.sub_(torch.stack(read)), us, starts, end

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]
    ) -> None:
        _, _, zs, _, right, *parts, ctx.how = inputs
        _, us, starts, _ = output
        ctx.mark_non_differentiable(us)
        ctx.save_for_backward(zs, us, right, starts, *parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_y, _, d_starts, d_end = grads
        slopes = _ScanBack.apply(*ctx.saved_tensors, d_y, d_starts, d_end, ctx.how)  # type: ignore[no-untyped-call]
        return (*slopes, None)


@by_rows((*(1,) * 14, 0, 0), (0, 0, *(1,) * 11))
class _ScanBack(Slopes):
    """The gradient of `_Scan`: the same turns, from the last on."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, ...]:
        # By slices: torch.compile mistakes a starred name between others.
        (zs, us, right, starts), parts = inputs[:4], inputs[4:12]
        d_y, d_starts, d_end, how = inputs[12:]
        carry, end_carry, next_carry, next_read, *_ = parts
        weights, on = starts[:, :, 0], torch.matmul(d_y, starts[:, :, 0])
        # Of the state after stretch g in row g + 1; of the first of all in row 0.
        ds = torch.cat([d_starts, d_end.unsqueeze(0)])
        ds[:-1, :, 0] += torch.matmul((carry * d_y).mT, right)
        rates, errors, each = _rates(end_carry, next_carry), torch.empty_like(us), []
        turns = list(_turns(how, us, zs, right, *parts[4:]))
        for g in reversed(range(len(turns))):
            (dw, dm), (_, z, *_) = ds[g + 1].unbind(1), turns[g]
            given = (starts[g, :, 1], *turns[g])
            d_s, d_u, *rest = how.sums.backward(given, -d_y[g], -dw, how.schedule, how.eps)
            torch.addcmul(d_u, next_read[g], torch.bmm(z, dm.mT), out=errors[g])
            each.append(rest)
            before = ds[g].addcmul_(rates[g], ds[g + 1])
            before[:, 1] += d_s
            if how.errors:
                before[:, 0].baddbmm_(errors[g].mT, z)
        d_zs, *rest, d_right = (torch.stack(part[::-1]) for part in zip(*each, strict=True))
        momenta, d_rates = ds[1:, :, 1], (ds[1:] * starts).sum((3, 4)).unsqueeze(-1)
        d_zs += torch.matmul(next_read * us, momenta)
        if how.errors:
            d_zs += torch.matmul(errors, weights)
        d_next = (torch.matmul(zs, momenta.mT) * us).sum(-1, keepdim=True)
        d_parts = (
            (on * right).sum(-1, keepdim=True), d_rates[:, :, :1], d_rates[:, :, 1:], d_next,
            rest[0].unsqueeze(-1), rest[1], how.size * rest[2], how.size * rest[3].unsqueeze(2),
        )  # fmt: skip
        return *ds[0].unbind(1), d_zs, errors.neg_(), d_right.addcmul_(carry, on), *d_parts


def _rates(end_carry: Tensor, next_carry: Tensor) -> Tensor:
    """What a stretch leaves of both parts of the state, g p 2 1 1."""
    return torch.cat([end_carry, next_carry], dim=2).unsqueeze(-1)


def _turns(
    how: Orthogonal, us: Tensor, zs: Tensor, right: Tensor,
    momentum_carry: Tensor, momentum_read: Tensor, write: Tensor, end_write: Tensor,
) -> Iterator[tuple[Tensor, ...]]:  # fmt: skip
    """What `OrthogonalSums` takes after the momentum, stretch by stretch."""
    parts = (
        us, zs, momentum_carry.squeeze(-1), momentum_read, how.size * write,
        how.size * end_write.squeeze(2), right,
    )  # fmt: skip
    return zip(*(part.unbind(0) for part in parts), strict=True)
