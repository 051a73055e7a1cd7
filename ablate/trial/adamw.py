"""PyTorch's AdamW without PyTorch's compiler."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import AdamW, Optimizer


class PlainAdamW(AdamW):
    """`torch.optim.AdamW`, the same bits, for steps that are never traced or differentiated.

    The methods of `torch.optim` are decorated for `torch.compile`: the first call of any imports
    `torch._dynamo`, with sympy, which takes as long as everything else before a trial's first step.
    Here the functions inside the decorators are called.
    """

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, as `torch.optim.Optimizer` does."""
        inspect.unwrap(Optimizer.add_param_group)(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, as `torch.optim.Optimizer` does."""
        inspect.unwrap(Optimizer.zero_grad)(self, set_to_none)

    # The base class also has an overload that returns a closure's loss; nobody gives one.
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; returns what `closure` returns, if given."""
        return inspect.unwrap(AdamW.step)(self, closure)
