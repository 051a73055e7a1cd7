"""Reads of memories that are no sum of outer products: made, one set of weights for each token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ablate.components.memory import Weights
from ablate.components.recurrence.coefficients import Folded
from ablate.components.recurrence.writes import Carried, LinearWrite, OrthogonalWrite


@dataclass(frozen=True)
class MadeWrite:
    """Token n reads `made[j][n]` (p n o i); `last` is what goes on."""

    made: Weights
    last: Carried

    def read(self, j: int, z: Tensor, *, at_features: bool) -> Tensor:
        """Fast weight j of every token applied to `z`."""
        return torch.matmul(self.made[j], z.unsqueeze(-1)).squeeze(-1)

    def end(self) -> Carried:
        """Weights and momenta after the last token."""
        return self.last


@dataclass(frozen=True)
class LeastSquaresWrite:
    """Sums `targets` (of values and keys) and `squares` (of keys) read as a ridge regression."""

    targets: LinearWrite
    squares: LinearWrite
    ridge: float

    def read(self, j: int, z: Tensor, *, at_features: bool) -> Tensor:
        """Targets on (squares + ridge)^-1 z."""
        made = self.squares.every(0)
        penalty = self.ridge * torch.eye(made.shape[-1], dtype=made.dtype, device=made.device)
        solved = torch.linalg.solve(made + penalty, z.unsqueeze(-1)).squeeze(-1)
        return self.targets.read(0, solved, at_features=False)

    def end(self) -> Carried:
        """The sums; those of squares lie where a momentum would."""
        return Carried(self.targets.end().weights, self.squares.end().weights)


def minimum(targets: Tensor, squares: Tensor, ridge: float) -> Tensor:
    """targets (squares + ridge)^-1, the memory itself."""
    penalty = ridge * torch.eye(squares.shape[-1], dtype=squares.dtype, device=squares.device)
    found: Tensor = torch.linalg.solve(squares + penalty, targets, left=False)
    return found


def least_squares_write(
    w: Folded, values: Tensor, keys: Tensor, carried: Carried, ridge: float
) -> LeastSquaresWrite:
    """Sums of `values` and `keys`; the momenta carried are the sums of squares so far."""
    targets, squares = (
        LinearWrite(w, (-x,), (keys,), (sums[0].unsqueeze(1),))
        for x, sums in ((values, carried.weights), (keys, carried.momenta))
    )
    return LeastSquaresWrite(targets, squares, ridge)


def mapped_write(
    write: LinearWrite | OrthogonalWrite, mapped: Callable[[Tensor], Tensor]
) -> MadeWrite:
    """What is written is an accumulator A, and token n reads mapped(A_n); A itself goes on."""
    made = tuple(mapped(write.every(j)) for j in range(len(write.us)))
    return MadeWrite(made, write.end())


@dataclass(frozen=True)
class ChunkEndWrite:
    """An accumulator A that is mapped at chunk ends only (MIRAS section 5.4).

    Inside a chunk that begins at A_0 the weights are linear: they start from mapped(A_0) and change
    as A does, W_n = A_n + kept_n (mapped(A_0) - A_0). The token that ends a chunk reads mapped(A).
    """

    write: LinearWrite | OrthogonalWrite
    mapped: Callable[[Tensor], Tensor]
    base: Weights
    carried: Carried
    ends: bool

    def read(self, j: int, z: Tensor, *, at_features: bool) -> Tensor:
        """Fast weight j of every token applied to `z`."""
        y = self.write.read(j, z, at_features=at_features)
        start = self.base[j]
        y = y + self._kept(self.write.w.carry) * torch.bmm(z, (self.mapped(start) - start).mT)
        if not self.ends:
            return y
        last = torch.bmm(z[:, -1:], self.mapped(self.write.end().weights[j]).mT)
        return torch.cat([y[:, :-1], last], dim=1)

    def end(self) -> Carried:
        """The accumulator, and what is left of the chunk's start."""
        return replace(self.write.end(), kept=self._kept(self.write.w.end_carry))

    def _kept(self, carry: Tensor) -> Tensor:
        return carry if self.carried.kept is None else self.carried.kept * carry


def inside_chunk(
    mapped: Callable[[Tensor], Tensor], now: Tensor, base: Tensor, kept: Tensor | None
) -> Tensor:
    """Weights of an accumulator `now` in a chunk that began at `base`."""
    if kept is None:
        return mapped(now)
    return now + kept * (mapped(base) - base)


def shrunk_write(
    write: LinearWrite | OrthogonalWrite,
    shrink: Callable[[Tensor, Tensor], Tensor],
    carried: Carried,
    keep: Tensor,
    lr: Tensor,
) -> MadeWrite:
    """W_n = shrink(keep_n W_{n-1} - change_n, lr_n), token by token (`keep` and `lr` are p n).

    `write` forgets everything (its keep is 0), so that what it has at token n is -change_n.
    """
    made = []
    for j, weight in enumerate(carried.weights):
        rows = []
        for share, step, change in zip(
            keep.unbind(1), lr.unbind(1), write.every(j).unbind(1), strict=True
        ):
            kept = share[:, None, None] * weight
            weight = shrink(kept + change, step[:, None, None])
            rows.append(weight)
        made.append(torch.stack(rows, dim=1))
    last = tuple(m[:, -1] for m in made)
    return MadeWrite(tuple(made), Carried(last, write.end().momenta))
