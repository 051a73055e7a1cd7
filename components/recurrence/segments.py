"""Which states are kept for the backward pass: all, or every so many, and the others made again."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from ablate.components.memory import Weights
from ablate.components.recurrence.state import Piece

KEPT = 256 * 2**20  # bytes of states that a layer's call keeps without being told


def kept_every(span: int | None, count: int, states: Weights) -> int | None:
    """Chunks between kept states, None for all: as given, or the root of `count` if too many.

    Making a segment again costs a second forward pass, so states that fit are all kept. Without
    gradients nothing is kept anyway, and `torch.func` knows no such segments.
    """
    if not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        return None
    if span is None and count * sum(x.numel() * x.element_size() for x in states) <= KEPT:
        return None
    span = math.ceil(math.sqrt(count)) if span is None else span
    return span if span < count else None


def segments(pieces: list[Piece], span: int | None) -> list[Piece]:
    """The pieces again, of `span` stretches at most."""
    if span is None:
        return pieces
    return [
        Piece(p.start + g * p.length, min(span, p.count - g), p.length, p.position)
        for p in pieces
        for g in range(0, p.count, span)
    ]


def again_in_backward(span: int | None, run: Callable[..., Any], *given: Any) -> Any:
    """`run` on what is given; with a span, what it makes on the way is made again when needed."""
    if span is None:
        return run(*given)
    return checkpoint(run, *given, use_reentrant=False, preserve_rng_state=False)
