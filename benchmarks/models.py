"""Training tokens a second of every named model, at one width, depth and batch.

    python -m benchmarks.models [--json] [--rounds N] [--dim D] [--length T] [--only NAME,NAME]
                                [--compiled]

A turn is one optimiser step of `ablate.trial.train` on MQAR, forward, backward and AdamW. All
models take their steps in turns. `--compiled` has each model twice, as it is and by torch.compile,
which takes a minute or two for each before its first turn.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch

from ablate.errors import UserError
from ablate.experiments.catalogue import make_task
from ablate.experiments.task import SequenceTask
from ablate.trial.build import apply, build_model, choices, compose_model
from ablate.trial.train import Loop, TrainConfig
from benchmarks.interleaved import Spent, interleaved, machine

BATCH = 4
BASE = "transformer"
COMPILED = ", compiled"


@dataclass(frozen=True)
class Trained:
    """One model: its weights, and what a step of `tokens` tokens takes."""

    name: str
    parameters: int
    tokens: int
    spent: Spent

    @property
    def speed(self) -> float:
        """Tokens a second of CPU time."""
        return self.tokens / self.spent.cpu


def measure(
    names: list[str], *, dim: int, length: int, rounds: int, compiled: bool = False
) -> list[Trained]:
    """Steps of each model in turns; `compiled`: of each by torch.compile too."""
    sizes = {"vocab": 2 * length, "length": length, "pairs": 4}
    args = {**sizes, "batch": BATCH, "tokens": 10**6}
    task = cast(SequenceTask, make_task("mqar", args))
    loops = {}
    for name in names:
        model = compose_model(name)
        for key, value in (("backbone.dim", dim), ("backbone.heads", dim // 16)):
            model = apply(model, key, value)
        for form in ("", COMPILED)[: 1 + compiled]:
            built = build_model(model, task.vocab, seed=0)
            if form:
                built.compile()
            loops[name + form] = Loop(built, task, TrainConfig(), seed=0, steps=10**4)

    def step(loop: Loop) -> Any:
        return lambda: loop.step(0)

    spent = interleaved({name: step(loop) for name, loop in loops.items()}, rounds)
    return [
        Trained(
            name,
            sum(part.numel() for part in loops[name].model.parameters()),
            BATCH * task.context,
            spent[name],
        )
        for name in loops
    ]


def check_names(options: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """End with exit code 2 and the nearest name where one is no named model."""
    for name in names:
        try:
            compose_model(name)
        except UserError as error:
            options.error(str(error))


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description="Training speed of every named model.")
    options.add_argument("--json", action="store_true", help="print one JSON object")
    options.add_argument("--rounds", type=int, default=5, help="steps of each model")
    options.add_argument("--dim", type=int, default=32, help="width, a multiple of 16")
    options.add_argument("--length", type=int, default=64, help="tokens of a row")
    options.add_argument("--only", default="", help="names, as atlas,titans_lmm")
    options.add_argument("--compiled", action="store_true", help="each by torch.compile too")
    given = options.parse_args()
    torch.set_num_threads(1)
    before = machine()
    names = given.only.split(",") if given.only else choices("model")
    check_names(options, names)
    sizes = {"dim": given.dim, "length": given.length, "rounds": given.rounds}
    found = measure(names, **sizes, compiled=given.compiled)
    base = next((one.speed for one in found if one.name == BASE), None)
    if given.json:
        rows = {
            one.name: {
                "parameters": one.parameters,
                "tokens": one.tokens,
                "seconds": one.spent.cpu,
                "wall_seconds": one.spent.wall,
            }
            for one in found
        }
        print(json.dumps({"machine": before, "models": rows}, indent=2))
        return
    print(
        f"load {before['load']} on {before['cores']} cores, one thread; CPU time; d={given.dim}, "
        f"{BATCH} x {given.length} tokens"
    )
    print(f"{'':24} parameters  tokens/s  of the {BASE}")
    for one in sorted(found, key=lambda one: -one.speed):
        share = "" if base is None else f"{one.speed / base:14.2f}"
        print(f"{one.name:24}{one.parameters:11,}{one.speed:10,.0f}{share}")


if __name__ == "__main__":
    main()
