"""Reads by queries that are not lifted: features are made where a product needs them.

With phi(q) . phi(k) = sum_i a_i (q . k)^i what a token sees of the sources needs no features, so of
a linear write only the shares of the states do: the kernel `read_polynomial` makes those inside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.components.kernels.backend import kernel
from ablate.components.recurrence.writes import Carried, LinearWrite

Form = Callable[[Tensor, Tensor, Tensor], Tensor]
"""W phi(x) from x (p n d), W (p o f) and the roots of each row (p r)."""


@runtime_checkable
class Lift(Protocol):
    """A feature map with the kernel sum_i a_i (x . y)^i of degree 2, with or without degree 0."""

    def projected(self, x: Tensor) -> Tensor:
        """What is lifted of the last dimension of `x`."""

    def roots(self, dtype: torch.dtype) -> Tensor:
        """sqrt(a_i), from the lowest degree up."""


def form_of(lift: Lift | None, backend: str, like: Float[Tensor, "p o f"]) -> Form | None:
    """What reads memories such as `like` by queries that are not lifted; None where nothing does.

    In torch nothing does: powers of scores gain little there (docs/performance.md).
    """
    return None if lift is None else kernel("read_polynomial", backend, like)


@dataclass(frozen=True)
class UnliftedWrite:
    """A linear write whose first maps are read by what is lifted of queries, p n d.

    form: the kernel. roots: for each row. seen: read[n, s] phi(q_n) . phi(k_s), p n s.
    """

    write: LinearWrite
    form: Form
    roots: Float[Tensor, "p r"]
    seen: Float[Tensor, "p n s"]

    @classmethod
    def of(
        cls,
        write: LinearWrite,
        form: Form,
        lift: Lift,
        queries: Float[Tensor, "p n d"],
        raw_keys: Float[Tensor, "p s _k"],
    ) -> UnliftedWrite:
        """With the scores of all queries; `raw_keys` are those of the sources."""
        roots = lift.roots(queries.dtype).expand(queries.shape[0], -1)
        return cls(
            write, form, roots, write.w.read * _scores(queries, lift.projected(raw_keys), roots)
        )

    def read(self, j: int, z: Tensor, *, at_features: bool) -> Tensor:
        """As of the write that it holds."""
        if not at_features:
            return self.write.read(j, z, at_features=False)
        state = self.write.states[j]
        of_states = self.apply(z, state.flatten(1, 2)).unflatten(-1, state.shape[1:3])
        kept = (self.write.w.share.unsqueeze(-1) * of_states).sum(2)
        return torch.baddbmm(kept, self.seen, self.write.us[j], alpha=-1)

    def apply(self, z: Tensor, weight: Float[Tensor, "p o f"]) -> Tensor:
        """W phi(z)."""
        return self.form(z, weight, self.roots)

    def end(self) -> Carried:
        """As of the write that it holds."""
        return self.write.end()


def _scores(x: Tensor, keys: Tensor, roots: Tensor) -> Tensor:
    """sum_i a_i (x . k)^i."""
    *constant, linear, square = roots.square()[..., None, None].unbind(1)
    inner = torch.bmm(x, keys.mT)
    scores = inner * torch.addcmul(linear, square, inner)
    return scores + constant[0] if constant else scores
