"""Gated slot attention: a fixed number of slots that are forgotten and filled, read by a softmax.

    K_n = diag(a_n) K_{n-1} + (1 - a_n) k_n^T,   V_n = diag(a_n) V_{n-1} + (1 - a_n) v_n^T
    y_n = V_n^T softmax(s K_n q_n)

(Zhang et al. 2024.) Both are matrices with the Hebbian loss: the first is kept by rows and written
with the values 1 - a_n, the second, transposed, is kept by columns and written with the keys
1 - a_n. So this is two passes of gated linear attention with a softmax between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.bias import Dot
from ablate.components.dims import Dims
from ablate.components.memory import MatrixMemory, Memory
from ablate.components.memory_layer import check_widths, wide_numbers
from ablate.components.recurrence.chunked import run_chunked
from ablate.components.recurrence.coefficients import Gates
from ablate.components.recurrence.rule import Rule
from ablate.components.recurrence.state import MemoryState
from ablate.components.retention import ChannelRetention

CHUNK = 16  # tokens of one matrix product; no result depends on it


class SlotState(NamedTuple):
    """The slots: of keys, slots by key width, and of values, value width by slots."""

    keys: MemoryState
    values: MemoryState


class SlotAttention(nn.Module):
    """Softmax attention over `slots` learned averages of keys and values, forgotten slot by slot.

    Args:
        dims: widths.
        slots: of each head.
        rank: inner width of the map that makes the gates.
        temperature: a = sigmoid(U D x + b)^(1 / temperature).

    Raises:
        ValueError: `slots` or `rank` < 1, or a temperature that is not positive.
    """

    axes: ClassVar[tuple[str, ...]] = ()
    principal: ClassVar[str | None] = "slots"
    source: ClassVar[str] = "Zhang et al. 2024 (gated slot attention), Eq. 8-10"
    is_mixer: ClassVar[bool] = True

    def __init__(
        self, dims: Dims, *, slots: int = 16, rank: int = 16, temperature: float = 8.0
    ) -> None:
        super().__init__()
        if slots < 1:
            raise ValueError(f"SlotAttention.slots={slots!r}: must be a whole number >= 1")
        self.dims, self.slots = dims, slots
        first = Dims(model=dims.model, heads=dims.heads, key=dims.key, value=slots)
        second = Dims(model=dims.model, heads=dims.heads, key=slots, value=dims.value)
        self.forget = ChannelRetention(second, rank=rank, init=0.0, temperature=temperature)
        self.log_scale = nn.Parameter(torch.empty(dims.heads))
        self.rules = (_rule(first, "value"), _rule(second, "key"))

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Start at logits of variance 1 for random keys; nothing is drawn."""
        nn.init.constant_(self.log_scale, 0.5 * math.log(self.dims.key))

    def forward(
        self,
        q: Float[Tensor, "b t h d"],
        k: Float[Tensor, "b t h d"],
        v: Float[Tensor, "b t h e"],
        x: Float[Tensor, "b t m"],
        state: SlotState | None = None,
    ) -> tuple[Float[Tensor, "b t h e"], SlotState]:
        """Forget, fill and read; carrying the state from piece to piece equals one call.

        Raises:
            ValueError: no token, or widths other than `dims`.
        """
        check_widths(self.dims, q, k, v)
        with wide_numbers(q) as wide:
            state = self._fresh(q, wide) if state is None else state
            keep = self.forget(x)
            ones = keep.new_ones(*keep.shape[:3])
            gates = Gates(keep=keep, lr=ones, theta=None, gamma=ones.unsqueeze(-1))
            first, second = self.rules
            near, keys = run_chunked(first, q.to(wide), k.to(wide), 1 - keep, gates, state.keys)
            weights = self._softmax(near)
            fill = (weights, 1 - keep, v.to(wide))
            y, values = run_chunked(second, *fill, gates, state.values)
        return y.to(q.dtype), SlotState(keys, values)

    def frozen(self, state: SlotState | None, rows: int) -> tuple[Tensor, Tensor]:
        """The slots as a read finds them now, for `retrieve`."""
        if state is None:
            state = self._fresh(self.log_scale.new_empty(rows, 0), torch.float32)
        return state.keys.weights[0], state.values.weights[0]

    def retrieve(
        self, q: Float[Tensor, "b t h d"], frozen: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "b t h e"]:
        """Read without a write."""
        with wide_numbers(q) as wide:
            keys, values = (part.to(wide) for part in frozen)
            weights = self._softmax(torch.einsum("bhsd,bthd->bths", keys, q.to(wide)))
            read = torch.einsum("bhes,bths->bthe", values, weights)
        return read.to(q.dtype)

    def _softmax(self, near: Float[Tensor, "b t h s"]) -> Float[Tensor, "b t h s"]:
        return torch.softmax(near * self.log_scale.to(near.dtype).exp()[:, None], dim=-1)

    def _fresh(self, like: Tensor, dtype: torch.dtype) -> SlotState:
        rows, heads = like.shape[0], self.dims.heads

        def blank(*shape: int) -> MemoryState:
            weight = like.new_zeros(rows, heads, *shape, dtype=dtype)
            none = like.new_zeros(rows, 0, heads, shape[1], dtype=dtype)
            return MemoryState(
                (weight,), (weight,), (), none, none[..., :1].expand(-1, -1, -1, shape[0]),
                None, 0, 0,
            )  # fmt: skip

        return SlotState(blank(self.slots, self.dims.key), blank(self.dims.value, self.slots))


def _rule(dims: Dims, side: str) -> Rule:
    """One matrix that sums outer products and decays by channels of one side."""
    memory: Memory = MatrixMemory(dims, dims.key, learned_initial=False)  # type: ignore[assignment]
    return Rule(
        memory=memory,
        features=_same,
        error=Dot(dims),
        chunk=CHUNK,
        window=1,
        momentum=False,
        step_inside=True,
        side=side,
    )


def _same(x: Tensor) -> Tensor:
    return x
