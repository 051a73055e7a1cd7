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
_LINEAR = "ablate.components.kernels.fast_weight"
KERNELS = {
    "newton_schulz": ("ablate.components.kernels.newton_schulz", "orthogonal_sums"),
    "read_weight": (_LINEAR, "read_weight"),
    "write_weight": (_LINEAR, "write_weight"),
    "scan_weight": (_LINEAR, "scan_weight"),
    "read_polynomial": ("ablate.components.kernels.polynomial", "read_polynomial"),
}
"""Where the kernel of each operation is. Its module has `refusal(rows, columns)`, which says what
sizes it cannot serve, and `self_check(device)`, which says how wrong it is there."""


@dataclass(frozen=True)
class Use:
    """An operation of a layer that has a kernel.

    rows, columns: of its matrices. blocked: what of the layer keeps the kernel from being used.
    otherwise: the operation that does the same where this one's kernel does not serve.
    """

    operation: str
    rows: int
    columns: int
    blocked: str | None = None
    otherwise: Use | None = None


@dataclass(frozen=True)
class Served:
    """What runs a use: "torch" or "triton".

    reason: why not the kernel. fault: whether that is the machine's, and not the model's or a wish.
    """

    use: Use
    backend: str
    reason: str = ""
    fault: bool = False

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
    if choice == "torch":
        return Served(use, "torch", "asked for")
    if reason := missing(device):
        return Served(use, "torch", reason, fault=True)
    if choice == "auto" and device.type != "cuda":
        return Served(use, "torch", "auto does not take Triton's interpreter, which is for tests")
    if dtype != torch.float32:
        name = str(dtype).removeprefix("torch.")
        return Served(use, "torch", f"kernels compute in float32, not in {name}")
    if reason := unfit(use):
        return Served(use, "torch", reason)
    if device.type == "cuda":
        precision = torch.get_float32_matmul_precision()
        if reason := _wrong(use.operation, str(device), precision):
            return Served(use, "torch", reason, fault=True)
    return Served(use, "triton")


def unfit(use: Use) -> str | None:
    """Why the kernel cannot serve a use on any machine, or None; sizes only Triton itself knows."""
    if use.blocked or importlib.util.find_spec("triton") is None:
        return use.blocked
    found: str | None = _module(use.operation).refusal(use.rows, use.columns)
    return found


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
    return None if serve(use, choice, device, dtype).backend == "torch" else load(use.operation)


def load(operation: str) -> Callable[..., Any]:
    """The kernel of an operation, wherever it can or cannot run."""
    found: Callable[..., Any] = getattr(_module(operation), KERNELS[operation][1])
    return found


def try_kernel(operation: str, device: torch.device) -> str | None:
    """Run a kernel once on a device, beside torch; what is wrong with it, or None."""
    return _wrong(operation, str(device), torch.get_float32_matmul_precision())


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
        ValueError: an unknown choice, or "triton" where this machine cannot run the kernels.
    """
    check_choice(choice)
    for layer in _layers(model):
        layer.backend = choice
    found = served(model, device)
    if choice == "triton":
        faults = [missing(device), *(one.reason for one in found if one.fault)]
        if reason := next(filter(None, faults), None):
            raise ValueError(f"backend=triton cannot be had here: {reason}. {WITHOUT}")
    return found


WITHOUT = "backend=auto takes kernels where they can run, torch elsewhere."


def nothing_served(found: tuple[Served, ...]) -> str | None:
    """What to tell who asked for kernels of a model that can use none, or None if it can."""
    if any(one.backend == "triton" for one in found):
        return None
    if not found:
        why = f"none of its operations has one (there are: {', '.join(KERNELS)})"
    else:
        why = "; ".join(f"{one.use.operation}: {one.reason}" for one in found)
    return f"backend=triton: no kernel can serve this model: {why}. {WITHOUT}"


def refusals(found: tuple[Served, ...], choice: str) -> list[str]:
    """Remarks for a run that asked for kernels and has torch in some places."""
    if choice != "triton":
        return []
    if not found:
        return ["backend=triton: nothing of this model has a kernel: torch runs it"]
    return [f"backend=triton: {one}" for one in found if one.backend == "torch"]


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
            one = serve(use, layer.backend, device, dtype)
            found[one] = None
            if one.backend == "torch" and use.otherwise is not None:
                found[serve(use.otherwise, layer.backend, device, dtype)] = None
    return tuple(found)


def _layers(model: nn.Module) -> Iterator[Layer]:
    return (module for module in model.modules() if isinstance(module, Layer))


def facts(found: tuple[Served, ...]) -> dict[str, str]:
    """What to log of a run: `backend`, and for each operation the sizes and why not a kernel."""
    told: dict[str, dict[tuple[str, str], list[str]]] = {}
    for one in found:
        sizes = told.setdefault(one.use.operation, {}).setdefault((one.backend, one.reason), [])
        sizes.append(f"{one.use.rows}x{one.use.columns}")
    said = {
        f"backend_{operation}": "; ".join(
            f"{backend}: {', '.join(sizes)}" + (f" ({reason})" if reason else "")
            for (backend, reason), sizes in kinds.items()
        )
        for operation, kinds in told.items()
    }
    backends = sorted({one.backend for one in found}) or ["torch"]
    return {"backend": "+".join(backends), **said}
