"""How the gradients of a stretch change the memory, seen by its reads and at its end.

Sources i have gradients u_i z_i^T for each fast weight. Written as they are, they never become
matrices: a read is an attention over the sources. Orthogonalised, each write is made once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ablate.components.kernels.backend import kernel
from ablate.components.memory import Weights
from ablate.components.newton_schulz import NewtonSchulz
from ablate.components.orthogonal_sums import OrthogonalSums, orthogonal_sums
from ablate.components.recurrence.coefficients import Folded, LinearWeights, OrthogonalWeights
from ablate.components.recurrence.fast_weight import read_weight, write_weight


@dataclass(frozen=True)
class Carried:
    """Fast weights and momenta, p o i each, from one stretch to the next.

    kept: share of the open chunk's first weights that is left, p 1 1, where that is asked for.
    stacked: both of each map side by side, p m o i, where they were made so.
    """

    weights: Weights
    momenta: Weights
    kept: Tensor | None = None
    stacked: Weights = ()

    @classmethod
    def of(cls, states: Weights) -> Carried:
        """From states, p m o i each."""
        momenta = tuple(state[:, 1] for state in states if state.shape[1] > 1)
        return cls(tuple(state[:, 0] for state in states), momenta, stacked=states)

    def states(self) -> Weights:
        """Weight and momentum of each map side by side, p m o i."""
        if self.stacked:
            return self.stacked
        if not self.momenta:
            return tuple(w.unsqueeze(1) for w in self.weights)
        pairs = zip(self.weights, self.momenta, strict=True)
        return tuple(torch.stack(pair, dim=1) for pair in pairs)


@runtime_checkable
class Write(Protocol):
    """What a stretch's writes answer."""

    def read(self, j: int, z: Tensor, *, at_features: bool) -> Tensor:
        """Fast weight j of every token applied to `z` (p n i)."""

    def end(self) -> Carried:
        """Weights and momenta after the last token."""


def by_matrix(z: Tensor, weight: Tensor) -> Tensor:
    """W z of every token."""
    return torch.bmm(z, weight.mT)


@dataclass(frozen=True)
class ReadBefore:
    """Another write, read one token earlier.

    Row n holds the query of token n+1, so what the other gives it is the memory before that token's
    write. The last row holds the first query, which reads the memory that the stretch starts from.
    apply: a first map to what queries are read as.
    """

    write: Write
    start: Weights
    apply: Callable[[Tensor, Tensor], Tensor] = by_matrix

    def read(self, j: int, z: Tensor, *, at_features: bool) -> Tensor:
        """Fast weight j before every token's write."""
        y = self.write.read(j, z, at_features=at_features)
        apply = self.apply if at_features else by_matrix
        return torch.cat([y[:, :-1], apply(z[:, -1:], self.start[j])], dim=1)

    def end(self) -> Carried:
        """As the other's."""
        return self.write.end()


@dataclass(frozen=True)
class LinearWrite:
    """The momentum itself is written to states of p m o i."""

    w: Folded  # without g
    us: Weights
    zs: Weights
    states: Weights
    backend: str = "torch"

    def read(self, j: int, z: Tensor, *, at_features: bool) -> Tensor:
        """Each token's share of the states on z, less sum_i read[n, i] u_i (z_i . z)."""
        w, state = self.w, self.states[j]
        form = kernel("read_weight", self.backend, state) or read_weight
        y: Tensor = form(z, state, self.zs[j], self.us[j], w.share, w.read)
        return y

    def end(self) -> Carried:
        """The same sums with the last token's weights, as matrices."""
        made = []
        for each in zip(self.states, self.zs, self.us, strict=True):
            form = kernel("write_weight", self.backend, each[0]) or write_weight
            made.append(form(*each, self.w.mix, self.w.last))
        return Carried.of(tuple(made))

    def every(self, j: int) -> Tensor:
        """Fast weight j after every token, p n o i."""
        parts = self.w.read.unsqueeze(2) * self.us[j].mT.unsqueeze(1)
        sums: Tensor = torch.bmm(parts.flatten(1, 2), self.zs[j]).unflatten(1, parts.shape[1:3])
        kept: Tensor = torch.bmm(self.w.share, self.states[j].flatten(2)).view_as(sums)
        return kept - sums


class OrthogonalWrite:
    """Each write is the orthogonalised momentum of its token."""

    def __init__(
        self,
        ns: NewtonSchulz,
        w: OrthogonalWeights,
        us: Weights,
        zs: Weights,
        carried: Carried,
        backend: str = "torch",
    ) -> None:
        self.ns, self.w, self.us, self.zs, self.carried = ns, w, us, zs, carried
        self.backend = backend
        self.momenta = carried_momenta(w, us, zs, carried)
        self._ends: dict[int, Tensor] = {}

    def read(self, j: int, z: Tensor, *, at_features: bool) -> Tensor:
        """carry W z - sum_w write[n, w] NS(S_w) z."""
        y = self.w.carry * torch.bmm(z, self.carried.weights[j].mT)
        if self.w.write is None:
            return y
        written, self._ends[j] = self._sums(j, z, self.w.write)
        return y - written

    def end(self) -> Carried:
        """The same sum with the last token's weights, as matrices."""
        weights = tuple(self.w.end_carry * w for w in self.carried.weights)
        if self.w.write is not None:
            weights = tuple(w - self._end(j) for j, w in enumerate(weights))
        return Carried(weights, self.momenta)

    def every(self, j: int) -> Tensor:
        """Fast weight j after every token, p n o i."""
        kept: Tensor = self.w.carry.unsqueeze(-1) * self.carried.weights[j].unsqueeze(1)
        if self.w.write is None:
            return kept
        made = self.ns(_momentum_at_writes(self.w, self.carried.momenta[j], self.us[j], self.zs[j]))
        return kept - torch.bmm(self.w.write, made.flatten(2)).view_as(kept)

    def _end(self, j: int) -> Tensor:
        """What the writes leave; made with the reads, unless nothing was read."""
        if j not in self._ends:
            assert self.w.write is not None
            nothing = self.zs[j][:, :0]
            self._ends[j] = self._sums(j, nothing, self.w.write[:, :0])[1]
        return self._ends[j]

    def _sums(self, j: int, z: Tensor, write: Tensor) -> tuple[Tensor, Tensor]:
        w, s0 = self.w, self.carried.momenta[j]
        assert w.momentum_carry is not None
        assert w.momentum_read is not None
        assert w.end_write is not None
        y, end = sums_form(self.ns, self.backend, s0)(
            s0, self.us[j], self.zs[j], w.momentum_carry.squeeze(-1), w.momentum_read, write,
            w.end_write.squeeze(1), z, schedule=self.ns.schedule, eps=self.ns.eps,
        )  # fmt: skip
        size = self.ns.size(*s0.shape[-2:])
        return (y, end) if size == 1.0 else (y * size, end * size)


def sums_form(ns: NewtonSchulz, backend: str, like: Tensor) -> OrthogonalSums:
    """What makes the sums over momenta such as `like`, p o i; no kernel makes them of no steps."""
    form: Any = kernel("newton_schulz", backend, like) if ns.steps else None
    return form or orthogonal_sums


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
