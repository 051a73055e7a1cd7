"""Memory as context (MAC): attention inside a segment reads what the memory says about it.

For a segment S of the stream (Titans Eq. 21-25; M with a star is a read without a write):

    h = M*(S W_Q), with the memory before the segment
    y = attention of S over [persistent tokens, h, S]
    M <- M(y): the memory writes the attention's output;  o = y gated by M*(y)

The papers print whole segments. Taken literally, a token would see retrievals for later tokens of
its segment and a memory that has written them. Here token j sees h_1..h_j, S_1..S_j, and the memory
after y_j: the same at a segment's last token, and causal at every other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import sigmoid, silu

from ablate.components.attention import SoftmaxAttention, causal_mask, read_with_prefix
from ablate.components.backbone import Backbone, BlockState, Layer, ProjectedMixer, RMSNorm, unit
from ablate.components.recurrence.state import cut


@runtime_checkable
class Retrievable(Protocol):
    """What MAC asks of a memory beside being a mixer."""

    def frozen(self, state: Any, rows: int) -> Any:
        """The memory as a read finds it now."""

    def retrieve(self, q: Tensor, frozen: Any) -> Tensor:
        """Read a frozen memory."""


class ContextState(NamedTuple):
    """What MAC carries: the memory, and the open segment.

    memory: the memory's own state. fixed: the memory before the open segment. tail: of the
    attention's convolution. keys, values: of the open segment, retrieved ones first. position:
    tokens already in the open segment.
    """

    memory: BlockState | None
    fixed: Any
    tail: Float[Tensor, "b w c"] | None
    keys: Float[Tensor, "b two h s d"]
    values: Float[Tensor, "b two h s e"]
    position: int


class MemoryAsContextLayer(Layer):
    """One MAC layer; persistent tokens belong to the attention, the memory does not write them.

    Args:
        backbone: widths.
        memory: a mixer with `frozen` and `retrieve`.
        segment: tokens that attend to each other.
        persistent: number of persistent tokens, 0 for none (Atlas section 6.3, BABILong).
        rope: rotate queries and keys by their place in the segment.

    Raises:
        ValueError: a memory that cannot be read without a write.
    """

    def __init__(
        self, backbone: Backbone, memory: nn.Module, *, segment: int, persistent: int, rope: bool
    ) -> None:
        super().__init__()
        if not hasattr(memory, "retrieve"):
            raise ValueError(
                f"hybrid mac with {type(memory).__name__}: mac reads the memory without a write, "
                "which this one cannot do; choose another memory, or mag, mal or alternate"
            )
        dims = backbone.dims
        width = dims.heads * dims.value
        self.segment, self.dims = segment, dims
        self.memory = ProjectedMixer(backbone, memory)
        self.attention = ProjectedMixer(backbone, SoftmaxAttention(dims, rope=rope))
        self.query = nn.Linear(dims.model, dims.heads * dims.key, bias=False)
        self.recall = nn.Linear(width, dims.model, bias=False)
        self.write = nn.Linear(width, dims.model, bias=False)
        self.retrieved_norm, self.attention_norm, self.memory_norm = (
            RMSNorm(dims.value) for _ in range(3)
        )
        self.gate = nn.Linear(dims.model, width, bias=False)
        self.out = nn.Linear(width, dims.model, bias=False)
        self.tokens = nn.Parameter(torch.empty(persistent, dims.model)) if persistent else None

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Draw the persistent tokens as large as the normed tokens they stand beside."""
        if self.tokens is not None:
            nn.init.normal_(self.tokens, generator=stream("tokens"))

    def forward(
        self, x: Float[Tensor, "b t m"], state: ContextState | None = None
    ) -> tuple[Float[Tensor, "b t m"], ContextState]:
        """Mix over time; carrying the state from piece to piece equals one call on the whole."""
        state = self._fresh(x) if state is None else state
        q, k, v, tail = self.attention.project(x, state.tail)
        retrieval = unit(silu(self.query(x)).unflatten(-1, (self.dims.heads, -1)))
        prefix = self._prefix(x)
        outputs = []
        for piece in cut(x.shape[1], self.segment, state.position):
            for start in range(piece.start, piece.start + piece.count * piece.length, piece.length):
                tokens = [part[:, start : start + piece.length] for part in (q, k, v, retrieval)]
                y, state = self._stretch(tokens, prefix, state)
                outputs.append(y)
        y = torch.cat(outputs, dim=1).flatten(-2)
        return self.out(y * silu(self.gate(x))), state._replace(tail=tail)

    def _stretch(
        self, tokens: list[Tensor], prefix: tuple[Tensor, Tensor] | None, state: ContextState
    ) -> tuple[Tensor, ContextState]:
        """Tokens of one segment, from `state.position` on."""
        q, k, v, retrieval = tokens
        if state.position == 0:
            fixed = self._mixer.frozen(state.memory and state.memory.mixer, q.shape[0])
            state = state._replace(
                fixed=fixed, keys=state.keys[..., :0, :], values=state.values[..., :0, :]
            )
        recalled = self.retrieved_norm(self._mixer.retrieve(retrieval, state.fixed)).flatten(-2)
        recalled_k, recalled_v = self._alone(self.recall(recalled))
        attention = cast(SoftmaxAttention, self.attention.mixer)
        turned = [attention.turned(part, state.position) for part in (recalled_k, k)]
        keys = torch.cat((state.keys, torch.stack(turned, 1).transpose(2, 3)), dim=3)
        values = torch.stack((recalled_v, v), 1).transpose(2, 3)
        values = torch.cat((state.values, values), dim=3)
        read = self.attention_norm(self._attend(attention, q, keys, values, prefix, state.position))
        said, memory = self.memory(self.write(read.flatten(-2)), state.memory)
        # Twice a sigmoid, so that a silent memory leaves the attention as it is.
        y = read * (2 * sigmoid(self.memory_norm(said)))
        position = (state.position + q.shape[1]) % self.segment
        return y, state._replace(memory=memory, keys=keys, values=values, position=position)

    def _attend(
        self,
        attention: SoftmaxAttention,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        prefix: tuple[Tensor, Tensor] | None,
        position: int,
    ) -> Tensor:
        """Attention of q over [persistent tokens, retrieved tokens, tokens]."""
        plain = attention.scaled(q)
        turned = attention.turned(plain, position)
        seen = causal_mask(q.shape[1], keys.shape[3], None, q.device).repeat(1, 2)
        keys, values = (part.transpose(1, 2).flatten(2, 3) for part in (keys, values))
        first = 0
        if prefix is not None:
            keys, values = (
                torch.cat(pair, dim=2) for pair in zip(prefix, (keys, values), strict=True)
            )
            first = prefix[0].shape[2]
            seen = torch.cat((seen.new_ones(q.shape[1], first), seen), dim=1)
        plain, turned = plain.transpose(1, 2), turned.transpose(1, 2)
        return read_with_prefix(plain, turned, keys, values, seen, first).transpose(1, 2)

    def _alone(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of tokens that have no neighbours: each is a sequence of its own."""
        _, k, v, _ = self.attention.project(x.reshape(-1, 1, x.shape[-1]), None)
        return tuple(part.reshape(*x.shape[:2], *part.shape[2:]) for part in (k, v))  # type: ignore[return-value]

    def _prefix(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Keys and values of the persistent tokens, b h n d; without a place in the segment."""
        if self.tokens is None:
            return None
        parts = self._alone(self.tokens.to(x.dtype)[None])
        return tuple(p.transpose(1, 2).expand(x.shape[0], -1, -1, -1) for p in parts)  # type: ignore[return-value]

    def _fresh(self, x: Tensor) -> ContextState:
        shape = (x.shape[0], 2, self.dims.heads, 0)
        blank = x.new_zeros(*shape, self.dims.key), x.new_zeros(*shape, self.dims.value)
        return ContextState(None, (), None, *blank, 0)

    @property
    def _mixer(self) -> Retrievable:
        return cast(Retrievable, self.memory.mixer)
