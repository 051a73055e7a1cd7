"""Memories of one model that learn side by side: one layer's rows, each with its own state.

A layer already runs many sequences at once, so lanes are its rows: each row begins with the weights
that its own seed drew, and has its own pairs and step size. Gates are read off an input of zeros:
the constants that they start from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ablate.components.memory import Memory
from ablate.components.memory_layer import MemoryLayer

OWN = ("inner_optimizer.", "retention.", "window.")
"""Parts whose drawn maps see an input of zeros only, so that rows may differ in them."""


class MemoryRows:
    """Memories that see one pair at each position: read it, then write it.

    Args:
        layers: of equal models, each as its row's seed drew it; they must read before they write.
        keys, values: each row's pairs.
        steps: each row's step size at every token; None leaves it to the layer's own gate.
    """

    def __init__(
        self,
        layers: Sequence[MemoryLayer[Any]],
        keys: Float[Tensor, "b t d"],
        values: Float[Tensor, "b t e"],
        *,
        steps: Sequence[float | None],
    ) -> None:
        self._keys, self._values = keys, values
        self._steps = keys.new_tensor([math.nan if step is None else step for step in steps])
        self._at = 0
        groups: dict[bytes, list[int]] = {}
        for row, layer in enumerate(layers):
            groups.setdefault(_shared(layer), []).append(row)
        self._groups = [
            (
                layers[rows[0]],
                torch.tensor(rows),
                _mapped(
                    torch.cat, *(layers[row].initial_state(1, dtype=keys.dtype) for row in rows)
                ),
            )
            for rows in groups.values()
        ]

    @torch.no_grad()
    def advance(self, end: int) -> tuple[Float[Tensor, "b n e"], Float[Tensor, "b n"]]:
        """Go on up to position `end`: what each row said before each write, and its step sizes."""
        here, self._at = slice(self._at, end), end
        said = torch.empty_like(self._values[:, here])
        sizes = self._keys.new_empty(said.shape[:2])
        for place, (layer, rows, state) in enumerate(self._groups):
            said[rows], sizes[rows], state = self._run(layer, rows, state, here)
            self._groups[place] = (layer, rows, state)
        return said, sizes

    def _run(
        self, layer: MemoryLayer[Any], rows: Int[Tensor, " r"], state: Any, here: slice
    ) -> tuple[Tensor, Tensor, Any]:
        """As the layer's `forward`, with the rows' own step sizes."""
        keys, values = (part[rows, here].unsqueeze(2) for part in (self._keys, self._values))
        nothing = keys.new_zeros(*keys.shape[:2], layer.dims.model)
        gates, left = layer.gates(nothing, state)
        step = self._steps[rows, None, None]
        gates = replace(gates, lr=torch.where(step.isnan(), gates.lr, step))
        target = layer.bias.target(values, nothing)
        y, state = layer.run(keys, keys, target, nothing, gates, state)
        return y.squeeze(2), gates.lr.squeeze(2), replace(state, said=left)


def _shared(layer: MemoryLayer[Any]) -> bytes:
    """What rows of one call have in common: all that is neither a gate nor an initial weight."""
    memory: Memory = layer.memory  # type: ignore[assignment]
    # One that goes back to its initial weights takes the call's, so they must be the row's own.
    initial = () if layer.retention.resets else memory.initial()
    apart = {part.data_ptr() for part in initial}
    return b"".join(
        part.detach().cpu().numpy().tobytes()
        for name, part in [*layer.named_parameters(), *layer.named_buffers()]
        if not name.startswith(OWN) and part.data_ptr() not in apart
    )


def _mapped(join: Callable[[tuple[Tensor, ...]], Tensor], *states: Any) -> Any:
    """One state of many, tensor by tensor."""
    first = states[0]
    if isinstance(first, Tensor):
        return join(states)
    if isinstance(first, tuple):
        return tuple(_mapped(join, *parts) for parts in zip(*states, strict=True))
    if is_dataclass(first) and not isinstance(first, type):
        parts = {
            field.name: _mapped(join, *(getattr(state, field.name) for state in states))
            for field in fields(first)
        }
        return replace(first, **parts)
    return first
