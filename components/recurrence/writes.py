"""How the gradients of a stretch change the memory, seen by its reads and at its end.

Sources i have gradients u_i z_i^T for each fast weight. Written as they are, they never become
matrices: a read is an attention over the sources. Orthogonalised, each write is made once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ablate.components.memory import Weights
from ablate.components.recurrence.coefficients import LinearWeights, OrthogonalWeights


@dataclass(frozen=True)
class Carried:
    """Fast weights and momenta, p o i each, from one stretch to the next.

    kept: share of the open chunk's first weights that is left, p 1 1, where that is asked for.
    """

    weights: Weights
    momenta: Weights
    kept: Tensor | None = None


@runtime_checkable
class Write(Protocol):
    """What a stretch's writes answer."""

    def read(self, j: int, z: Tensor, plain: Tensor, *, at_features: bool) -> Tensor:
        """Fast weight j of every token applied to `z` (p n i); `plain` is the first W on `z`."""

    def end(self) -> Carried:
        """Weights and momenta after the last token."""


@dataclass(frozen=True)
class ReadBefore:
    """Another write, read one token earlier.

    Row n holds the query of token n+1, so what the other gives it is the memory before that token's
    write. The last row holds the first query, which reads the memory that the stretch starts from.
    """

    write: Write
    start: Weights

    def read(self, j: int, z: Tensor, plain: Tensor, *, at_features: bool) -> Tensor:
        """Fast weight j before every token's write."""
        y = self.write.read(j, z, plain, at_features=at_features)
        return torch.cat([y[:, :-1], torch.bmm(z[:, -1:], self.start[j].mT)], dim=1)

    def end(self) -> Carried:
        """As the other's."""
        return self.write.end()


@dataclass(frozen=True)
class LinearWrite:
    """The momentum itself is written. `kernel` (p n i) is phi(q) . phi(k) weighted by `read`."""

    w: LinearWeights  # without g
    us: Weights
    zs: Weights
    carried: Carried
    kernel: Tensor

    def read(self, j: int, z: Tensor, plain: Tensor, *, at_features: bool) -> Tensor:
        """carry W z - momentum S z - sum_i read[n, i] u_i (z_i . z)."""
        y = self.w.carry * plain
        if self.w.momentum is not None:
            y = y - self.w.momentum * torch.bmm(z, self.carried.momenta[j].mT)
        kernel = self.kernel if at_features else self.w.read * torch.bmm(z, self.zs[j].mT)
        return torch.baddbmm(y, kernel, self.us[j], alpha=-1)

    def end(self) -> Carried:
        """The same sums with the last token's weights, as matrices."""
        weights = []
        for j, (u, z) in enumerate(zip(self.us, self.zs, strict=True)):
            w = self.w.end_carry * self.carried.weights[j]
            if self.w.end_momentum is not None:
                w = w - self.w.end_momentum * self.carried.momenta[j]
            weights.append(torch.baddbmm(w, (self.w.end_read * u).mT, z, alpha=-1))
        return Carried(tuple(weights), carried_momenta(self.w, self.us, self.zs, self.carried))

    def every(self, j: int) -> Tensor:
        """Fast weight j after every token, p n o i."""
        parts = self.w.read.unsqueeze(2) * self.us[j].mT.unsqueeze(1)
        sums = torch.bmm(parts.flatten(1, 2), self.zs[j]).unflatten(1, parts.shape[1:3])
        made: Tensor = self.w.carry.unsqueeze(-1) * self.carried.weights[j].unsqueeze(1) - sums
        if self.w.momentum is not None:
            made = made - self.w.momentum.unsqueeze(-1) * self.carried.momenta[j].unsqueeze(1)
        return made


class OrthogonalWrite:
    """Each write is the orthogonalised momentum of its token."""

    def __init__(
        self,
        orthogonalise: Callable[[Tensor], Tensor],
        w: OrthogonalWeights,
        us: Weights,
        zs: Weights,
        carried: Carried,
    ) -> None:
        self.w, self.us, self.carried = w, us, carried
        self.momenta = carried_momenta(w, us, zs, carried)
        self.made: Weights = ()  # p w o i
        if w.write is not None:
            rows = zip(carried.momenta, us, zs, strict=True)
            self.made = tuple(orthogonalise(_momentum_at_writes(w, *row)) for row in rows)

    def read(self, j: int, z: Tensor, plain: Tensor, *, at_features: bool) -> Tensor:
        """carry W z - sum_w write[n, w] NS(S_w) z."""
        y = self.w.carry * plain
        if self.w.write is None:
            return y
        made = self.made[j]
        each = torch.bmm(z, made.flatten(1, 2).mT).unflatten(-1, made.shape[1:3])  # p n w o
        written: Tensor = (self.w.write.unsqueeze(-1) * each).sum(2)
        return y - written

    def end(self) -> Carried:
        """The same sum with the last token's weights, as matrices."""
        weights = tuple(self.w.end_carry * w for w in self.carried.weights)
        if self.w.end_write is not None:
            weights = tuple(
                w - torch.bmm(self.w.end_write, made.flatten(2)).view_as(w)
                for w, made in zip(weights, self.made, strict=True)
            )
        return Carried(weights, self.momenta)

    def every(self, j: int) -> Tensor:
        """Fast weight j after every token, p n o i."""
        kept: Tensor = self.w.carry.unsqueeze(-1) * self.carried.weights[j].unsqueeze(1)
        if self.w.write is None:
            return kept
        return kept - torch.bmm(self.w.write, self.made[j].flatten(2)).view_as(kept)


def carried_momenta(
    w: LinearWeights | OrthogonalWeights, us: Weights, zs: Weights, carried: Carried
) -> Weights:
    """Momenta after the last token."""
    if w.next_carry is None or w.next_read is None:
        return ()
    return tuple(
        torch.baddbmm(w.next_carry * s, (w.next_read * u).mT, z)
        for s, u, z in zip(carried.momenta, us, zs, strict=True)
    )


def _momentum_at_writes(w: OrthogonalWeights, s: Tensor, u: Tensor, z: Tensor) -> Tensor:
    """Momentum of every write, p w o i."""
    assert w.momentum_carry is not None
    assert w.momentum_read is not None
    parts = w.momentum_read.unsqueeze(2) * u.mT.unsqueeze(1)  # p w o i
    sums = torch.bmm(parts.flatten(1, 2), z).unflatten(1, parts.shape[1:3])
    return torch.addcmul(sums, w.momentum_carry.unsqueeze(-1), s.unsqueeze(1))
