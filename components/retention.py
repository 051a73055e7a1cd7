"""Retention: how much of the memory survives a token, alpha_t in M_t = alpha_t M_{t-1} - ..."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.dims import Dims
from ablate.components.gate import HeadGate


class NoRetention(nn.Module):
    """Keeps everything: alpha = 1."""

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = None
    source: ClassVar[str] = "DeltaNet; MIRAS Table 1 rows without a retention gate"

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.heads = dims.heads

    def forward(self, x: Float[Tensor, "b t m"]) -> Float[Tensor, "b t h"]:
        """The kept share for each token and head: ones."""
        wide = torch.promote_types(x.dtype, torch.float32)
        return torch.ones(*x.shape[:2], self.heads, dtype=wide, device=x.device)


class ScalarRetention(nn.Module):
    """One number in (0, 1) for each token and head: sigmoid(w x + b), b starting at `init`.

    Titans writes 1 - alpha for what Atlas and MIRAS write alpha; this is the kept share.
    """

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = "init"
    source: ClassVar[str] = "Atlas Eq. 10 and 32; Titans Eq. 13"

    def __init__(self, dims: Dims, *, init: float = 4.0) -> None:
        super().__init__()
        self.gate = HeadGate(dims, offset=init)

    def forward(self, x: Float[Tensor, "b t m"]) -> Float[Tensor, "b t h"]:
        """The kept share for each token and head."""
        kept: Tensor = self.gate(x)
        return kept.squeeze(-1)
