"""Turn whatever a task returns as metrics into floats, or say clearly why that cannot be."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping

import numpy as np
import torch


class MetricError(TypeError):
    """A metric that is no number."""


def to_float(name: str, value: object) -> float | None:
    """One number as a Python float; None stays None (a gap).

    Takes Python and NumPy numbers, and tensors or arrays of one element of any type, bf16 too.

    Raises:
        MetricError: text, a mapping, or more than one element.
    """
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise MetricError(
                f"metric '{name}' has shape {tuple(value.shape)}; it must be a number"
            )
        return float(value.detach().to("cpu", torch.float64))
    if isinstance(value, np.ndarray):
        if value.size != 1:
            raise MetricError(f"metric '{name}' has shape {value.shape}; it must be a number")
        return float(value.reshape(()))
    if isinstance(value, (numbers.Real, np.generic)) and not isinstance(value, (str, bytes)):
        return float(value)
    raise MetricError(f"metric '{name}' is {value!r} ({type(value).__name__}); it must be a number")


def to_floats(metrics: Mapping[str, object]) -> tuple[dict[str, float], list[str]]:
    """All metrics as floats, and the names of those that were None and are left out."""
    converted = {name: to_float(name, value) for name, value in metrics.items()}
    gaps = [name for name, value in converted.items() if value is None]
    return {name: value for name, value in converted.items() if value is not None}, gaps


def non_finite(metrics: Mapping[str, float]) -> list[str]:
    """Names of the metrics that are NaN or infinite."""
    return [name for name, value in metrics.items() if not math.isfinite(value)]
