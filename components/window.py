"""Omega window: which of the last c tokens each token optimises over, and how much of each.

Atlas Eq. 8-9: at token t the memory descends sum_{i=t-c+1..t} gamma_i^(t) loss(M; k_i, v_i).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.dims import Dims
from ablate.components.gate import HeadGate

GATES = ("reader", "none")


class OmegaWindow(nn.Module):
    """The last `length` tokens, each weighted by a gate that the reading token makes.

    Args:
        dims: widths; gates are per head.
        length: c, the number of tokens in the window, itself included; 1 is the online rule.
        gates: "reader": sigmoid(W x_t)_j weights token t-j; "none": every weight is 1.
        normalised: divide the weights by c, so that a longer window is not a larger step.

    Raises:
        ValueError: `length` < 1, or `gates` is no known name.
    """

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = "length"
    source: ClassVar[str] = "Atlas Eq. 8-9; the gate's producer is not given there"

    def __init__(
        self, dims: Dims, *, length: int = 1, gates: str = "reader", normalised: bool = False
    ) -> None:
        super().__init__()
        if length < 1:
            raise ValueError(f"OmegaWindow.length={length!r}: must be >= 1 (1 is the online rule)")
        if gates not in GATES:
            raise ValueError(f"OmegaWindow.gates={gates!r}: must be one of {', '.join(GATES)}")
        self.length, self.heads = length, dims.heads
        self.scale = 1.0 / length if normalised else 1.0
        self.gate = HeadGate(dims, count=length, offset=1.0) if gates == "reader" else None

    def forward(self, x: Float[Tensor, "b t m"]) -> Float[Tensor, "b t h c"]:
        """gamma[t, j], the weight of token t-j in the window of token t."""
        if self.gate is not None:
            gamma: Tensor = self.gate(x)
            return gamma * self.scale
        wide = torch.promote_types(x.dtype, torch.float32)
        shape = (*x.shape[:2], self.heads, self.length)
        return torch.full(shape, self.scale, dtype=wide, device=x.device)
