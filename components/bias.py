"""Attentional bias: the loss that the memory descends, as the gradient of its output.

MIRAS section 5.1 names the axis; both losses carry the factor 1/2 (or none) so that no closed form
needs a stray 2.
"""

from __future__ import annotations

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.dims import Dims


class L2(nn.Module):
    """Regression: 1/2 |M(k) - v|^2."""

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = None
    source: ClassVar[str] = "Atlas Eq. 9 (with the factor 1/2); Titans Eq. 12"

    def __init__(self, dims: Dims) -> None:
        super().__init__()

    def forward(self, y: Float[Tensor, "*p e"], v: Float[Tensor, "*p e"]) -> Float[Tensor, "*p e"]:
        """Gradient of the loss with respect to the memory's output `y`."""
        return y - v


class Dot(nn.Module):
    """Hebbian: -<M(k), v>. The papers print it without the minus, which would store -v."""

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = None
    source: ClassVar[str] = "Atlas Eq. 19, sign corrected; MIRAS Table 1"

    def __init__(self, dims: Dims) -> None:
        super().__init__()

    def forward(self, y: Float[Tensor, "*p e"], v: Float[Tensor, "*p e"]) -> Float[Tensor, "*p e"]:
        """Gradient of the loss with respect to the memory's output `y`."""
        return -v
