"""Choices of different axes that exclude each other, and why."""

from __future__ import annotations

from typing import Any

from torch import nn

from ablate.components.bias import L2
from ablate.components.inner_optimizer import InnerOptimizer
from ablate.components.memory import MatrixMemory
from ablate.components.newton_schulz import NewtonSchulz
from ablate.components.retention import Retention


def is_plain_matrix(memory: nn.Module) -> bool:
    """Whether M(k) = W phi(k) and nothing more."""
    if not isinstance(memory, MatrixMemory):
        return False
    output: Any = memory.output
    return not output.norm and not output.residual


def check_combination(
    memory: nn.Module,
    window: nn.Module,
    bias: nn.Module,
    retention: Retention,
    optimizer: InnerOptimizer,
    newton_schulz: NewtonSchulz | None,
) -> None:
    """Refuse what has no meaning or no exact form.

    Raises:
        ValueError: what clashes, and what to choose instead.
    """
    _check_step(memory, window, bias, retention, optimizer)
    _check_retention(memory, window, retention, optimizer, newton_schulz)


def check_steps(window: nn.Module, retention: Retention, chunk: int, steps: int) -> None:
    """Refuse what several steps for each token have no meaning for.

    Raises:
        ValueError: what clashes, and what to choose instead.
    """
    what = f"inner_optimizer.steps={steps}"
    if chunk != 1:
        raise ValueError(
            f"{what} with chunk={chunk}: each step takes its gradient at the memory after the step "
            "before, which is chunk 1"
        )
    if window.length != 1:
        raise ValueError(f"{what} with window.length={window.length}: set window.length 1")
    if retention.resets or retention.ties or retention.shrinks:
        raise ValueError(
            f"{what} with retention {type(retention).__name__}: it acts on a token, not on a step; "
            "choose none, constant, scalar or channel"
        )


def _check_step(
    memory: nn.Module,
    window: nn.Module,
    bias: nn.Module,
    retention: Retention,
    optimizer: InnerOptimizer,
) -> None:
    name = type(optimizer).__name__
    if optimizer.ridge is not None:
        _check_least_squares(name, memory, bias, retention)
    if not (optimizer.implicit or optimizer.decayed):
        return
    if not isinstance(memory, MatrixMemory) or window.length != 1:
        raise ValueError(
            f"inner_optimizer={name} needs memory matrix and window.length 1: its write has a "
            "closed form there only"
        )
    if optimizer.implicit and not (is_plain_matrix(memory) and type(bias) is L2):
        raise ValueError(
            f"inner_optimizer={name} with bias {type(bias).__name__}: the implicit step is known "
            "for l2 and a matrix without norm or residual"
        )
    if retention.maps or retention.shrinks:
        raise ValueError(
            f"inner_optimizer={name} with retention {type(retention).__name__}: what it keeps is "
            "not a share of the weights; choose a retention that decays"
        )


def _check_least_squares(
    name: str, memory: nn.Module, bias: nn.Module, retention: Retention
) -> None:
    if not (is_plain_matrix(memory) and type(bias) is L2):
        raise ValueError(
            f"inner_optimizer={name} needs bias l2 and a matrix without norm or residual: the "
            "minimum has no closed form elsewhere"
        )
    if retention.maps or retention.shrinks or retention.side or retention.resets:
        raise ValueError(
            f"inner_optimizer={name} with retention {type(retention).__name__}: tokens are "
            "forgotten by one number for each head; choose none, constant or scalar"
        )


def _check_retention(
    memory: nn.Module,
    window: nn.Module,
    retention: Retention,
    optimizer: InnerOptimizer,
    newton_schulz: NewtonSchulz | None,
) -> None:
    name = type(retention).__name__
    if retention.shrinks and newton_schulz is not None and newton_schulz.granularity != "token":
        raise ValueError(
            f"retention={name} with newton_schulz.granularity={newton_schulz.granularity}: it "
            "shrinks at every token; set granularity token"
        )
    if retention.side is None:
        return
    if newton_schulz is not None:
        raise ValueError(
            f"retention={name} with newton_schulz: by channel there is no fold of orthogonalised "
            "writes; choose a retention with one number for each head"
        )
    shapes: tuple[tuple[int, int], ...] = memory.shapes  # type: ignore[assignment]
    fronts: int = memory.fronts  # type: ignore[assignment]
    deep = len(shapes) > fronts
    width = shapes[0][1]
    if retention.side == "value" and deep:
        raise ValueError(f"retention={name}.side=value with a deep memory: it has side key only")
    if retention.side == "both" and (deep or window.length != 1 or optimizer.has_momentum):
        raise ValueError(
            f"retention={name}.side=both needs one matrix, window.length 1 and no momentum: its "
            "decays do not factor otherwise; choose side key or value"
        )
    if retention.side != "value" and width != retention.columns:
        raise ValueError(
            f"retention={name}.side={retention.side} has {retention.columns} key channels, but "
            f"the memory's first map reads {width}: choose memory matrix and feature_map identity, "
            "or side value"
        )
    if retention.side != "value" and any(rows != width for rows, _ in shapes[fronts:]):
        raise ValueError(
            f"retention={name} with this memory: each later map must have as many rows as the "
            f"key has channels ({width}); use two layers and equal key and value widths"
        )
