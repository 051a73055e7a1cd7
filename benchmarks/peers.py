"""Other people's layers, as `benchmarks.cases` runs them: titans-pytorch and fla's references."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

Reference = Callable[..., Tensor]


def half_square(said: Tensor, value: Tensor) -> Tensor:
    """The loss of Titans Eq. 12; titans-pytorch's own is the mean over the width."""
    return 0.5 * (said - value).square().sum(dim=-1)


def titans_pytorch(
    dim: int,
    *,
    chunk: int,
    layers: int,
    momentum: bool,
    newton_schulz: bool,
    base: int | None,
    lr_max: float,
) -> Any:
    """titans-pytorch's layer, with our loss and without what it adds to the paper's memory.

    Gates are shared by `chunk` tokens. Gradients are taken at the memory of every `base` tokens,
    by default at the first memory of the call.
    """
    from titans_pytorch import MemoryMLP, NeuralMemory

    layer = NeuralMemory(
        dim=dim,
        chunk_size=chunk,
        batch_size=base,
        model=MemoryMLP(dim, depth=layers, expansion_factor=4.0),
        store_memory_loss_fn=half_square,
        default_step_transform_max_lr=lr_max,
        mem_model_norm_add_residual=False,
        momentum=momentum,
        spectral_norm_surprises=newton_schulz,
    )
    with torch.no_grad():
        layer.to_decay_factor[0].bias -= 4  # else half of the memory is gone at every token
    return layer


def _module(operation: str) -> ModuleType:
    """The references of an operation of flash-linear-attention, without its packages' kernels."""
    for name in ("fla", "fla.ops", f"fla.ops.{operation}"):
        if name not in sys.modules:
            package = ModuleType(name)
            package.__path__ = [str(_site_packages().joinpath(*name.split(".")))]
            sys.modules[name] = package
    return importlib.import_module(f"fla.ops.{operation}.naive")


@functools.cache
def _site_packages() -> Path:
    spec = importlib.util.find_spec("fla")
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit("fla-core is not installed: pip install -e '.[dev]'")
    return Path(next(iter(spec.submodule_search_locations))).parent


def fla_reference(name: str, chunk: int) -> Reference:
    """One of `REFERENCES`: a function of q, k, v (b t h d) and keep, lr, theta (b t h)."""
    operation, make = REFERENCES[name]
    return make(_module(operation), chunk)


def _heads_first(*parts: Tensor) -> list[Tensor]:
    return [part.transpose(1, 2) for part in parts]


def _delta_recurrent(fla: Any, chunk: int) -> Reference:
    def run(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, lr: Tensor, theta: Tensor) -> Tensor:
        y: Tensor = fla.delta_rule_recurrence(*_heads_first(q * q.shape[-1] ** 0.5, k, v, lr))[0]
        return y.transpose(1, 2)

    return run


def _delta_chunked(fla: Any, chunk: int) -> Reference:
    def run(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, lr: Tensor, theta: Tensor) -> Tensor:
        parts = _heads_first(q * q.shape[-1] ** 0.5, k, v, lr)
        y: Tensor = fla.delta_rule_chunkwise(*parts, chunk_size=chunk)[0]
        return y.transpose(1, 2)

    return run


def _gated_delta_chunked(fla: Any, chunk: int) -> Reference:
    def run(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, lr: Tensor, theta: Tensor) -> Tensor:
        y: Tensor = fla.naive_chunk_gated_delta_rule(
            q, k, v, g=keep.log(), beta=lr, scale=1.0, chunk_size=chunk
        )[0]
        return y

    return run


def _momentum(fla: Any, chunk: int) -> Reference:
    def run(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, lr: Tensor, theta: Tensor) -> Tensor:
        y: Tensor = fla.recurrent_momentum_delta_rule_ref(
            q, k, v, keep.log(), theta.log(), k, torch.ones_like(lr), lr, scale=1.0
        )[0]
        return y

    return run


def _titans(fla: Any, chunk: int) -> Reference:
    def run(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, lr: Tensor, theta: Tensor) -> Tensor:
        gates = [part[..., None] for part in (lr, 1 - keep, theta)]
        gain = q.new_ones(q.shape[2], q.shape[3])
        y: Tensor = fla.chunk_titans_linear_ref(
            q, k, v, gain, torch.zeros_like(gain), *gates, chunk_size=chunk
        )[0]
        return y

    return run


REFERENCES: dict[str, tuple[str, Callable[[Any, int], Reference]]] = {
    "delta recurrent": ("delta_rule", _delta_recurrent),
    "delta chunked": ("delta_rule", _delta_chunked),
    "gated delta chunked": ("gated_delta_rule", _gated_delta_chunked),
    "momentum recurrent": ("momentum_delta_rule", _momentum),
    "titans chunked": ("titans", _titans),
}
"""By name: the operation, and what makes the reference from its module and a chunk.

``titans chunked`` divides only half of its layer norm's gradient (tests/independent/fla_test.py):
the same work as ours, and another function.
"""
