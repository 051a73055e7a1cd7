"""The frame that every memory layer has in common: checks, number types, gates, reads.

What differs is how a layer stores: weights (`neural_memory`), or pairs of keys and hidden values
when the feature map is known by its kernel alone (`exponential`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Generic, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ablate.components.bias import Bias
from ablate.components.dims import Dims
from ablate.components.inner_optimizer import InnerOptimizer
from ablate.components.recurrence.coefficients import Gates
from ablate.components.recurrence.kernel import KernelState
from ablate.components.recurrence.state import MemoryState
from ablate.components.retention import Retention

READS = ("after", "before")
State = TypeVar("State", MemoryState, KernelState)


@runtime_checkable
class Window(Protocol):
    """What a layer asks of a window."""

    length: int
    truncated: bool
    said_width: int | None

    def __call__(self, x: Tensor, said: Tensor | None) -> Tensor:
        """Weights `[b t h c]` of the last c tokens."""

    def said(self, x: Tensor) -> Tensor | None:
        """What tokens leave for the windows of later ones, `[b t h r]`."""


class MemoryLayer(nn.Module, Generic[State]):
    """A sequence mixer whose state is a memory that learns while it reads; not a layer itself.

    One function trains, prefills and decodes: calling it on pieces of any length and carrying the
    state equals one call on the whole.

    Raises:
        ValueError: an unknown `read`.
    """

    dims: Dims
    chunk: int | None
    backend: str = "torch"  # see `ablate.components.kernels.backend`
    window: nn.Module
    bias: Bias
    retention: Retention
    inner_optimizer: InnerOptimizer

    def __init__(self, dims: Dims, read: str) -> None:
        super().__init__()
        if read not in READS:
            raise ValueError(f"read={read!r}: must be one of {', '.join(READS)}")
        self.dims, self.read = dims, read

    @abstractmethod
    def initial_state(self, rows: int, *, dtype: torch.dtype = torch.float32) -> State:
        """State of `rows` fresh sequences."""

    @abstractmethod
    def run(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, gates: Gates, state: State
    ) -> tuple[Tensor, State]:
        """Read and write, all in float32 at least; `v` is what the bias compares with."""

    def seen(self) -> int:
        """Tokens of a window, cut at chunks if it is."""
        window: Window = self.window  # type: ignore[assignment]
        if window.truncated and self.chunk is not None:
            return min(window.length, self.chunk)
        return window.length

    def forward(
        self,
        q: Float[Tensor, "b t h d"],
        k: Float[Tensor, "b t h d"],
        v: Float[Tensor, "b t h e"],
        x: Float[Tensor, "b t m"],
        state: State | None = None,
    ) -> tuple[Float[Tensor, "b t h e"], State]:
        """Mix queries, keys and values; `x` makes the gates; `state=None` is a fresh sequence.

        Everything inside runs in float32 at least, whatever the inputs; the output has their dtype.

        Raises:
            ValueError: no token, or widths other than `dims`.
        """
        check_widths(self.dims, q, k, v)
        with wide_numbers(q) as wide:
            if state is None:
                state = self.initial_state(q.shape[0], dtype=wide)
            gates, said = self.gates(x, state)
            v = self.bias.target(v.to(wide), x)
            y, state = self.run(q.to(wide), k.to(wide), v, x, gates, state)
        return y.to(q.dtype), replace(state, said=said)

    def gates(self, x: Float[Tensor, "b t m"], state: State) -> tuple[Gates, Tensor | None]:
        """Everything that the block input decides, and what it leaves for later windows."""
        window: Window = self.window  # type: ignore[assignment]
        size, decay = self.inner_optimizer(x)
        said = window.said(x)
        if said is not None and state.said is not None:
            said = torch.cat([state.said, said], dim=1)
        gamma = window(x, said)[..., : self.seen()]
        keep, gamma = self.inner_optimizer.spread(self.retention(x), gamma)
        gates = Gates(keep=keep, lr=size, theta=decay, gamma=gamma)
        return gates, None if said is None else said[:, said.shape[1] - window.length + 1 :]


@contextmanager
def wide_numbers(like: Tensor) -> Iterator[torch.dtype]:
    """Without autocast; the type to compute in is float32 at least."""
    # Autocast knows no meta device, where models are only counted.
    with torch.autocast("cpu" if like.is_meta else like.device.type, enabled=False):
        yield torch.promote_types(like.dtype, torch.float32)


def check_widths(dims: Dims, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse queries, keys and values of other widths.

    Raises:
        ValueError: which, its shape, and the shape it must have.
    """
    key, value = (dims.heads, dims.key), (dims.heads, dims.value)
    for name, given, want in (("q", q, key), ("k", k, key), ("v", v, value)):
        if given.ndim != 4 or tuple(given.shape[2:]) != want or given.shape[1] < 1:
            raise ValueError(
                f"{name} has shape {tuple(given.shape)}: must be (batch, time >= 1, "
                f"heads {want[0]}, width {want[1]})"
            )
