"""Made-up studies of other designs: a full factorial, and cells of several sizes."""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ablate.analysis.example_study import PRIMARY, example_study
from ablate.analysis.frame import Cell, Curve, Scalar, StudyResults, Trial

TWO_LEVELS: Mapping[str, tuple[Scalar, ...]] = {
    "memory": ("mlp", "matrix"),
    "window": (16, 1),
    "retention": ("scalar", "none"),
}

LOSSES: Mapping[str, float] = {"memory": 0.06, "window": 0.04, "retention": 0.0}
"""What leaving the first level of each factor adds to the measure."""

TOGETHER = 0.03
"""What leaving the first levels of memory and window adds beyond the sum of both."""

SIZES: Mapping[str, tuple[Scalar, ...]] = {
    "memory": ("mlp", "matrix"),
    "backbone.dim": (32, 64, 96, 128, 192, 256),
}


def factorial_study(seeds: int = 4, *, noise: float = 0.002) -> StudyResults:
    """Return all eight combinations of `TWO_LEVELS`, with known effects and one interaction."""

    def value(axes: Mapping[str, Scalar]) -> float:
        left = {axis for axis, levels in TWO_LEVELS.items() if axes[axis] != levels[0]}
        both = {"memory", "window"} <= left
        return 2.3 + sum(LOSSES[axis] for axis in left) + TOGETHER * both

    return _study(TWO_LEVELS, value, seeds, noise)


def size_study(seeds: int = 3, *, sizes: int = 6, noise: float = 0.002) -> StudyResults:
    """Return two memories at `sizes` widths, on L = 1.5 + A N^-0.3 with N the parameters."""

    def value(axes: Mapping[str, Scalar]) -> float:
        scale = 12.0 if axes["memory"] == "mlp" else 14.0
        return 1.5 + scale * float(_parameters(axes) ** -0.3)

    factors = {**SIZES, "backbone.dim": SIZES["backbone.dim"][:sizes]}
    return _study(factors, value, seeds, noise)


TOKENS: tuple[Scalar, ...] = (250_000, 1_000_000, 4_000_000, 16_000_000)

CONTEXTS: tuple[Scalar, ...] = (128, 256, 512, 1024, 2048)


def size_and_data_study(seeds: int = 3, *, noise: float = 0.001) -> StudyResults:
    """Return two memories at four widths and four budgets, L = 1.5 + A N^-0.3 + 40 D^-0.35."""

    def value(axes: Mapping[str, Scalar]) -> float:
        scale = 12.0 if axes["memory"] == "mlp" else 14.0
        tokens = float(axes["task_args.tokens"] or 0)
        return 1.5 + scale * float(_parameters(axes) ** -0.3) + 40.0 * float(tokens**-0.35)

    widths = (32, 64, 128, 256)
    factors = {"memory": SIZES["memory"], "backbone.dim": widths, "task_args.tokens": TOKENS}
    return _study(factors, value, seeds, noise)


def context_study(seeds: int = 3, *, noise: float = 0.001) -> StudyResults:
    """Return one model at five contexts, on L = 1.8 + 3 C^-0.4 with C the context."""

    def value(axes: Mapping[str, Scalar]) -> float:
        return 1.8 + 3.0 * float(float(axes["task_args.context"] or 1) ** -0.4)

    return _study({"task_args.context": CONTEXTS}, value, seeds, noise)


RATES: Mapping[str, tuple[Scalar, ...]] = {
    "train.lr": (0.001, 0.003, 0.01),
    "memory": ("mlp", "matrix"),
}


def tuned_study(seeds: int = 4, *, noise: float = 0.004) -> StudyResults:
    """Return two memories, each tuned over three learning rates; the matrix likes a larger one."""

    def value(axes: Mapping[str, Scalar]) -> float:
        best = 0.003 if axes["memory"] == "mlp" else 0.01
        off = np.log10(float(axes["train.lr"] or 1) / best)
        return 2.3 + 0.05 * (axes["memory"] == "matrix") + 0.2 * float(off**2)

    results = _study(RATES, value, seeds, noise)
    cells = tuple(
        # Compared within the learning rate, as a plan does.
        dataclasses.replace(cell, compared_with=results.cells[index - 1].id if index % 2 else None)
        for index, cell in enumerate(results.cells)
    )
    return dataclasses.replace(results, cells=cells, design="one_factor", tune=("train.lr",))


SPACE: Mapping[str, dict[str, Any]] = {
    "train.lr": {"low": 1e-4, "high": 1e-1, "log": True},
    "window": {"levels": [16, 4, 1]},
}


def search_study(trials: int = 40, seeds: int = 2, *, noise: float = 0.003) -> StudyResults:
    """Return a search over a learning rate, which matters most, and a window; best at 0.01, 16."""
    draw = np.random.default_rng(5)
    rates = [0.003, *(10 ** draw.uniform(-4, -1, trials - 1))]
    windows = [16, *(int(draw.choice([16, 4, 1])) for _ in range(trials - 1))]
    table = {
        rate: 2.3 + 0.1 * float(np.log10(rate / 0.01) ** 2) + 0.02 * (16 - window) / 15
        for rate, window in zip(rates, windows, strict=True)
    }
    factors = {"train.lr": tuple(rates)}
    results = _study(factors, lambda axes: table[float(axes["train.lr"] or 0)], seeds, noise)
    cells = tuple(
        dataclasses.replace(
            cell,
            label=f"search #{index}" if index else "baseline",
            axes={"train.lr": rates[index], "window": windows[index]},
            changed={},
        )
        for index, cell in enumerate(results.cells)
    )
    search = {"trials": trials - 1, "space": dict(SPACE)}
    return dataclasses.replace(results, cells=cells, design="search", search=search)


def _study(
    factors: Mapping[str, tuple[Scalar, ...]],
    value: Callable[[Mapping[str, Scalar]], float],
    seeds: int,
    noise: float,
) -> StudyResults:
    start = {axis: levels[0] for axis, levels in factors.items()}
    cells: list[Cell] = []
    for levels in itertools.product(*factors.values()):
        axes = dict(zip(factors, levels, strict=True))
        changed = {
            axis: (start[axis], level) for axis, level in axes.items() if level != start[axis]
        }
        label = ", ".join(f"{axis}={level}" for axis, (_, level) in changed.items()) or "baseline"
        cells.append(
            Cell(
                id=f"{zlib.crc32(label.encode()):08x}",
                label=label,
                axes=axes,
                changed=changed,
                compared_with=cells[0].id if cells else None,
                parameters=_parameters(axes),
                state_bytes=4096 * (1 + (axes.get("memory") == "mlp")),
                flops_per_token=6.0 * _parameters(axes),
            )
        )
    trials, curves = [], {}
    for cell, seed in itertools.product(cells, range(seeds)):
        own = np.random.default_rng(zlib.crc32(f"{cell.label}/{seed}".encode()))
        shared = np.random.default_rng(seed).normal(0, 2 * noise)
        tokens = np.geomspace(31_250, 2_000_000, 7)
        final = value(cell.axes) + shared + own.normal(0, noise)
        trial = Trial(f"{cell.id}-s{seed}", cell.id, seed, "done", attempt=1)
        trials.append(
            dataclasses.replace(trial, summary={"seconds": 1e-4 * _parameters(cell.axes)})
        )
        curves[trial.id] = {PRIMARY: Curve(tokens, final * (tokens / tokens[-1]) ** -0.1)}
    return dataclasses.replace(
        example_study(),
        baseline=cells[0].id,
        cells=tuple(cells),
        seeds=tuple(range(seeds)),
        trials=tuple(trials),
        curves=curves,
        design="full",
    )


def _parameters(axes: Mapping[str, Scalar]) -> float:
    width = int(axes.get("backbone.dim") or 64)
    return 24.0 * width**2 + 256 * width
