"""A made-up study with chosen effects, to test the analysis and to look at the report's design."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from ablate.analysis.frame import Cell, Curve, Scalar, StudyResults, Trial

PRIMARY = "val/bits_per_byte"

FACTORS: Mapping[str, tuple[Scalar, ...]] = {
    "memory": ("mlp", "matrix"),
    "feature_map": ("polynomial", "identity"),
    "window": (16, 4, 1),
    "retention": ("scalar", "none"),
    "inner_optimizer": ("muon", "momentum", "gd"),
    "newton_schulz.steps": (5, 1),
}

EFFECTS: Mapping[str, float] = {
    "memory=matrix": 0.061,
    "feature_map=identity": 0.024,
    "window=4": 0.009,
    "window=1": 0.038,
    "retention=none": -0.004,
    "inner_optimizer=momentum": 0.017,
    "inner_optimizer=gd": 0.052,
    "newton_schulz.steps=1": 0.006,
}

REFERENCES = {"unigram_bits_per_byte": 4.54, "bigram_bits_per_byte": 3.48}


def example_study(
    seeds: int = 3,
    states: Mapping[tuple[str, int], str] | None = None,
    *,
    noise: float = 0.006,
    study: str = "atlas-components",
    rows: int = 9,
) -> StudyResults:
    """Return one baseline and eight one-factor cells, each run with `seeds` seeds.

    Args:
        seeds: number of paired seeds.
        states: the state of single trials by cell label and seed; all others are done.
        noise: standard deviation of what one cell and seed adds to the true difference.
        study: name of the study.
        rows: evaluations per trial.
    """
    cells = example_cells()
    trials, curves = [], {}
    for cell in cells:
        for seed in range(seeds):
            state = (states or {}).get((cell.label, seed), "done")
            trial = _trial(cell, seed, state)
            trials.append(trial)
            if state != "missing":
                curves[trial.id] = _curves(cell, seed, state, noise, rows)
    return StudyResults(
        study=study,
        question="Which parts of Atlas matter for language modelling, and by how much?",
        baseline=cells[0].id,
        task="language",
        task_args={"context": 256, "tokens": 2_000_000},
        primary=PRIMARY,
        goal="min",
        seeds=tuple(range(seeds)),
        cells=cells,
        trials=tuple(trials),
        curves=curves,
        file="experiments/language/atlas-components.yaml",
    )


def example_cells() -> tuple[Cell, ...]:
    """Return the cells of `FACTORS`, one factor changed at a time."""
    start = {axis: levels[0] for axis, levels in FACTORS.items()}
    cells = [_cell("baseline", start, {}, None)]
    for axis, levels in FACTORS.items():
        for level in levels[1:]:
            axes = {**start, axis: level}
            if axes["inner_optimizer"] != "muon":
                axes["newton_schulz.steps"] = None
            changed = {axis: (start[axis], level)}
            cells.append(_cell(f"{axis}={level}", axes, changed, cells[0].id))
    return tuple(cells)


def _cell(
    label: str,
    axes: Mapping[str, Scalar],
    changed: Mapping[str, tuple[Scalar, Scalar]],
    reference: str | None,
) -> Cell:
    matrix = axes["memory"] == "matrix"
    return Cell(
        id=f"{zlib.crc32(label.encode()):08x}",
        label=label,
        axes=axes,
        changed=changed,
        compared_with=reference,
        parameters=151_232 if matrix else 167_616,
        state_bytes=36_864 * (1 if matrix else 5) + 1024 * int(axes["window"] or 1),
        flops_per_token=3.1e6 if matrix else 7.9e6,
        config={"task": {"name": "language"}, "train": {"lr": 0.003, "warmup": 0.1}},
    )


def _trial(cell: Cell, seed: int, state: str) -> Trial:
    rng = _stream(cell.label, seed, "cost")
    speed = {"gd": 9200.0, "momentum": 8100.0}.get(str(cell.axes["inner_optimizer"]), 4300.0)
    speed *= float(rng.uniform(0.95, 1.05))
    broken = state in ("failed", "oom", "lost")
    return Trial(
        id=f"{cell.id}-s{seed}",
        cell=cell.id,
        seed=seed,
        state=state,
        attempt=0 if state == "missing" else 1,
        error=_ERRORS.get(state),
        traceback=_TRACEBACK if broken else None,
        host="workstation",
        device="cpu",
        fingerprint="5f0c1d7e",
        info={"torch": "2.11.0", "data": "4c1f09ab31d2", "commit": "9b1d0c4e55af", **REFERENCES},
        summary={} if broken else {"tokens_per_second": speed, "seconds": 2e6 / speed},
    )


def _curves(cell: Cell, seed: int, state: str, noise: float, rows: int) -> dict[str, Curve]:
    tokens = np.round(np.geomspace(31_250, 2_000_000, rows))
    shared = _stream("shared", seed, "curve").normal(0, 0.03)
    own = _stream(cell.label, seed, "curve")
    final = 2.31 + shared + EFFECTS.get(cell.label, 0.0) + own.normal(0, noise)
    shape = (tokens / tokens[-1]) ** -0.17
    slow = 1 + 2 * EFFECTS.get(cell.label, 0.0) * (1 - tokens / tokens[-1])
    values = final * shape * slow + own.normal(0, 0.004, rows) * (tokens < tokens[-1])
    if state == "diverged":
        values[rows // 2 :] = np.inf
    if state in ("failed", "oom", "lost"):
        tokens, values = tokens[: rows // 3], values[: rows // 3]
    return {PRIMARY: Curve(tokens, values), "val/loss": Curve(tokens, values * np.log(2))}


def _stream(*parts: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32("/".join(map(str, parts)).encode()))


_ERRORS = {
    "failed": "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x32 and 16x64)",
    "diverged": "val/bits_per_byte became infinite at step 1000; last finite value 3.02",
    "oom": "CUDA out of memory. Tried to allocate 2.00 GiB",
    "lost": "the worker was killed",
}
_TRACEBACK = """Traceback (most recent call last):
  File "ablate/trial/run.py", line 81, in run_trial
    train(model, task, config, report)
  File "ablate/components/memory.py", line 44, in forward
    return x @ self.weight
RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x32 and 16x64)
"""
