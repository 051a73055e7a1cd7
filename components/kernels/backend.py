"""Which form of an operation runs, torch's or a Triton kernel, and why.

The choice is an option of execution: both forms compute the same to rounding, so it is no part of a
model's identity. `auto` takes a kernel wherever it can serve on a GPU and torch everywhere else;
`torch` never takes one; `triton` takes one also in Triton's interpreter, and is refused where no
kernel can serve. A kernel is compared with torch once on each device before it is used.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

CHOICES = ("auto", "torch", "triton")
# By name and not by an import, so that a kernel is loaded only where it runs.
KERNELS = {"newton_schulz": ("ablate.components.kernels.newton_schulz", "orthogonal_sums")}
"""Where the kernel of each operation is. Its module has `refusal(rows, columns)`, which says what
sizes it cannot serve, and `self_check(device)`, which says how wrong it is there."""


@dataclass(frozen=True)
class Use:
    """An operation of a layer that has a kernel.

    rows, columns: of its matrices. blocked: what of the layer keeps the kernel from being used.
    """

    operation: str
    rows: int
    columns: int
    blocked: str | None = None


@dataclass(frozen=True)
class Served:
    """What runs a use: "torch" or "triton"; `reason` is why not the kernel."""

    use: Use
    backend: str
    reason: str = ""

    def __str__(self) -> str:
        use = self.use
        why = f" ({self.reason})" if self.reason else ""
        return f"{use.operation} {use.rows}x{use.columns}: {self.backend}{why}"


@runtime_checkable
class Layer(Protocol):
    """What is asked of a layer that has operations with kernels."""

    backend: str

    def operations(self) -> tuple[Use, ...]:
        """Its operations that have kernels."""


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, which must be asked for before an import."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def missing(device: torch.device) -> str | None:
    """Why no kernel can run on a device, or None."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if device.type == "cuda" or (device.type == "cpu" and interpreted()):
        return None
    return "kernels need a GPU"


def serve(use: Use, choice: str, device: torch.device, dtype: torch.dtype) -> Served:
    """Decide for one use of numbers of `dtype` on `device`.

    Raises:
        ValueError: an unknown choice.
    """
    check_choice(choice)
    reason = "asked for" if choice == "torch" else use.blocked or missing(device)
    if reason is None and choice == "auto" and device.type != "cuda":
        reason = "Triton's interpreter is for tests: only backend=triton takes it"
    if reason is None and dtype != torch.float32:
        reason = f"kernels compute in float32, not in {str(dtype).removeprefix('torch.')}"
    if reason is None:
        reason = _module(use.operation).refusal(use.rows, use.columns)
    if reason is None and device.type == "cuda":
        precision = torch.get_float32_matmul_precision()
        reason = _wrong(use.operation, str(device), precision)
    return Served(use, "torch" if reason else "triton", reason or "")


def check_choice(choice: str) -> None:
    """Refuse a choice that is none.

    Raises:
        ValueError: with the choices.
    """
    if choice not in CHOICES:
        raise ValueError(f"backend={choice!r}: must be one of {', '.join(CHOICES)}")


def kernel(operation: str, choice: str, like: Tensor) -> Callable[..., Any] | None:
    """The kernel that a layer calls for matrices such as `like`, p o i; None for torch's form.

    torch.compile makes its own kernels, of torch's form.
    """
    if choice == "torch" or (choice == "auto" and not like.is_cuda):
        return None
    if torch.compiler.is_compiling():
        return None
    rows, columns = like.shape[-2:]
    return _kernel(Use(operation, rows, columns), choice, like.device, like.dtype)


@functools.lru_cache(maxsize=256)
def _kernel(
    use: Use, choice: str, device: torch.device, dtype: torch.dtype
) -> Callable[..., Any] | None:
    if serve(use, choice, device, dtype).backend == "torch":
        return None
    found: Callable[..., Any] = getattr(_module(use.operation), KERNELS[use.operation][1])
    return found


def _module(operation: str) -> Any:
    return importlib.import_module(KERNELS[operation][0])


@functools.lru_cache(maxsize=64)
def _wrong(operation: str, device: str, precision: str) -> str | None:
    """What a first run on a device found wrong with a kernel, or None."""
    try:
        error, allowed = _module(operation).self_check(torch.device(device))
    except Exception as problem:  # a compiler's or a driver's, of any kind
        return f"it does not run on {device}: {type(problem).__name__}: {problem}"
    if error <= allowed:  # NaN is not
        return None
    return f"on {device} it is off by {error:.1e}, {allowed:.0e} is allowed"


def set_backend(model: nn.Module, choice: str, device: torch.device) -> tuple[Served, ...]:
    """Let every layer of a model run as `choice` says; return what will run on `device`.

    Raises:
        ValueError: an unknown choice, or "triton" where no kernel can serve: what each is refused
            for.
    """
    check_choice(choice)
    for layer in _layers(model):
        layer.backend = choice
    found = served(model, device)
    if choice == "triton" and not any(one.backend == "triton" for one in found):
        raise ValueError(none_served(found))
    return found


def none_served(found: tuple[Served, ...]) -> str:
    """What to tell somebody who asked for kernels and can have none."""
    if not found:
        why = f"none of its operations has a kernel (there are: {', '.join(KERNELS)})"
    else:
        why = "; ".join(f"{one.use.operation}: {one.reason}" for one in found)
    return f"backend=triton: nothing of this model can run in a Triton kernel: {why}. Use auto."


def served(model: nn.Module, device: torch.device) -> tuple[Served, ...]:
    """What runs each operation of a model that has a kernel, each kind of use once."""
    if device.type == "cuda" and device.index is None and torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
    found: dict[Served, None] = {}
    for layer in _layers(model):
        assert isinstance(layer, nn.Module)
        given = next((p.dtype for p in layer.parameters()), torch.float32)
        dtype = torch.promote_types(given, torch.float32)  # as layers compute inside
        for use in layer.operations():
            found[serve(use, layer.backend, device, dtype)] = None
    return tuple(found)


def _layers(model: nn.Module) -> Iterator[Layer]:
    return (module for module in model.modules() if isinstance(module, Layer))


def facts(found: tuple[Served, ...]) -> dict[str, str]:
    """What to log of a run: `backend`, and one entry for each operation with its reasons."""
    backends = sorted({one.backend for one in found}) or ["torch"]
    told: dict[str, list[str]] = {}
    for one in found:
        told.setdefault(f"backend_{one.use.operation}", []).append(str(one).partition(" ")[2])
    return {"backend": "+".join(backends)} | {name: "; ".join(t) for name, t in told.items()}
