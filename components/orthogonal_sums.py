"""Reads of orthogonalised momenta, on small coordinates where the features are many.

All rows of the momenta lie in the span of S_0 and the keys' features, and what they are read by in
a span of few vectors more. NS(S) = P(S S^T) S does not see the coordinates of that span, so the
matrices are as wide as it and not as the features: the cost does not depend on the degree of a
polynomial feature map. Only inputs are kept for the backward pass, which makes the matrices again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.components.newton_schulz import Schedule, derivative, iterate
from ablate.components.recurrence.lanes import Slopes, by_rows

Inputs: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
WORTH = 1.5  # a basis is made where it is so much narrower than the features


@dataclass(frozen=True)
class OrthogonalSums:
    """The sums in one form, torch's or a kernel's.

    forward, backward: outside of autograd, of the eight tensors; the second gives the gradient of
    each, from those of both results.
    """

    forward: Callable[[Inputs, Schedule, float], tuple[Tensor, Tensor]]
    backward: Callable[[Inputs, Tensor, Tensor, Schedule, float], tuple[Tensor, ...]]

    def __call__(
        self,
        s0: Float[Tensor, "p o i"],
        u: Float[Tensor, "p s o"],
        z: Float[Tensor, "p s i"],
        carry: Float[Tensor, "p w"],
        read: Float[Tensor, "p w s"],
        write: Float[Tensor, "p n w"],
        end: Float[Tensor, "p w"],
        right: Float[Tensor, "p n i"],
        *,
        schedule: Schedule,
        eps: float,
    ) -> tuple[Float[Tensor, "p n o"], Float[Tensor, "p o i"]]:
        """Sums over writes w of NS(S_w) on `right`, weighted by `write`, and of NS(S_w) by `end`.

        S_w = carry_w S_0 + sum_s read[w, s] u_s z_s^T (Atlas Eq. 32-33 with the gates folded in).

        Args:
            s0: the momentum that all writes start from.
            u: left factors of the gradients. z: right factors.
            carry: what is left of `s0` at each write. read: weights of the gradients in each write.
            write: how much of each write each token reads. end: how much is left of it at the end.
            right: what each token reads with.
            schedule: (a, b, c) of each step; without one NS is the identity.
            eps: added to the Frobenius norm.
        """
        tensors = (s0, u, z, carry, read, write, end, right)
        y, last = _Sums.apply(*tensors, schedule, eps, self)  # type: ignore[no-untyped-call]  # torch's own
        return y, last


@by_rows((0,) * 11, (0, 0))
class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, Tensor]:
        *tensors, schedule, eps, form = given
        y, last = form.forward(tuple(tensors), schedule, eps)
        return y, last

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.schedule, ctx.eps, ctx.form = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        given = (*ctx.saved_tensors, *grads, ctx.schedule, ctx.eps, ctx.form)
        slopes: tuple[Tensor, ...] = _SumsBack.apply(*given)  # type: ignore[no-untyped-call]
        return (*slopes, None, None, None)


@by_rows((0,) * 13, (0,) * 8)
class _SumsBack(Slopes):
    """The gradient of `_Sums`."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        *tensors, d_y, d_last, schedule, eps, form = given
        slopes: tuple[Tensor, ...] = form.backward(tuple(tensors), d_y, d_last, schedule, eps)
        return slopes


def _forward(inputs: Inputs, schedule: Schedule, eps: float) -> tuple[Tensor, Tensor]:
    s0, u, z, carry, read, write, end, right = inputs
    basis = basis_of(s0, z)
    s0, z, right = (onto(basis, x) for x in (s0, z, right))
    made = iterate(_momenta(carry, s0, _weighted(read, u), z), schedule, eps)
    y = (write.unsqueeze(-1) * _on(right, made)).sum(2)
    return y, back(basis, _sum(end, made))


def _backward(
    inputs: Inputs, d_y: Tensor, d_last: Tensor, schedule: Schedule, eps: float
) -> tuple[Tensor, ...]:
    s0, u, z, carry, read, write, end, right = inputs
    # The derivative of NS in a direction sees the part of it that lies outside of S's own rows.
    basis = basis_of(s0, z, right, d_last)
    s0, z, right, d_last = (onto(basis, x) for x in (s0, z, right, d_last))
    # `write` makes the direction of the derivative as the transpose of `read` makes momenta.
    parts, turned = _weighted(read, u), _weighted(write.mT, d_y)
    direction = _momenta(end, d_last, turned, right)
    made, h = derivative(_momenta(carry, s0, parts, z), direction, schedule, eps)
    d_end, d_right, on = _slopes(made, d_last, turned, right)
    d_write = (on * d_y.unsqueeze(2)).sum(-1)
    d_carry, d_z, on = _slopes(h, s0, parts, z)
    d_read = (on * u.unsqueeze(2)).sum(-1).mT
    d_u = (read.mT.unsqueeze(-1) * on).sum(2)
    d_s0 = _sum(carry, h)
    d_s0, d_z, d_right = (back(basis, x) for x in (d_s0, d_z, d_right))
    return d_s0, d_u, d_z, d_carry, d_read, d_write, d_end, d_right


orthogonal_sums = OrthogonalSums(_forward, _backward)


def basis_of(*rows: Tensor) -> Tensor | None:
    """Orthonormal columns, p i r, that span all `rows`; None where the features are as few."""
    width, count = rows[0].shape[-1], sum(x.shape[1] for x in rows)
    if width < WORTH * count:
        return None
    basis: Tensor = torch.linalg.qr(torch.cat(rows, dim=1).mT).Q
    return basis


def onto(basis: Tensor | None, x: Tensor) -> Tensor:
    """Coordinates of rows, p n i -> p n r."""
    return x if basis is None else torch.bmm(x, basis)


def back(basis: Tensor | None, x: Tensor) -> Tensor:
    """The rows that have these coordinates."""
    return x if basis is None else torch.bmm(x, basis.mT)


def _weighted(read: Tensor, u: Tensor) -> Tensor:
    """read[w, s] u_s, p s w*o."""
    parts: Tensor = (read.mT.contiguous().unsqueeze(-1) * u.unsqueeze(2)).flatten(2)
    return parts


def _momenta(carry: Tensor, s0: Tensor, parts: Tensor, z: Tensor) -> Tensor:
    """S_w = carry_w S_0 + sum_s parts_{s,w} z_s^T, p w o i."""
    rows = (carry[..., None, None] * s0.unsqueeze(1)).flatten(1, 2)
    sums: Tensor = rows.baddbmm_(parts.mT, z).unflatten(1, (-1, s0.shape[1]))
    return sums


def _slopes(h: Tensor, s0: Tensor, parts: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of sum_w <h_w, S_w> by carry and z; and h on z."""
    d_carry = torch.bmm(s0.flatten(1).unsqueeze(1), h.flatten(2).mT).squeeze(1)
    return d_carry, torch.bmm(parts, h.flatten(1, 2)), _on(z, h)


def _on(z: Tensor, h: Tensor) -> Tensor:
    """Every matrix of `h` on every vector of `z`, p s w o."""
    on: Tensor = torch.bmm(z, h.flatten(1, 2).mT).unflatten(-1, h.shape[1:3])
    return on


def _sum(weights: Tensor, h: Tensor) -> Tensor:
    """sum_w weights_w h_w, p o i."""
    return torch.bmm(weights.unsqueeze(1), h.flatten(2)).view(h.shape[0], *h.shape[2:])
