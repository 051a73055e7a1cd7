"""Trials per hour on one thread: packed against the loop that one would write by hand.

That loop is a plain `nn.Module`, autograd and PyTorch's Adam, one trial after another. ``alone`` is
Ablate without packing. All sides learn on the same pairs and run in turns.

    python -m benchmarks.packing [--json] [--rounds N] [--length N]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from ablate.experiments.catalogue import make_task
from ablate.experiments.learnability.task import LearnabilityTask
from ablate.experiments.task import SequenceTask
from ablate.trial.build import apply, build_model, compose_model
from ablate.trial.lanes import most_lanes
from ablate.trial.packed_models import ModelLanes
from ablate.trial.streams import generator
from ablate.trial.train import Loop, TrainConfig
from benchmarks.interleaved import Spent, interleaved, machine

WIDTHS = {32: 25.0, 64: 8.0, 256: 2.0}
"""Widths of the learner, and how many times as fast a pack has to be."""
MODELS = ("transformer", "deltanet", "titans_lmm")
SHAPES = ((32, 4, 32), (64, 2, 32))  # width, rows and tokens
MODEL_TARGET = 2.0


@dataclass(frozen=True)
class Result:
    """One comparison: seconds of a trial (or of a step of a model) on each side."""

    name: str
    lanes: int
    target: float
    plain: Spent
    alone: Spent
    packed: Spent
    per: str

    def ratio(self) -> float:
        """How many times as many trials per hour of CPU time a pack does as the plain loop."""
        return self.plain.cpu / self.packed.cpu


def learnability(dim: int, length: int, rounds: int) -> Result:
    """Whole trials of the learnability task: drawing the pairs, learning, the running means."""
    task = LearnabilityTask(dim=dim, length=length)
    lanes = most_lanes({"config": {"model": None, "task": {"name": task.name,
                        "args": {"dim": dim, "length": length}}}})  # fmt: skip
    streams = [_stream(seed) for seed in range(lanes)]
    spent = interleaved(
        {
            "plain": lambda: plain_trial(task, streams[0]),
            "alone": lambda: task.run(streams[0], lambda row: None),
            "packed": lambda: task.run_lanes([task] * lanes, streams, lambda rows: None),
        },
        rounds,
    )
    return _result(f"learnability d={dim}", lanes, WIDTHS[dim], spent, "trial")


def plain_trial(task: LearnabilityTask, stream: Callable[[str], np.random.Generator]) -> float:
    """The trial as a plain loop."""
    inputs, outputs = task.pairs(stream)
    layers: list[nn.Module] = []
    for into, out in zip(task.widths, task.widths[1:], strict=False):
        layers += [nn.Linear(into, out, bias=False), nn.GELU()]
    model = nn.Sequential(*layers[:-1])
    optimizer = torch.optim.Adam(model.parameters(), lr=task.rate)
    losses = []
    for x, wanted in zip(inputs, outputs, strict=True):
        loss = (model(x) - wanted).square().sum() / wanted.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-128:]) / 128


def _stream(seed: int) -> Callable[[str], np.random.Generator]:
    return lambda name: generator(seed, name)


def sequence_model(preset: str, shape: tuple[int, int, int], rounds: int) -> Result:
    """Steps of a sequence model on MQAR, as `ablate.trial.train` takes them."""
    dim, batch, length = shape
    args = {"vocab": 128, "length": length, "pairs": 4, "batch": batch, "tokens": 10**6}
    task = cast(SequenceTask, make_task("mqar", args))
    model = compose_model(preset)
    for key, value in (("backbone.dim", dim), ("backbone.heads", dim // 16)):
        model = apply(model, key, value)
    config = {"model": model, "task": {"name": "mqar", "args": args}}
    lanes = most_lanes({"config": config})

    def loop(seed: int) -> Loop:
        built = build_model(model, task.vocab, seed=seed)
        return Loop(built, task, TrainConfig(), seed=seed, steps=10**4)

    single, stacked = loop(0), ModelLanes([loop(seed) for seed in range(lanes)])
    sides = {"plain": lambda: single.step(0), "packed": lambda: stacked.step(0)}
    spent = interleaved(sides, rounds)
    spent["alone"] = spent["plain"]
    name = f"{preset} d={dim}, {batch} x {length} tokens"
    return _result(name, lanes, MODEL_TARGET, spent, "step")


def _result(name: str, lanes: int, target: float, spent: dict[str, Spent], per: str) -> Result:
    whole = spent["packed"]
    packed = Spent(whole.wall / lanes, whole.cpu / lanes)
    return Result(name, lanes, target, spent["plain"], spent["alone"], packed, per)


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description="Trials per hour, packed and not.")
    options.add_argument("--json", action="store_true", help="print one JSON object")
    options.add_argument("--rounds", type=int, default=5, help="turns of all sides")
    options.add_argument("--length", type=int, default=512, help="positions of a learner's trial")
    given = options.parse_args()
    torch.set_num_threads(1)
    results = [learnability(dim, given.length, given.rounds) for dim in WIDTHS]
    for preset in MODELS:
        results += [sequence_model(preset, shape, 2 * given.rounds) for shape in SHAPES]
    if given.json:
        print(json.dumps(_facts(results), indent=2))
        return
    print(f"load {machine()['load']} on {machine()['cores']} cores, one thread; CPU time")
    print(f"{'':32} lanes  plain ms  alone ms  packed ms  per hour   ratio  target")
    for one in results:
        times = (1e3 * side.cpu for side in (one.plain, one.alone, one.packed))
        print(
            f"{one.name:32} {one.lanes:5}"
            + "".join(f"{ms:10.3f}" for ms in times)
            + f"{3600 / one.packed.cpu:11,.0f} {one.per:5}{one.ratio():6.1f}  {one.target:g}"
        )


def _facts(results: list[Result]) -> dict[str, Any]:
    return {
        "machine": machine(),
        "seconds": {
            one.name: {"plain": one.plain.cpu, "alone": one.alone.cpu, "packed": one.packed.cpu}
            for one in results
        },
        "wall_seconds": {
            one.name: {"plain": one.plain.wall, "alone": one.alone.wall, "packed": one.packed.wall}
            for one in results
        },
        "lanes": {one.name: one.lanes for one in results},
        "ratios": {one.name: one.ratio() for one in results},
        "targets": {one.name: one.target for one in results},
    }


if __name__ == "__main__":
    main()
