"""Writes of a memory whose retention differs by channel.

A matrix W is kept by its columns, W diag(a) (side "key"), by its rows, diag(a) W ("value"), or by
both, diag(b) W diag(a), whose channels are those of a, then of b. The
coefficients of `fold_linear` then have the channels before the tokens. In a deep memory the maps on
the features are kept by columns and the later ones by rows, both as wide as the head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.components.memory import Weights
from ablate.components.recurrence.coefficients import LinearWeights, fold_linear
from ablate.components.recurrence.writes import Carried, carried_momenta


def fold_channels(
    keep: Float[Tensor, "g p n d"],
    lr: Float[Tensor, "g p n"],
    theta: Float[Tensor, "g p n"] | None,
    gamma: Float[Tensor, "g p n c"],
    *,
    step_inside: bool,
    nesterov: bool,
    idle: int = 0,
) -> LinearWeights:
    """Coefficients `[g p d n ...]`; those that only make the momentum have no channels."""
    w = fold_linear(
        keep.mT,
        lr.unsqueeze(2),
        None if theta is None else theta.unsqueeze(2),
        gamma.unsqueeze(2),
        step_inside=step_inside,
        nesterov=nesterov,
        idle=idle,
    )
    if w.next_carry is None or w.next_read is None:
        return w
    return replace(w, next_carry=w.next_carry[:, :, 0], next_read=w.next_read[:, :, 0])


def key_kernel(
    read: Float[Tensor, "*p d n i"], x: Float[Tensor, "*p n d"], z: Float[Tensor, "*p i d"]
) -> Float[Tensor, "*p n i"]:
    """sum_d read[d, n, i] x[n, d] z[i, d]."""
    return torch.einsum("...dni,...nd,...id->...ni", read, x, z)


def by_token(part: Float[Tensor, "*p d n 1"]) -> Float[Tensor, "*p n d"]:
    """Channels last."""
    return part.squeeze(-1).mT


def fold_both(
    keep: Float[Tensor, "g p n c"],
    lr: Float[Tensor, "g p n"],
    gamma: Float[Tensor, "g p n 1"],
    *,
    columns: int,
) -> LinearWeights:
    """Coefficients `[g p c n n]` of columns, then of rows; the steps are with the columns."""
    how = {"step_inside": True, "nesterov": False}
    left = fold_channels(keep[..., :columns], lr, None, gamma, **how)
    ones = torch.ones_like(lr)
    right = fold_channels(keep[..., columns:], ones, None, ones.unsqueeze(-1), **how)
    parts = ("carry", "read", "end_carry", "end_read")
    return LinearWeights(
        *(torch.cat([getattr(left, part), getattr(right, part)], dim=2) for part in parts)
    )


@dataclass(frozen=True)
class ChannelWrite:
    """The momentum itself is written. `kernel` (p n i): as of `key_kernel`, or q . k on rows."""

    w: LinearWeights  # without g, with channels
    us: Weights
    zs: Weights
    carried: Carried
    kernel: Tensor
    side: str

    def read(self, j: int, z: Tensor, *, at_features: bool) -> Tensor:
        """Fast weight j of every token applied to `z`."""
        w, u = self.w, self.us[j]
        if self._by_columns(at_features=at_features):
            y = torch.bmm(by_token(w.carry) * z, self.carried.weights[j].mT)
            if w.momentum is not None:
                y = y - torch.bmm(by_token(w.momentum) * z, self.carried.momenta[j].mT)
            return torch.baddbmm(y, self.kernel, u, alpha=-1)
        y = by_token(w.carry) * torch.bmm(z, self.carried.weights[j].mT)
        if w.momentum is not None:
            y = y - by_token(w.momentum) * torch.bmm(z, self.carried.momenta[j].mT)
        kernel = self.kernel if at_features else torch.bmm(z, self.zs[j].mT)
        written = torch.einsum("peni,pie,pni->pne", w.read, u, kernel)
        return y - written

    def end(self) -> Carried:
        """Weights and momenta after the last token."""
        weights = []
        for j, (u, z) in enumerate(zip(self.us, self.zs, strict=True)):
            columns = self._by_columns(at_features=z is self.zs[0])
            made = self._kept(self.w.end_carry, columns=columns) * self.carried.weights[j]
            if self.w.end_momentum is not None:
                share = self._kept(self.w.end_momentum, columns=columns)
                made = made - share * self.carried.momenta[j]
            share = by_token(self.w.end_read)  # p i d
            u, z = (u, share * z) if columns else (share * u, z)
            weights.append(torch.baddbmm(made, u.mT, z, alpha=-1))
        return Carried(tuple(weights), carried_momenta(self.w, self.us, self.zs, self.carried))

    def _by_columns(self, *, at_features: bool) -> bool:
        return self.side == "key" and at_features

    @staticmethod
    def _kept(share: Tensor, *, columns: bool) -> Tensor:
        share = share.squeeze(-1)  # p d 1
        return share.mT if columns else share


@dataclass(frozen=True)
class BothWrite:
    """Gradients written to one matrix that is kept by columns and rows, by windows of one token.

    A source's decay then is a product of one for its key and one for its error. `kernel` (p n i):
    as of `key_kernel`, of the columns' coefficients.
    """

    w: LinearWeights  # without g, with channels of columns, then of rows
    us: Weights
    zs: Weights
    carried: Carried
    kernel: Tensor

    def read(self, j: int, z: Tensor, *, at_features: bool) -> Tensor:
        """The matrix of every token applied to `z`."""
        columns, rows = self._split(by_token(self.w.carry), -1)
        kept: Tensor = rows * torch.bmm(columns * z, self.carried.weights[j].mT)
        _, read = self._split(self.w.read, 1)
        return kept - torch.einsum("peni,pie,pni->pne", read, self.us[j], self.kernel)

    def end(self) -> Carried:
        """The matrix after the last token."""
        columns, rows = self._split(by_token(self.w.end_carry), -1)  # p 1 c
        first, last = self._split(by_token(self.w.end_read), -1)  # p i c
        kept = rows.mT * columns * self.carried.weights[0]
        return Carried((kept - (last * self.us[0]).mT @ (first * self.zs[0]),), ())

    def _split(self, part: Tensor, dim: int) -> list[Tensor]:
        width = self.zs[0].shape[-1]
        return list(part.split([width, part.shape[dim] - width], dim=dim))
