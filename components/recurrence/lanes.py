"""Lanes of `torch.func.vmap` as more rows, for functions whose derivatives are written out."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

import torch
from torch import Tensor

Function = TypeVar("Function", bound=type[torch.autograd.Function])


def quick(function: Function) -> Function:
    """Spare `apply` from reading the signature of `forward` at every call, as PyTorch does."""
    forward: Any = function.forward
    forward.__signature__ = inspect.signature(forward)
    return function


def as_rows(
    info: Any, in_dims: tuple[Any, ...], inputs: tuple[Any, ...], rows: tuple[int, ...]
) -> list[Any]:
    """Every tensor with its lanes before dimension `rows` of its own, as more of it."""
    return [
        x if not isinstance(x, Tensor) else _as_rows(x, lane, row, info.batch_size)
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


def _as_rows(x: Tensor, lane: int | None, row: int, count: int) -> Tensor:
    x = x.unsqueeze(0).expand(count, *x.shape) if lane is None else x.movedim(lane, 0)
    return x.movedim(0, row).flatten(row, row + 1)
