"""Which of several launches is fastest here: tried once for each shape, on the call's own data."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import torch
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources

Launch = TypeVar("Launch", bound=Hashable)
Timer = Callable[[Callable[[], Any]], float]
REPEATS = 3

_best: dict[tuple[Hashable, ...], Any] = {}


def fastest(
    operation: str,
    tried: Sequence[Launch],
    run: Callable[[Launch], Any],
    device: torch.device,
    *,
    timer: Timer | None = None,
) -> Launch:
    """The launch that takes least; the first where there is nothing to choose or no GPU.

    Args:
        operation: what is tuned; with `tried` and the device it says where the answer holds.
        tried: candidates; one that the device cannot hold is left out.
        run: does the whole operation with a launch.
        device: where.
        timer: seconds of a call; by default the GPU's own clock, and no tuning without a GPU.

    Raises:
        RuntimeError: no candidate runs.
    """
    if timer is None and device.type != "cuda":
        return tried[0]
    key = (operation, tuple(tried), str(device))
    if key not in _best:
        _best[key] = _search(operation, tried, run, timer or seconds_on_gpu)
    found: Launch = _best[key]
    return found


def _search(
    operation: str, tried: Sequence[Launch], run: Callable[[Launch], Any], timer: Timer
) -> Launch:
    took: dict[Launch, float] = {}
    problems = []
    for launch in tried:

        def call(launch: Launch = launch) -> Any:
            return run(launch)

        try:
            took[launch] = timer(call)
        except (OutOfResources, CompilationError) as error:
            problems.append(f"{launch}: {error}")
    if not took:
        raise RuntimeError(f"{operation}: no launch runs here: {'; '.join(problems)}")
    return min(took, key=lambda launch: took[launch])


def seconds_on_gpu(call: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Seconds of a call on the current GPU, the least of some; the first compiles."""
    call()
    least = float("inf")
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        least = min(least, begin.elapsed_time(end) / 1000)
    return least
