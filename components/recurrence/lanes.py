"""Lanes of `torch.func.vmap` as more rows, for functions whose derivatives are written out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

Function = TypeVar("Function", bound=type[torch.autograd.Function])


class Slopes(torch.autograd.Function):
    """The gradient of a function; a function too, so that lanes are rows here as well."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing is kept: there is no further gradient."""


def by_rows(given: tuple[int, ...], made: tuple[int, ...] | int) -> Callable[[Function], Function]:
    """Let lanes be more rows, which lie at `given` in inputs and at `made` in one or more results.

    It also spares `apply` from reading the signature of `forward` at every call, as PyTorch does.
    """

    def ruled(function: Function) -> Function:
        known: Any = function

        def rule(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
            results = known.apply(*as_rows(info, in_dims, inputs, given))
            if isinstance(made, tuple):
                return as_lanes(info, results, made)
            (y,), (at,) = as_lanes(info, (results,), (made,))
            return y, at

        known.vmap = staticmethod(rule)
        known.forward.__signature__ = inspect.signature(known.forward)
        return function

    return ruled


def as_rows(
    info: Any, in_dims: tuple[Any, ...], inputs: tuple[Any, ...], rows: tuple[int, ...]
) -> list[Any]:
    """Every tensor with its lanes before dimension `rows` of its own, as more of it."""
    return [
        lanes_first(x, lane, info.batch_size).movedim(0, row).flatten(row, row + 1)
        if isinstance(x, Tensor)
        else x
        for x, lane, row in zip(inputs, in_dims, rows, strict=True)
    ]


def as_lanes(
    info: Any, outputs: tuple[Tensor | None, ...], rows: tuple[int, ...]
) -> tuple[tuple[Tensor | None, ...], tuple[int | None, ...]]:
    """The lanes of results again, and where they lie."""
    parts = tuple(
        None if y is None else y.unflatten(row, (info.batch_size, -1))
        for y, row in zip(outputs, rows, strict=True)
    )
    return parts, tuple(None if y is None else row for y, row in zip(parts, rows, strict=True))


def lanes_first(x: Tensor, lane: int | None, count: int) -> Tensor:
    """All `count` lanes of `x`, which may be the same for all."""
    return x.expand(count, *x.shape) if lane is None else x.movedim(lane, 0)
