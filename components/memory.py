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
from ablate.components.limits import Limit

Weights = tuple[Tensor, ...]
READ_AXES = ("feature_map", "window", "bias", "retention", "inner_optimizer")
NORM_EPS = 1e-6


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
    """Exact GELU and its derivative from one error function and one exponential; the density."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cdf = torch.erf(z * math.sqrt(0.5)).add_(1).mul_(0.5)
        pdf = torch.exp(z.square().mul_(-0.5)).mul_(1 / math.sqrt(2 * math.pi))
        slope = torch.addcmul(cdf, z, pdf)
        return z * cdf, slope, pdf

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, ...]) -> None:
        _, slope, pdf = output
        ctx.mark_non_differentiable(pdf)
        ctx.save_for_backward(*inputs, pdf, slope)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        z, pdf, slope = ctx.saved_tensors
        d_value, d_slope, _ = grads
        return torch.addcmul(d_value * slope, d_slope * pdf, 2 - z.square())


def gelu_and_slope(z: Float[Tensor, "*p n"]) -> tuple[Tensor, Tensor]:
    """GELU (exact, with the error function) and its derivative at `z`."""
    value, slope, _ = _Gelu.apply(z)  # type: ignore[no-untyped-call]
    return value, slope


class Output(nn.Module):
    """What a memory makes of its branch f: f, k + f, LN(f) or k + LN(f), the norm for each head.

    Nothing of it is written by the sequence, so the branch stays what the fast weights made, and
    the gradient goes back through the norm at the memory it was taken at.

    Raises:
        ValueError: a residual between unequal key and value widths.
    """

    def __init__(self, owner: str, dims: Dims, *, residual: bool, norm: bool) -> None:
        super().__init__()
        if residual and dims.key != dims.value:
            raise ValueError(
                f"{owner}.residual=True with key width {dims.key} and value width {dims.value}: "
                "M(k) = k + ... needs equal widths; make them equal or set residual=False"
            )
        self.residual, self.norm = residual, norm
        if norm:
            self.gain = nn.Parameter(torch.empty(dims.heads, dims.value))
            self.offset = nn.Parameter(torch.empty(dims.heads, dims.value))

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Start at the plain norm."""
        if self.norm:
            nn.init.ones_(self.gain)
            nn.init.zeros_(self.offset)

    def forward(self, branch: Float[Tensor, "p n e"], raw: Tensor) -> Float[Tensor, "p n e"]:
        """The output; heads are the faster index of p."""
        y = branch
        if self.norm:
            y = _normed(branch)[0] * self._of_rows(self.gain, y) + self._of_rows(self.offset, y)
        return raw + y if self.residual else y

    def gradient(
        self, branch: Float[Tensor, "p n e"], raw: Tensor, error: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "p n e"]:
        """Gradient of the loss at the branch; `error` is that at the output."""
        u = error(self(branch, raw))
        if not self.norm:
            return u
        y, size = _normed(branch)
        u = u * self._of_rows(self.gain, u)
        along = (u * y).mean(-1, keepdim=True)
        return (u - u.mean(-1, keepdim=True) - y * along) / size

    @staticmethod
    def _of_rows(part: Tensor, like: Tensor) -> Tensor:
        """h e -> p 1 e."""
        return part.to(like.dtype).repeat(like.shape[0] // part.shape[0], 1).unsqueeze(1)


def _normed(x: Tensor) -> tuple[Tensor, Tensor]:
    """Zero mean, unit variance, and the root that it was divided by."""
    centred = x - x.mean(-1, keepdim=True)
    size = (centred.square().mean(-1, keepdim=True) + NORM_EPS).sqrt()
    return centred / size, size


class MatrixMemory(nn.Module):
    """One matrix: M(k) = W phi(k), or with `norm` and `residual` k + LN(W phi(k)) (TTT-Linear).

    Args:
        dims: widths.
        feature_width: width of phi.
        learned_initial: learn the matrix that a sequence starts from; else it starts at zero.
        residual: add the raw key, which must be as wide as the value.
        norm: layer norm of W phi(k), with a learned gain and offset for each head.

    Raises:
        ValueError: a residual between unequal key and value widths.
    """

    axes: ClassVar[tuple[str, ...]] = READ_AXES
    principal: ClassVar[str | None] = None
    source: ClassVar[str] = "Atlas Eq. 11 and Table 6 (linear memory); TTT section 2.7"
    fronts: ClassVar[int] = 1

    def __init__(
        self,
        dims: Dims,
        feature_width: int,
        *,
        learned_initial: bool = True,
        residual: bool = False,
        norm: bool = False,
    ) -> None:
        super().__init__()
        self.shapes = ((dims.value, feature_width),)
        shape = (dims.heads, dims.value, feature_width)
        self.learned_initial = learned_initial
        self.output = Output("MatrixMemory", dims, residual=residual, norm=norm)
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
        """W phi(q), through the output."""
        y: Tensor = self.output(front[0], raw)
        return y

    def gradients(
        self, front: Weights, raw: Tensor, weights: Weights, error: Callable[[Tensor], Tensor]
    ) -> tuple[Weights, Weights]:
        """u = dl/d(W phi(k)); z is phi(k)."""
        return (self.output.gradient(front[0], raw, error),), ()


class MLPMemory(nn.Module):
    """Layers of GELU: M(k) = k + W1 GELU(W2 phi(k)) for two; the fast weights are (W2, W1).

    The residual is on the raw key, because phi(k) has another width; it needs keys as wide as
    values.

    Args:
        dims: widths.
        feature_width: width of phi.
        expansion: hidden width over key width.
        layers: number of matrices; more make k + W1 GELU(W2 GELU(W3 phi(k))) and so on, one makes
            k + W1 phi(k).
        residual: add the raw key.
        norm: layer norm of what is added to it (MIRAS: k + LN(W1 ...)), with a learned gain and
            offset for each head.
        learned_initial: learn the weights that a sequence starts from; else they stay as drawn.

    Raises:
        ValueError: `expansion` < 1, `layers` < 1, or a residual between unequal widths.
    """

    axes: ClassVar[tuple[str, ...]] = READ_AXES
    principal: ClassVar[str | None] = "expansion"
    source: ClassVar[str] = "Atlas Eq. 42 and Appendix E; MIRAS section 5.4 (norm)"
    limits: ClassVar[tuple[Limit, ...]] = (
        Limit(
            "one layer without residual is a matrix",
            {"layers": 1, "residual": False},
            {"memory": "matrix"},
            held={"memory.w": 0.0, "memory.w1": 0.0},
        ),
        Limit(
            "one layer with residual and norm is TTT's matrix",
            {"layers": 1, "norm": True},
            {"memory": "matrix_norm"},
            held={"memory.w": 0.1, "memory.w1": 0.1},
        ),
    )
    fronts: ClassVar[int] = 1
    w1: nn.Parameter
    w2: nn.Parameter

    def __init__(
        self,
        dims: Dims,
        feature_width: int,
        *,
        expansion: int = 4,
        layers: int = 2,
        residual: bool = True,
        norm: bool = False,
        learned_initial: bool = True,
    ) -> None:
        super().__init__()
        hidden = _hidden("MLPMemory", dims, expansion)
        if layers < 1:
            raise ValueError(f"MLPMemory.layers={layers!r}: must be a whole number >= 1")
        self.output = Output("MLPMemory", dims, residual=residual, norm=norm)
        widths = (feature_width, *[hidden] * (layers - 1), dims.value)
        self.shapes = tuple((widths[j + 1], widths[j]) for j in range(layers))
        self.names = tuple(f"w{layers - j}" for j in range(layers))
        for name, shape in zip(self.names, self.shapes, strict=True):
            weight = torch.empty(dims.heads, *shape)
            self.register_parameter(name, nn.Parameter(weight, requires_grad=learned_initial))

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Draw the initial weights: W1 small but not zero, or the others would get no gradient."""
        for name in self.names:
            weight = getattr(self, name)
            fan_in = weight.shape[-1]
            std = 0.5 if name == self.names[0] else math.sqrt(2 / fan_in)
            std = 0.2 / math.sqrt(fan_in) if name == "w1" else std
            nn.init.normal_(weight, std=std, generator=stream(name))

    def initial(self) -> Weights:
        """Weights of an empty memory, from the first map on."""
        return tuple(getattr(self, name) for name in self.names)

    def read(self, front: Weights, raw: Tensor, inner: Callable[[int, Tensor], Tensor]) -> Tensor:
        """W1 GELU(... phi(q)), through the output."""
        y = front[0]
        for j in range(1, len(self.shapes)):
            y = inner(j, F.gelu(y))
        read: Tensor = self.output(y, raw)
        return read

    def gradients(
        self, front: Weights, raw: Tensor, weights: Weights, error: Callable[[Tensor], Tensor]
    ) -> tuple[Weights, Weights]:
        """W1: dl/dy GELU(Z)^T; the one before: (W1^T dl/dy * GELU'(Z)) phi(k)^T; and so on."""
        y, values, slopes = front[0], [], []
        for w in weights[1:]:
            value, slope = gelu_and_slope(y)
            values.append(value)
            slopes.append(slope)
            y = torch.bmm(value, w.mT)
        us = [self.output.gradient(y, raw, error)]
        for w, slope in zip(reversed(weights[1:]), reversed(slopes), strict=True):
            us.append(torch.bmm(us[-1], w) * slope)
        return tuple(reversed(us)), tuple(values)


class GatedMLPMemory(nn.Module):
    """M(k) = k + W1 (GELU(W2 phi(k)) * W3 phi(k)), Atlas++; the fast weights are (W2, W3, W1).

    Args:
        dims: widths.
        feature_width: width of phi.
        expansion: hidden width over key width. Three matrices: two thirds of an MLP's expansion
            make a state of the same size.
        residual: add the raw key, which must be as wide as the value.
        norm: layer norm of what is added to it, with a learned gain and offset for each head.
        learned_initial: learn the weights that a sequence starts from; else they stay as drawn.

    Raises:
        ValueError: `expansion` < 1, or a residual between unequal key and value widths.
    """

    axes: ClassVar[tuple[str, ...]] = READ_AXES
    principal: ClassVar[str | None] = "expansion"
    source: ClassVar[str] = "Atlas Eq. 43"
    fronts: ClassVar[int] = 2

    def __init__(
        self,
        dims: Dims,
        feature_width: int,
        *,
        expansion: int = 4,
        residual: bool = True,
        norm: bool = False,
        learned_initial: bool = True,
    ) -> None:
        super().__init__()
        hidden = _hidden("GatedMLPMemory", dims, expansion)
        self.output = Output("GatedMLPMemory", dims, residual=residual, norm=norm)
        self.shapes = ((hidden, feature_width), (hidden, feature_width), (dims.value, hidden))
        self.w2, self.w3, self.w1 = (
            nn.Parameter(torch.empty(dims.heads, *shape), requires_grad=learned_initial)
            for shape in self.shapes
        )

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Draw the initial weights: W1 small but not zero, or the others would get no gradient."""
        nn.init.normal_(self.w2, std=0.5, generator=stream("w2"))
        nn.init.normal_(self.w3, std=0.5, generator=stream("w3"))
        std = 0.2 / math.sqrt(self.w1.shape[-1])
        nn.init.normal_(self.w1, std=std, generator=stream("w1"))

    def initial(self) -> Weights:
        """Weights of an empty memory."""
        return (self.w2, self.w3, self.w1)

    def read(self, front: Weights, raw: Tensor, inner: Callable[[int, Tensor], Tensor]) -> Tensor:
        """W1 (GELU(W2 phi(q)) * W3 phi(q)), through the output."""
        y: Tensor = self.output(inner(2, F.gelu(front[0]) * front[1]), raw)
        return y

    def gradients(
        self, front: Weights, raw: Tensor, weights: Weights, error: Callable[[Tensor], Tensor]
    ) -> tuple[Weights, Weights]:
        """With d = W1^T dl/dy: W2 gets d * W3 phi * GELU', W3 gets d * GELU."""
        value, slope = gelu_and_slope(front[0])
        hidden = value * front[1]
        u = self.output.gradient(torch.bmm(hidden, weights[2].mT), raw, error)
        d = torch.bmm(u, weights[2])
        return (d * front[1] * slope, d * value, u), (hidden,)


def _hidden(owner: str, dims: Dims, expansion: int) -> int:
    if expansion < 1:
        raise ValueError(f"{owner}.expansion={expansion!r}: must be a whole number >= 1")
    return expansion * dims.key
