"""Measure several sides in turns, so that whatever else the machine does meets all of them."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Spent:
    """Median seconds of one side's rounds: by the clock, and of this process's CPU time."""

    wall: float
    cpu: float


def interleaved(sides: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Spent]:
    """Run every side once to warm it up, then all of them in turns, `rounds` times."""
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for run in sides.values():
        run()
    for _ in range(rounds):
        for name, run in sides.items():
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            spent[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {
        name: Spent(*(statistics.median(column) for column in zip(*times, strict=True)))
        for name, times in spent.items()
    }


def machine() -> dict[str, Any]:
    """What the figures depend on: cores, and the load of the last minute when they were taken."""
    return {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 2)}
