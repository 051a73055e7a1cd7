"""How time and memory of the memory layer grow: with length, window, degree, steps and width.

    python -m benchmarks.scaling [--json] [--rounds N] [--no-memory]

Forward and backward of a layer, one axis at a time, the others held. An exponent p of cost ~ x^p is
the slope of a straight line through the logarithms; what does not depend on x pulls it down.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.cases import Case, make
from benchmarks.interleaved import interleaved, machine
from benchmarks.peak import peak_bytes

MUON = Case("layer", tokens=512, chunk=16, optimizer="muon")


@dataclass(frozen=True)
class Axis:
    """What is varied, its values, what they mean for the cost (`sizes`), and what is held."""

    name: str
    field: str
    values: tuple[int, ...]
    held: Case
    wanted: str = ""
    sizes: tuple[int, ...] | None = None

    def cases(self) -> list[Case]:
        """One for each value."""
        return [replace(self.held, **{self.field: value}) for value in self.values]


def features(dim: int, degree: int) -> int:
    """Monomials of at most that degree; degree 1 is the key itself."""
    return dim if degree == 1 else math.comb(dim + degree, degree)


AXES = (
    Axis("T, momentum", "tokens", (512, 1024, 2048, 4096), Case("layer"), "1"),
    Axis("T, NS-5", "tokens", (128, 256, 512, 1024), replace(MUON, dim=32), "1"),
    Axis("c (window), momentum", "window", (1, 4, 16, 64), Case("layer", tokens=1024)),
    Axis("chunk, momentum", "chunk", (16, 32, 64, 128), Case("layer", tokens=1024)),
    Axis(
        "features (degree 1, 2, 3), momentum", "degree", (1, 2, 3),
        Case("layer", dim=16, tokens=512), "<= 1", tuple(features(16, p) for p in (1, 2, 3)),
    ),
    Axis(
        "features (degree 1, 2, 3), NS-5", "degree", (1, 2, 3),
        replace(MUON, dim=16, tokens=256), "< 1", tuple(features(16, p) for p in (1, 2, 3)),
    ),
    Axis("k (Newton-Schulz steps)", "steps", (2, 4, 8, 16), replace(MUON, tokens=256), "<= 1"),
    Axis("d, momentum", "dim", (32, 64, 128, 256), Case("layer", tokens=512), "<= 2"),
    Axis("d, NS-5", "dim", (32, 64, 128), replace(MUON, tokens=128), "<= 3"),
)  # fmt: skip


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Slope of log cost against log size, by least squares."""
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    middle_x, middle_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - middle_x) * (b - middle_y) for a, b in zip(x, y, strict=True))
    return above / sum((a - middle_x) ** 2 for a in x)


def measure(axis: Axis, rounds: int, *, memory: bool) -> dict[str, Any]:
    """Seconds and bytes of every value, and both exponents."""
    cases = axis.cases()
    runs = {str(n): make(case).both for n, case in enumerate(cases)}
    seconds = [spent.cpu for spent in interleaved(runs, rounds).values()]
    sizes = axis.sizes or axis.values
    found: dict[str, Any] = {"values": axis.values, "sizes": sizes, "seconds": seconds}
    found["time_exponent"] = exponent(sizes, seconds)
    if memory:
        found["bytes"] = [peak_bytes(case) for case in cases]
        found["memory_exponent"] = exponent(sizes, [max(1, n) for n in found["bytes"]])
    return found


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description="How the memory layer's cost grows.")
    options.add_argument("--json", action="store_true", help="print one JSON object")
    options.add_argument("--rounds", type=int, default=5, help="turns of all values")
    options.add_argument("--no-memory", action="store_true", help="time only")
    given = options.parse_args()
    torch.set_num_threads(1)
    before = machine()
    found = {
        axis.name: measure(axis, given.rounds, memory=not given.no_memory) for axis in AXES
    }  # fmt: skip
    if given.json:
        print(json.dumps({"machine": before, "axes": found}, indent=2))
        return
    print(f"load {before['load']} on {before['cores']} cores, one thread; forward and backward")
    print(f"{'':36} time ~ x^p  wanted  memory ~ x^p  values: ms (MB)")
    for axis in AXES:
        row = found[axis.name]
        memory = row.get("memory_exponent")
        peaks = [f" ({n / 1e6:.1f})" for n in row["bytes"]] if memory is not None else [""] * 9
        cells = zip(axis.values, row["seconds"], peaks, strict=False)
        listed = ", ".join(f"{value}: {1e3 * spent:.1f}{peak}" for value, spent, peak in cells)
        shown = "" if memory is None else f"{memory:.2f}"
        print(f"{axis.name:36}{row['time_exponent']:11.2f}{axis.wanted:>8}{shown:>14}  {listed}")


if __name__ == "__main__":
    main()
