"""`ablate doctor`: what works here, what is degraded, and what is broken.

A check is ``ok``, ``degraded`` (something optional is missing) or ``broken`` (a study cannot run).
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass

from ablate.errors import UserError
from ablate.home import home

_LIBRARIES = ("torch", "triton", "ray", "mlflow", "hydra-core", "optuna", "numpy", "scipy")
_LEAST_FREE = 1_000_000_000


@dataclass(frozen=True)
class Check:
    """One finding."""

    name: str
    state: str
    text: str


def examine() -> list[Check]:
    """Run all checks; one that raises is broken."""
    checks: list[Callable[[], Check]] = [
        _python,
        *(_library(name) for name in _LIBRARIES),
        _processors,
        _gpu,
        _kernels,
        _gpu_benchmark,
        _ray,
        _home,
        _disk,
        _tracker,
    ]
    found = []
    for check in checks:
        try:
            found.append(check())
        except Exception as error:
            name = getattr(check, "__name__", "check").lstrip("_")
            found.append(Check(name, "broken", f"{type(error).__name__}: {error}"))
    return found


def doctor_command(*, as_json: bool = False) -> int:
    """Print all checks; exit 1 if something that a study needs is broken."""
    from ablate.commands.terminal import FAILED, OK, console, print_json

    checks = examine()
    broken = any(check.state == "broken" for check in checks)
    if as_json:
        print_json({"ok": not broken, "checks": [asdict(check) for check in checks]})
        return FAILED if broken else OK
    out = console()
    colours = {"ok": "green", "degraded": "yellow", "broken": "red"}
    for check in checks:
        out.print(f"{check.state:<9} ", style=colours[check.state], end="")
        out.print(f"{check.name:<12} {check.text}", markup=False, soft_wrap=True)
    return FAILED if broken else OK


def _python() -> Check:
    fine = sys.version_info >= (3, 11)
    system = f"{platform.system()} {platform.machine()}"
    state = "ok" if fine else "broken"
    return Check("python", state, f"{platform.python_version()} on {system}")


def _library(name: str) -> Callable[[], Check]:
    def check() -> Check:
        try:
            return Check(name, "ok", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            state = "degraded" if name in {"triton", "optuna"} else "broken"
            return Check(name, state, "not installed")

    return check


def _processors() -> Check:
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Check("cpu", "ok", f"{allowed} of {os.cpu_count()} cores for this process")


def _gpu() -> Check:
    import torch

    if not torch.cuda.is_available():
        return Check("gpu", "degraded", "none that torch can use: trials run on the CPU")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Check("gpu", "ok", ", ".join(names))


def _kernels() -> Check:
    """Whether Triton kernels run here, and each of them tried against torch."""
    import torch

    from ablate.components.kernels.backend import KERNELS, interpreted, missing, try_kernel

    if interpreted():
        return Check("kernels", "degraded", "TRITON_INTERPRET=1: Triton's interpreter, for tests")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if reason := missing(device):
        return Check("kernels", "degraded", f"{reason}: the plain torch path is used")
    problems = {name: try_kernel(name, device) for name in KERNELS}
    found = [f"{name}: {problem or 'equals torch'}" for name, problem in problems.items()]
    state = "degraded" if any(problems.values()) else "ok"
    return Check("kernels", state, "; ".join(found))


def _gpu_benchmark() -> Check:
    import torch

    from ablate.components.kernels.backend import missing

    if torch.cuda.is_available() and missing(torch.device("cuda")) is None:
        return Check("benchmark", "ok", "python -m benchmarks.gpu can run here")
    return Check("benchmark", "degraded", "python -m benchmarks.gpu needs a GPU and Triton")


def _ray() -> Check:
    from ablate.telemetry import set_defaults

    set_defaults()
    import ray

    address = os.environ.get("RAY_ADDRESS")
    note = f", RAY_ADDRESS={address}" if address else ", starts on this machine when needed"
    return Check("sweep", "ok", f"ray {ray.__version__} imports{note}")


def _home() -> Check:
    place = home()
    existing = next(folder for folder in (place, *place.parents) if folder.exists())
    with tempfile.TemporaryFile(dir=existing) as file:
        file.write(b"ablate")
    return Check("home", "ok", f"{place} can be written")


def _disk() -> Check:
    place = home()
    existing = next(folder for folder in (place, *place.parents) if folder.exists())
    stat = os.statvfs(existing)
    free = stat.f_bavail * stat.f_frsize
    state = "ok" if free > _LEAST_FREE else "degraded"
    return Check("disk", state, f"{free / 1e9:.1f} GB free")


def _tracker() -> Check:
    """Write to the tracker, read it back, delete it."""
    from ablate.track.round_trip import round_trip
    from ablate.track.tracker import TrackerError

    try:
        where, seconds = round_trip()
    except (TrackerError, UserError) as error:
        return Check("tracker", "broken", str(error))
    return Check("tracker", "ok", f"{where}: wrote, read and deleted in {seconds:.1f} s")
