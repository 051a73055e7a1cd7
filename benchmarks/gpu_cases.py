"""What `benchmarks.gpu` runs: each kernel at the sizes of a model, one line each.

Arithmetic is counted by the products of each form as it is written down, two for a multiply-add;
bytes are inputs and outputs, once each. Gradients count the products of the derivative only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ablate.components.feature_map import read_monomials
from ablate.components.newton_schulz import COEFFICIENTS
from ablate.components.orthogonal_sums import orthogonal_sums
from ablate.components.recurrence import fast_weight


@dataclass(frozen=True)
class Case:
    """One operation at one size.

    Args:
        name: in tables.
        operation: in `ablate.components.kernels.backend.KERNELS`.
        form: torch's form of it.
        shapes: of its inputs, drawn normal, each divided by `scale`.
        batch: which axis of each input counts rows of the batch; None for all of them the first.
        forward, backward: floating-point operations.
        words: further arguments.
    """

    name: str
    operation: str
    form: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    forward: float
    backward: float
    scale: float = 1.0
    batch: tuple[int, ...] | None = None
    words: dict[str, Any] = field(default_factory=dict)


def newton_schulz(
    dim: int, rows: int, *, columns: int | None = None, tokens: int = 64, window: int = 1,
    steps: int = 5,
) -> Case:  # fmt: skip
    """Per-token momenta of a chunk: `rows` of the batch, matrices of `dim` by `columns`."""
    p, o, i, n = rows, dim, columns or dim, tokens
    s = n + window - 1
    around = 2 * o * i * (s + n)  # momenta made of their sources, and reads
    made = p * n * (steps * (4 * o * o * i + 2 * o**3) + around)
    slopes = p * n * (steps * (10 * o * o * i + 4 * o**3) + 3 * around)
    shapes = ((p, o, i), (p, s, o), (p, s, i), (p, n), (p, n, s), (p, n, n), (p, n), (p, n, i))
    words = {"schedule": COEFFICIENTS["quintic"] * steps, "eps": 1e-7}
    name = f"newton_schulz {o}x{i}, chunk {n}, window {window}"
    return Case(name, "newton_schulz", orthogonal_sums, shapes, made, slopes, words=words)


def read_weight(dim: int, rows: int, *, tokens: int = 64, window: int = 1) -> Case:
    """Reads of a chunk: of its first memory and momentum, and of its sources."""
    p, d, n, m = rows, dim, tokens, 2
    s = n + window - 1
    made = 2 * p * n * (m * d * d + 2 * s * d)
    shapes = ((p, n, d), (p, m, d, d), (p, s, d), (p, s, d), (p, n, m), (p, n, s))
    name = f"read_weight {d}x{d}, chunk {n}, window {window}"
    return Case(name, "read_weight", fast_weight.read_weight, shapes, made, 2 * made, dim**0.5)


def scan_weight(
    dim: int, rows: int, *, chunks: int = 16, tokens: int = 64, window: int = 1
) -> Case:
    """Errors and states of chunks that follow each other."""
    g, p, d, m = chunks, rows, dim, 2
    s = tokens + window - 1
    made = 2 * g * p * (s * d * d * (1 + m) + m * m * d * d)
    shapes = (
        (p, m, d, d), (g, p, 1, s, d), (g, p, s, d), (g, p, s, d), (g, p, m, m), (g, p, s, m),
    )  # fmt: skip
    name = f"scan_weight {d}x{d}, {g} chunks of {tokens}, window {window}"
    axes = (0, 1, 1, 1, 1, 1)
    made_by = fast_weight.scan_weight
    return Case(name, "scan_weight", made_by, shapes, made, 2 * made, 2 * dim**0.5, axes)


def read_polynomial(dim: int, rows: int, *, tokens: int = 64) -> Case:
    """A memory and its momentum read by queries whose features of degree 2 are made inside."""
    p, d, n, o = rows, dim, tokens, 2 * dim
    f = d * (d + 3) // 2 + 1
    made = 2 * p * n * o * f
    slopes = 2 * p * n * o * (f + d * (d + 1))  # of x each pair of coordinates twice
    shapes = ((p, n, d), (p, o, f), (p, 3))
    name = f"read_polynomial 2 x {d}x{f}, chunk {n}"
    return Case(name, "read_polynomial", read_monomials, shapes, made, slopes, dim**0.5)


CASES: tuple[Callable[[], Case], ...] = (
    partial(newton_schulz, 32, 512),
    partial(newton_schulz, 64, 256),
    partial(newton_schulz, 64, 256, window=64),
    partial(newton_schulz, 64, 128, columns=128),  # polynomial features, on small coordinates
    partial(newton_schulz, 128, 64),
    partial(read_weight, 64, 4096),
    partial(read_weight, 128, 1024, window=64),
    partial(scan_weight, 64, 512),
    partial(scan_weight, 128, 128),
    partial(read_polynomial, 32, 2048),
    partial(read_polynomial, 64, 512),
    partial(read_polynomial, 128, 64),
)
