"""What is stored: memories as compositions of fast weights, each with a rank-one token gradient.

A memory is a stack of linear maps whose weights the sequence itself writes. The gradient of one
token's loss with respect to one of them is an outer product u z^T (z what the map read, u the
gradient of what it gave), so the recurrence only needs the pairs (u, z), and a memory only says how
its maps are wired. The first `fronts` maps read the features of the key; the others read what the
maps before them gave.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.dims import Dims

Weights = tuple[Tensor, ...]
READ_AXES = ("feature_map", "window", "bias", "retention", "inner_optimizer")


@runtime_checkable
class Memory(Protocol):
    """What the recurrence asks of a memory. `front` are the outputs of the maps on the features."""

    shapes: tuple[tuple[int, int], ...]
    fronts: int

    def initial(self) -> Weights:
        """Weights of an empty memory, `[h o i]` each."""

    def read(self, front: Weights, raw: Tensor, inner: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Output `[p n e]`; `inner(j, z)` applies the later fast weight j to `z`."""

    def gradients(
        self, front: Weights, raw: Tensor, weights: Weights, error: Callable[[Tensor], Tensor]
    ) -> tuple[Weights, Weights]:
        """All u, and the z of the maps after the fronts, for tokens read at plain `weights`."""


class _Gelu(torch.autograd.Function):
    """Exact GELU and its derivative from one error function and one exponential."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> tuple[Tensor, Tensor]:
        cdf = torch.erf(z * math.sqrt(0.5)).add_(1).mul_(0.5)
        pdf = torch.exp(z.square().mul_(-0.5)).mul_(1 / math.sqrt(2 * math.pi))
        slope = torch.addcmul(cdf, z, pdf)
        ctx.save_for_backward(z, pdf, slope)
        return z * cdf, slope

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        z, pdf, slope = ctx.saved_tensors
        d_value, d_slope = grads
        return torch.addcmul(d_value * slope, d_slope * pdf, 2 - z.square())


def gelu_and_slope(z: Float[Tensor, "*p n"]) -> tuple[Tensor, Tensor]:
    """GELU (exact, with the error function) and its derivative at `z`."""
    pair: tuple[Tensor, Tensor] = _Gelu.apply(z)  # type: ignore[no-untyped-call]
    return pair


class MatrixMemory(nn.Module):
    """One matrix: M(k) = W phi(k).

    Args:
        dims: widths.
        feature_width: width of phi.
        learned_initial: learn the matrix that a sequence starts from; else it starts at zero.
    """

    axes: ClassVar[tuple[str, ...]] = READ_AXES
    principal: ClassVar[str | None] = None
    source: ClassVar[str] = "Atlas Eq. 11 and Table 6 (linear memory)"
    fronts: ClassVar[int] = 1

    def __init__(self, dims: Dims, feature_width: int, *, learned_initial: bool = True) -> None:
        super().__init__()
        self.shapes = ((dims.value, feature_width),)
        shape = (dims.heads, dims.value, feature_width)
        self.learned_initial = learned_initial
        if learned_initial:
            self.w = nn.Parameter(torch.empty(shape))
        else:
            self.register_buffer("w", torch.zeros(shape), persistent=False)

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Draw the initial matrix: small, so that a fresh memory says almost nothing."""
        if self.learned_initial:
            nn.init.normal_(self.w, std=0.02, generator=stream("w"))

    def initial(self) -> Weights:
        """Weights of an empty memory."""
        return (self.w,)

    def read(self, front: Weights, raw: Tensor, inner: Callable[[int, Tensor], Tensor]) -> Tensor:
        """W phi(q)."""
        return front[0]

    def gradients(
        self, front: Weights, raw: Tensor, weights: Weights, error: Callable[[Tensor], Tensor]
    ) -> tuple[Weights, Weights]:
        """u = dl/dy; z is phi(k)."""
        return (error(front[0]),), ()


class MLPMemory(nn.Module):
    """Two layers: M(k) = k + W1 GELU(W2 phi(k)); the fast weights are (W2, W1).

    The residual is on the raw key, because phi(k) has another width; it needs keys as wide as
    values.

    Args:
        dims: widths.
        feature_width: width of phi.
        expansion: hidden width over key width.
        residual: add the raw key.

    Raises:
        ValueError: `expansion` < 1, or a residual between unequal key and value widths.
    """

    axes: ClassVar[tuple[str, ...]] = READ_AXES
    principal: ClassVar[str | None] = "expansion"
    source: ClassVar[str] = "Atlas Eq. 42 and Appendix E"
    fronts: ClassVar[int] = 1

    def __init__(
        self, dims: Dims, feature_width: int, *, expansion: int = 4, residual: bool = True
    ) -> None:
        super().__init__()
        if expansion < 1:
            raise ValueError(f"MLPMemory.expansion={expansion!r}: must be a whole number >= 1")
        if residual and dims.key != dims.value:
            raise ValueError(
                f"MLPMemory.residual=True with key width {dims.key} and value width {dims.value}: "
                "M(k) = k + ... needs equal widths; make them equal or set residual=False"
            )
        hidden = expansion * dims.key
        self.residual = residual
        self.shapes = ((hidden, feature_width), (dims.value, hidden))
        self.w2 = nn.Parameter(torch.empty(dims.heads, hidden, feature_width))
        self.w1 = nn.Parameter(torch.empty(dims.heads, dims.value, hidden))

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Draw the initial weights: W1 small but not zero, or W2 would get no gradient."""
        nn.init.normal_(self.w2, std=0.5, generator=stream("w2"))
        std = 0.2 / math.sqrt(self.w1.shape[-1])
        nn.init.normal_(self.w1, std=std, generator=stream("w1"))

    def initial(self) -> Weights:
        """Weights of an empty memory."""
        return (self.w2, self.w1)

    def read(self, front: Weights, raw: Tensor, inner: Callable[[int, Tensor], Tensor]) -> Tensor:
        """[q +] W1 GELU(W2 phi(q))."""
        y = inner(1, F.gelu(front[0]))
        return raw + y if self.residual else y

    def gradients(
        self, front: Weights, raw: Tensor, weights: Weights, error: Callable[[Tensor], Tensor]
    ) -> tuple[Weights, Weights]:
        """W1: dl/dy GELU(Z)^T; W2: (W1^T dl/dy * GELU'(Z)) phi(k)^T."""
        value, slope = gelu_and_slope(front[0])
        y = torch.bmm(value, weights[1].mT)
        u = error(raw + y if self.residual else y)
        return (torch.bmm(u, weights[1]) * slope, u), (value,)
