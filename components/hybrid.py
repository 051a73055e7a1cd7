"""Hybrids: how memory and attention share the layers of a model.

Each choice says which layer every block gets. The memory alone (LMM), memory as context, gate or
layer (Titans section 4), or layers that take turns (Samba; the "-H" models of MIRAS). Persistent
tokens are learned, the same for every input, and stand before the sequence (Titans Eq. 19).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import sigmoid, silu

from ablate.components.attention import SoftmaxAttention
from ablate.components.backbone import Backbone, Layer, MixerLayer, ProjectedMixer, RMSNorm
from ablate.components.memory_as_context import MemoryAsContextLayer

# One more memory: the model's own, or what another model (as a plain dict) has.
MakeMixer = Callable[..., nn.Module]
OWN = "memory"


@runtime_checkable
class Hybrid(Protocol):
    """What the builder asks of a hybrid."""

    def layers(self, backbone: Backbone, memory: MakeMixer) -> list[nn.Module]:
        """A mixer or a `Layer` for every block; `memory()` makes one more memory."""


@dataclass(frozen=True)
class MemoryAlone:
    """Every layer is the memory, without attention beside it."""

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = None
    source: ClassVar[str] = "Titans section 4.3, LMM"

    def layers(self, backbone: Backbone, memory: MakeMixer) -> list[nn.Module]:
        """One memory for each block."""
        return [memory() for _ in range(backbone.layers)]


@dataclass(frozen=True)
class _WithWindow:
    """A hybrid with sliding-window attention; not a choice itself.

    Args:
        window: tokens that the attention sees, itself included.
        persistent: learned tokens before the sequence, seen from everywhere.
        rope: rotate the attention's queries and keys by their position.

    Raises:
        ValueError: `window` < 1 or `persistent` < 0.
    """

    window: int = 32
    persistent: int = 4
    rope: bool = True

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = "window"
    source: ClassVar[str] = ""

    def __post_init__(self) -> None:
        _check(self, "window", 1)
        _check(self, "persistent", 0)

    def attention(self, backbone: Backbone) -> SoftmaxAttention:
        """The sliding-window attention of one layer."""
        return SoftmaxAttention(
            backbone.dims, rope=self.rope, window=self.window, prefix=self.persistent
        )

    def behind_tokens(self, backbone: Backbone, layer: Layer) -> Layer:
        """The layer, with the persistent tokens before its sequence if there are any."""
        return PersistentTokens(backbone, layer, self.persistent) if self.persistent else layer


@dataclass(frozen=True)
class MemoryAsGate(_WithWindow):
    """MAG: attention and memory read the same stream, and the memory gates the attention."""

    source: ClassVar[str] = "Titans section 4.2, Eq. 26-28"

    def layers(self, backbone: Backbone, memory: MakeMixer) -> list[nn.Module]:
        """One gated pair for each block."""
        return [
            self.behind_tokens(
                backbone, GatedByMemory(backbone, memory(), self.attention(backbone))
            )
            for _ in range(backbone.layers)
        ]


@dataclass(frozen=True)
class MemoryAsLayer(_WithWindow):
    """MAL: attention reads what the memory gave."""

    source: ClassVar[str] = "Titans section 4.3, Eq. 29-31"

    def layers(self, backbone: Backbone, memory: MakeMixer) -> list[nn.Module]:
        """One stacked pair for each block."""
        return [
            self.behind_tokens(backbone, AfterMemory(backbone, memory(), self.attention(backbone)))
            for _ in range(backbone.layers)
        ]


@dataclass(frozen=True)
class MemoryAsContext:
    """MAC: attention inside segments, over persistent tokens, retrieved ones and the segment.

    Args:
        segment: tokens of a segment.
        persistent: learned tokens that every segment sees; 0 for none.
        rope: rotate the attention's queries and keys by their place in the segment.

    Raises:
        ValueError: `segment` < 1 or `persistent` < 0.
    """

    segment: int = 32
    persistent: int = 4
    rope: bool = True

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = "segment"
    source: ClassVar[str] = "Titans section 4.1, Eq. 21-25; Atlas section 6.3 without tokens"

    def __post_init__(self) -> None:
        _check(self, "segment", 1)
        _check(self, "persistent", 0)

    def layers(self, backbone: Backbone, memory: MakeMixer) -> list[nn.Module]:
        """One MAC layer for each block."""
        return [
            MemoryAsContextLayer(
                backbone,
                memory(),
                segment=self.segment,
                persistent=self.persistent,
                rope=self.rope,
            )
            for _ in range(backbone.layers)
        ]


@dataclass(frozen=True)
class Alternate:
    """Layers take turns: memory, sliding-window attention, memory, ...

    Args:
        window: tokens that the attention sees, itself included.
        period: every so many layers one is attention, the last of the period.
        rope: rotate the attention's queries and keys by their position.
        memories: the layers before the attention, in their order, if they are not all this model's
            memory: "memory" for that one, or the name of another preset, whose memory it takes
            (chunk and all axes; resolved to a plain dict).

    Raises:
        ValueError: `window` < 1, `period` < 2, another number of memories than a period has, or
            (in `layers`) fewer layers than a period.
    """

    window: int = 32
    period: int = 2
    rope: bool = True
    memories: Sequence[str | dict[str, Any]] | None = None

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = "window"
    source: ClassVar[str] = "Ren et al. 2024 (Samba); MIRAS section 5.4 and App. C, the -H models"

    def __post_init__(self) -> None:
        _check(self, "window", 1)
        _check(self, "period", 2)
        if self.memories is not None and len(self.memories) != self.period - 1:
            raise ValueError(
                f"Alternate.memories has {len(self.memories)} entries with period={self.period}: "
                "it must name every layer of a period but the attention at its end"
            )

    def layers(self, backbone: Backbone, memory: MakeMixer) -> list[nn.Module]:
        """A memory or an attention for each block."""
        if backbone.layers < self.period:
            raise ValueError(
                f"hybrid alternate with period={self.period} and backbone.layers="
                f"{backbone.layers}: no layer would be attention; give at least {self.period}"
            )
        turns = self.memories or [OWN] * (self.period - 1)
        made: list[nn.Module] = []
        for index in range(backbone.layers):
            turn = index % self.period
            if turn == self.period - 1:
                made.append(SoftmaxAttention(backbone.dims, rope=self.rope, window=self.window))
            else:
                made.append(memory() if turns[turn] == OWN else memory(turns[turn]))
        return made


def _check(hybrid: object, name: str, least: int) -> None:
    given = getattr(hybrid, name)
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise ValueError(
            f"{type(hybrid).__name__}.{name}={given!r}: must be a whole number >= {least}"
        )


class PairState(NamedTuple):
    """States of the memory's half and of the attention's half of a layer."""

    memory: Any
    attention: Any


class GatedByMemory(Layer):
    """norm(attention(x)) * 2 sigmoid(norm(memory(x))), gated and projected as in every layer.

    Titans leaves the non-linearity open; twice a sigmoid is 1 at a silent memory, so that this
    layer is then sliding-window attention.
    """

    def __init__(self, backbone: Backbone, memory: nn.Module, attention: nn.Module) -> None:
        super().__init__()
        dims = backbone.dims
        width = dims.heads * dims.value
        self.memory = ProjectedMixer(backbone, memory)
        self.attention = ProjectedMixer(backbone, attention)
        self.memory_norm, self.norm = RMSNorm(dims.value), RMSNorm(dims.value)
        self.gate = nn.Linear(dims.model, width, bias=False)
        self.out = nn.Linear(width, dims.model, bias=False)

    def forward(
        self, x: Float[Tensor, "b t m"], state: PairState | None = None
    ) -> tuple[Float[Tensor, "b t m"], PairState]:
        """Mix over time; carrying the state from piece to piece equals one call on the whole."""
        memory, attention = state or PairState(None, None)
        said, memory = self.memory(x, memory)
        read, attention = self.attention(x, attention)
        y = self.norm(read) * (2 * sigmoid(self.memory_norm(said)))
        return self.out(y.flatten(-2) * silu(self.gate(x))), PairState(memory, attention)


class AfterMemory(Layer):
    """memory(x) + attention(norm(x + memory(x))), each a whole layer of its own.

    With a memory that adds nothing this is sliding-window attention.
    """

    def __init__(self, backbone: Backbone, memory: nn.Module, attention: nn.Module) -> None:
        super().__init__()
        self.memory = MixerLayer(backbone, memory)
        self.between = RMSNorm(backbone.dim)
        self.attention = MixerLayer(backbone, attention)

    def forward(
        self, x: Float[Tensor, "b t m"], state: PairState | None = None
    ) -> tuple[Float[Tensor, "b t m"], PairState]:
        """Mix over time; carrying the state from piece to piece equals one call on the whole."""
        memory, attention = state or PairState(None, None)
        said, memory = self.memory(x, memory)
        read, attention = self.attention(self.between(x + said), attention)
        return said + read, PairState(memory, attention)


class PersistentTokens(Layer):
    """A layer whose every sequence begins with the same learned tokens (Titans Eq. 19)."""

    def __init__(self, backbone: Backbone, layer: Layer, count: int) -> None:
        super().__init__()
        self.layer = layer
        self.tokens = nn.Parameter(torch.empty(count, backbone.dim))

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Draw the tokens as large as the normed tokens they stand before."""
        nn.init.normal_(self.tokens, generator=stream("tokens"))

    def forward(
        self, x: Float[Tensor, "b t m"], state: Any = None
    ) -> tuple[Float[Tensor, "b t m"], Any]:
        """The layer; a fresh sequence is one that has read the tokens."""
        if state is None:
            _, state = self.layer(self.tokens.to(x.dtype).expand(x.shape[0], -1, -1), None)
        y: tuple[Tensor, Any] = self.layer(x, state)
        return y
