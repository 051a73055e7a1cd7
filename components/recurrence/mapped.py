"""Reads of memories that are no sum of outer products: made, one set of weights for each token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ablate.components.memory import Weights
from ablate.components.recurrence.writes import Carried, LinearWrite, OrthogonalWrite


@dataclass(frozen=True)
class MadeWrite:
    """Token n reads `made[j][n]` (p n o i); `last` is what goes on."""

    made: Weights
    last: Carried

    def read(self, j: int, z: Tensor, plain: Tensor, *, at_features: bool) -> Tensor:
        """Fast weight j of every token applied to `z`."""
        return torch.matmul(self.made[j], z.unsqueeze(-1)).squeeze(-1)

    def end(self) -> Carried:
        """Weights and momenta after the last token."""
        return self.last


def mapped_write(
    write: LinearWrite | OrthogonalWrite, mapped: Callable[[Tensor], Tensor]
) -> MadeWrite:
    """What is written is an accumulator A, and token n reads mapped(A_n); A itself goes on."""
    made = tuple(mapped(write.every(j)) for j in range(len(write.us)))
    return MadeWrite(made, write.end())


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
