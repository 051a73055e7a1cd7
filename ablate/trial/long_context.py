"""Counts of a long context from those of short ones, exactly: they are polynomials of its length.

All that a model computes, writes and keeps grows in its length by whole chunks: linearly for
memories, and as a square for attention. Three counts tell whether it is a line; if not, a fourth
tells whether it is a square; if not, nothing is said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ablate.trial.space import Model

BLOCK = 64
"""Lengths are multiples of this too: forms that work in blocks have blocks of at most so many."""
POINTS = 4
GAIN = 2
"""The context is at least so many times as long as the counted ones together."""


def short_lengths(model: Model, context: int) -> list[int]:
    """Lengths that `context` can be counted from; none if it is better counted itself."""
    hybrid, window = model.get("hybrid") or {}, model.get("window") or {}
    periods = (BLOCK, model.get("chunk") or 1, hybrid.get("segment", 1))
    reaches = (hybrid.get("window", 1), window.get("length", 1))
    if not all(isinstance(value, int) and value > 0 for value in (*periods, *reaches)):
        return []  # the constructors say what is wrong with it
    step = math.lcm(*periods)
    # A window that is longer than the text is cut to it, so the text is longer.
    first = math.ceil(max(reaches) / step) + 1
    lengths = [step * (first + i) for i in range(POINTS)]
    return lengths if context % step == 0 and context >= GAIN * lengths[-1] else []


def extrapolate(
    count: Callable[[int], Sequence[int]], lengths: Sequence[int], context: int
) -> list[int] | None:
    """Whole numbers at `context`, from those at `lengths`; None if they are no squares in it.

    Args:
        count: whole numbers at a length.
        lengths: four, equally far apart.
        context: a multiple of their distance away from them.
    """
    place, rest = divmod(context - lengths[0], lengths[1] - lengths[0])
    if rest:
        return None
    counted = [count(length) for length in lengths[:3]]
    if any(any(_second(row)) for row in zip(*counted, strict=True)):
        counted += [count(length) for length in lengths[3:]]
    found = []
    for row in zip(*counted, strict=True):
        second = _second(row)
        if len(set(second)) != 1:
            return None
        found.append(row[0] + place * (row[1] - row[0]) + place * (place - 1) // 2 * second[0])
    return found


def _second(row: Sequence[int]) -> list[int]:
    """Second differences."""
    return [a - 2 * b + c for a, b, c in zip(row, row[1:], row[2:], strict=False)]
