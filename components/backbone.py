"""The block around a memory: Llama's, with attention replaced (MIRAS section 5.4; Atlas App. E).

    q, k, v = SiLU(conv4(W x));  q, k on the unit sphere;  y = mixer(q, k, v, x)
    x <- x + W_o (RMSNorm(y) * SiLU(W_g x));  x <- x + SwiGLU(x);  x is RMS-normed before each

Every mixer sits in the same block, so that two cells of a study differ in the mixer alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu

from ablate.components.dims import Dims

NORM_EPS = 1e-6


@dataclass(frozen=True)
class Backbone:
    """Widths and depth of the stack that carries the mixers.

    Args:
        dim: model width.
        layers: number of blocks.
        heads: mixer heads.
        head_dim: key and value width of a head; None means dim / heads.
        conv_width: taps of the causal convolution on q, k and v; 1 looks at no other token.
        mlp_ratio: hidden width of the SwiGLU MLP over `dim`, rounded to a multiple of 8.
        embedding_std: standard deviation of the embeddings at the start; None means
            1 / sqrt(dim). Small ones (0.02) let the layers outweigh a token's own vector early,
            which recall tasks want and language less so.

    Raises:
        ValueError: a width below 1, heads that do not divide dim, or `mlp_ratio` or
            `embedding_std` not above 0.
    """

    dim: int = 64
    layers: int = 2
    heads: int = 4
    head_dim: int | None = None
    conv_width: int = 4
    mlp_ratio: float = 8 / 3
    embedding_std: float | None = None

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = None
    source: ClassVar[str] = "MIRAS section 5.4; Atlas section 5.1 and App. E (Llama macro-design)"
    reconstructs: ClassVar[bool] = False
    """Whether the whole row is said from its last position, not each next token from its own."""

    def __post_init__(self) -> None:
        for name in ("dim", "layers", "heads", "head_dim", "conv_width"):
            given = getattr(self, name)
            if name == "head_dim" and given is None:
                continue
            if not isinstance(given, int) or isinstance(given, bool) or given < 1:
                raise ValueError(f"backbone.{name}={given!r}: must be a whole number >= 1")
        if not self.mlp_ratio > 0:
            raise ValueError(f"backbone.mlp_ratio={self.mlp_ratio!r}: must be above 0")
        if self.embedding_std is not None and not self.embedding_std > 0:
            raise ValueError(
                f"backbone.embedding_std={self.embedding_std!r}: must be above 0, or None for "
                "1 / sqrt(dim)"
            )
        if self.head_dim is None and self.dim % self.heads:
            raise ValueError(
                f"backbone.heads={self.heads} does not divide backbone.dim={self.dim}: "
                "change one, or give backbone.head_dim"
            )

    @property
    def dims(self) -> Dims:
        """The widths that a mixer is built from."""
        width = self.head_dim or self.dim // self.heads
        return Dims(model=self.dim, heads=self.heads, key=width, value=width)

    def ends(self, vocab: int) -> tuple[nn.Module, nn.Module]:
        """What is behind the blocks: a norm, and from there to logits."""
        return RMSNorm(self.dim), nn.Linear(self.dim, vocab, bias=False)

    @property
    def hidden(self) -> int:
        """Hidden width of the MLP: mlp_ratio * dim to the nearest multiple of 8, at least 8."""
        return max(8, 8 * round(self.mlp_ratio * self.dim / 8))


class BlockState(NamedTuple):
    """What one block carries: its convolution's last conv_width - 1 inputs; its mixer's state."""

    tail: Float[Tensor, "b w c"]
    mixer: Any


class RMSNorm(nn.Module):
    """Divide by the root mean square over the last dimension, then scale (Zhang, Sennrich 2019)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Start at scale 1; nothing is drawn."""
        nn.init.ones_(self.weight)

    def forward(self, x: Float[Tensor, "... m"]) -> Float[Tensor, "... m"]:
        """Normalise; in float32 at least, returned in the type of `x`."""
        precise = torch.promote_types(x.dtype, torch.float32)
        weight = self.weight.to(precise)
        return rms_norm(x.to(precise), weight.shape, weight, NORM_EPS).to(x.dtype)


class SwiGLU(nn.Module):
    """Gated MLP: W_down (SiLU(W_gate x) * W_up x), without biases (Shazeer 2020)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Float[Tensor, "b t m"]) -> Float[Tensor, "b t m"]:
        """Apply to each token alone."""
        y: Tensor = self.down(silu(self.gate(x)) * self.up(x))
        return y


class Layer(nn.Module):
    """What a block adds to its stream: from `[b t m]` and a state to `[b t m]` and a state.

    A mixer, unlike a layer, gets queries, keys and values; `MixerLayer` makes a layer of it.
    """


class ProjectedMixer(nn.Module):
    """Project to queries, keys and values, and let the mixer read and write.

    A mixer that does not use all three says so, `uses = ("v",)`: no projection is made for the
    others, and it gets zeros in their place.
    """

    def __init__(self, backbone: Backbone, mixer: nn.Module) -> None:
        super().__init__()
        dims = backbone.dims
        self.dims = dims
        full = [dims.heads * width for width in (dims.key, dims.key, dims.value)]
        used = getattr(mixer, "uses", ("q", "k", "v"))
        self.widths = [
            width if name in used else 0 for name, width in zip("qkv", full, strict=True)
        ]
        channels = sum(self.widths)
        self.qkv = nn.Linear(dims.model, channels, bias=False)
        self.conv = nn.Conv1d(channels, channels, backbone.conv_width, groups=channels, bias=False)
        self.mixer = mixer

    def project(
        self, x: Float[Tensor, "b t m"], tail: Float[Tensor, "b w c"] | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries and keys of length 1, values, and the convolution's tail."""
        mixed, tail = causal_conv(self.qkv(x), self.conv.weight[:, 0], tail)
        parts = torch.split(silu(mixed), self.widths, dim=-1)
        widths = (self.dims.key, self.dims.key, self.dims.value)
        q, k, v = (self._by_head(*pair) for pair in zip(parts, widths, strict=True))
        return unit(q), unit(k), v, tail

    def _by_head(self, part: Tensor, width: int) -> Tensor:
        shape = (*part.shape[:2], self.dims.heads, width)
        return part.reshape(shape) if part.shape[-1] else part.new_zeros(shape)

    def forward(
        self, x: Float[Tensor, "b t m"], state: BlockState | None = None
    ) -> tuple[Float[Tensor, "b t h e"], BlockState]:
        """What the mixer says; carrying the state from piece to piece equals one call."""
        q, k, v, tail = self.project(x, None if state is None else state.tail)
        y, inner = self.mixer(q, k, v, x, None if state is None else state.mixer)
        return y, BlockState(tail, inner)


class MixerLayer(ProjectedMixer, Layer):
    """A projected mixer whose output is normalised, gated by the input and projected back."""

    def __init__(self, backbone: Backbone, mixer: nn.Module) -> None:
        super().__init__(backbone, mixer)
        width = self.dims.heads * self.dims.value
        self.norm = RMSNorm(self.dims.value)
        self.gate = nn.Linear(self.dims.model, width, bias=False)
        self.out = nn.Linear(width, self.dims.model, bias=False)

    def forward(
        self, x: Float[Tensor, "b t m"], state: BlockState | None = None
    ) -> tuple[Float[Tensor, "b t m"], BlockState]:
        """Mix over time; carrying the state from piece to piece equals one call on the whole."""
        y, state = super().forward(x, state)
        return self.out(self.norm(y).flatten(-2) * silu(self.gate(x))), state


class Block(nn.Module):
    """One pre-norm residual block: a layer (a bare mixer becomes one), then a SwiGLU MLP."""

    def __init__(self, backbone: Backbone, mixer: nn.Module) -> None:
        super().__init__()
        self.mix_norm = RMSNorm(backbone.dim)
        self.mix = mixer if isinstance(mixer, Layer) else MixerLayer(backbone, mixer)
        self.mlp_norm = RMSNorm(backbone.dim)
        self.mlp = SwiGLU(backbone.dim, backbone.hidden)

    def forward(
        self, x: Float[Tensor, "b t m"], state: Any = None
    ) -> tuple[Float[Tensor, "b t m"], Any]:
        """Add both layers to the stream."""
        y, state = self.mix(self.mix_norm(x), state)
        x = x + y
        return x + self.mlp(self.mlp_norm(x)), state


def causal_conv(
    x: Float[Tensor, "b t c"],
    weight: Float[Tensor, "c w"],
    tail: Float[Tensor, "b w1 c"] | None = None,
) -> tuple[Float[Tensor, "b t c"], Float[Tensor, "b w1 c"]]:
    """Convolve each channel with its own w taps over this token and the w - 1 before it.

    Args:
        x: this piece of the sequence.
        weight: taps, oldest first.
        tail: the w - 1 inputs before this piece; None means zeros (a fresh sequence).

    Returns:
        The outputs, and the tail for the next piece.
    """
    width, t = weight.shape[1], x.shape[1]
    if tail is None:
        tail = x.new_zeros(x.shape[0], width - 1, x.shape[2])
    padded = torch.cat((tail, x), dim=1)
    # A sum of shifted products keeps b t c as it lies; conv1d would copy it twice (slower on CPU).
    y = padded[:, :t] * weight[:, 0]
    for tap in range(1, width):
        y = torch.addcmul(y, padded[:, tap : tap + t], weight[:, tap])
    return y, padded[:, t:]


def unit(x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
    """Scale to length 1; the zero vector stays zero, and its gradient stays finite."""
    precise = x.to(torch.promote_types(x.dtype, torch.float32))
    length = precise.square().sum(dim=-1, keepdim=True)
    return (precise * torch.rsqrt(length + NORM_EPS)).to(x.dtype)
