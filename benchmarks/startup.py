"""From the start of a process to the end of a trial's first optimiser step.

    python -m benchmarks.startup [MODEL ...] [--rounds N] [--json]

Each round is a new process of `ablate train MODEL task=language`, and beside it one that only
imports torch, which no trial can do without. Medians, by the clock and in CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from benchmarks.interleaved import Spent, machine
from benchmarks.models import check_names

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("transformer", "deltanet", "titans_lmm")
IMPORT = "import torch"
TOKENS = 1024  # a few steps, of which the first is taken
# Runs in the new process: the first step ends it, so that nothing later is counted.
TRIAL = """
import os, sys
from ablate.trial import adamw
real = adamw.PlainAdamW.step
def first(self, closure=None):
    real(self, closure)
    os._exit(0)
adamw.PlainAdamW.step = first
from ablate.cli import main
main(sys.argv[1:])
sys.exit(3)
"""


def spent(program: str, *arguments: str) -> Spent:
    """Run a program in a new process.

    Raises:
        RuntimeError: it failed, or a trial took no step.
    """
    before, wall = os.times(), time.perf_counter()
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    after = os.times()
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
    cpu = after.children_user + after.children_system
    return Spent(time.perf_counter() - wall, cpu - before.children_user - before.children_system)


def measure(models: list[str], rounds: int) -> dict[str, Spent]:
    """Every side in turns; the first turn only warms the disk's cache."""
    sides = {IMPORT: partial(spent, IMPORT)}
    for name in models:
        task = ("task=language", f"task_args.tokens={TOKENS}")
        sides[name] = partial(spent, TRIAL, "train", name, *task)
    found: dict[str, list[Spent]] = {name: [] for name in sides}
    for turn in range(rounds + 1):
        for name, run in sides.items():
            once = run()
            if turn:
                found[name].append(once)
    return {
        name: Spent(
            statistics.median(one.wall for one in each), statistics.median(one.cpu for one in each)
        )
        for name, each in found.items()
    }


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description="Start of a process to a trial's first step.")
    options.add_argument("models", nargs="*", default=MODELS, help="named models")
    options.add_argument("--rounds", type=int, default=3, help="processes of each")
    options.add_argument("--json", action="store_true", help="print one JSON object")
    given = options.parse_args()
    check_names(options, given.models)
    before, found = machine(), measure(list(given.models), given.rounds)
    if given.json:
        rows = {name: {"wall": one.wall, "cpu": one.cpu} for name, one in found.items()}
        print(json.dumps({"machine": before, "seconds": rows}, indent=2))
        return
    print(f"load {before['load']} on {before['cores']} cores; start to first step, seconds")
    print(f"{'':24}   clock     CPU")
    for name, one in found.items():
        print(f"{name:24}{one.wall:8.2f}{one.cpu:8.2f}")


if __name__ == "__main__":
    main()
