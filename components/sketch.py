"""Sketches of polynomial kernels: (q . k)^p by products of random projections, not by monomials.

S(x) of degree 1 is x, of degree 2^m sqrt(1/r) (S'(x) G') * (S''(x) G'') with two sketches of half
the degree and Gaussian G of r columns each, so that E[S(q) . S(k)] = (q . k)^degree. The feature
map is S(x) (x) S(x) of half the degree: its kernel is (S(q) . S(k))^2, never negative, and tends to
(q . k)^p as r grows. r^2 features take the place of C(d + p - 1, p).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.dims import Dims


class PolySketch(nn.Module):
    """Sketched powers of the dot product; an estimate, which is exact for degree 2 and no sketch.

    Args:
        dims: widths.
        degree: p, a power of two from 2 on; 2 lifts x to x (x) x, exactly.
        sketch: r, the numbers that are tensored with themselves (for degree 2 the key itself is).
        learnable: train the projections, which then are no random sketch any more; else they stay
            as drawn, each from a random stream of its own.

    Raises:
        ValueError: a degree that is no power of two, or `sketch` < 1.
    """

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = "sketch"
    source: ClassVar[str] = "Kacham et al. 2024 (PolySketchFormer), Algorithm 1; Atlas Table 1"

    def __init__(
        self, dims: Dims, *, degree: int = 4, sketch: int = 8, learnable: bool = False
    ) -> None:
        super().__init__()
        if degree < 2 or degree & (degree - 1):
            raise ValueError(f"PolySketch.degree={degree!r}: must be 2, 4, 8, ...")
        if sketch < 1:
            raise ValueError(f"PolySketch.sketch={sketch!r}: must be a whole number >= 1")
        self.degree, self.sketch = degree, sketch
        self.width = (dims.key if degree == 2 else sketch) ** 2
        # From the keys up: each level halves the number of sketches and doubles their degree.
        self.depth, count, width = 0, degree // 2, dims.key
        while count > 1:
            level = nn.Parameter(torch.empty(count, width, sketch), requires_grad=learnable)
            self.register_parameter(f"level{self.depth}", level)
            self.depth, count, width = self.depth + 1, count // 2, sketch

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Draw all projections as standard normal numbers."""
        for place, level in enumerate(self.levels):
            nn.init.normal_(level, generator=stream(f"level{place}"))

    @property
    def levels(self) -> list[Tensor]:
        """The projections, from the keys up, each of sketches of one degree."""
        return [self.get_parameter(f"level{place}") for place in range(self.depth)]

    def sketched(self, x: Float[Tensor, "*p d"]) -> Float[Tensor, "*p r"]:
        """S(x) of half the degree."""
        parts = x.unsqueeze(-2)  # sketches of one degree side by side
        for level in self.levels:
            made = (parts.unsqueeze(-2) @ level.to(x.dtype)).squeeze(-2)
            left, right = made.unflatten(-2, (-1, 2)).unbind(-2)
            parts = left * right * self.sketch**-0.5
        return parts.squeeze(-2)

    def forward(self, x: Float[Tensor, "*p d"]) -> Float[Tensor, "*p f"]:
        """S(x) (x) S(x)."""
        half = self.sketched(x)
        return (half.unsqueeze(-1) * half.unsqueeze(-2)).flatten(-2)
