"""How far a kernel's results are from true ones."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor


def worst(found: Iterable[Tensor], true: Iterable[Tensor]) -> float:
    """The largest distance of a result from the true one in float64, relative to that one's norm.

    NaN is larger than all numbers.
    """
    errors = [
        float((one.double() - other).detach().norm() / other.detach().norm().clamp_min(1e-30))
        for one, other in zip(found, true, strict=True)
    ]
    return max(errors, key=lambda e: (e != e, e))
