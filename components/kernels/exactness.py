"""How far a kernel's results are from true ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
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


def with_gradients(function: Callable[..., Any], given: list[Tensor]) -> list[Tensor]:
    """What a function makes, and the gradients of the sum of its squares."""
    with torch.enable_grad():
        inputs = [x.requires_grad_() for x in given]
        made = function(*inputs)
        outputs = made if isinstance(made, tuple) else (made,)
        total = torch.stack([y.square().sum() for y in outputs]).sum()
        return [y.detach() for y in (*outputs, *torch.autograd.grad(total, inputs))]
