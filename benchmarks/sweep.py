"""What the platform costs beside the trials: starting them, deciding what is missing, logging.

    python -m benchmarks.sweep [--json] [--trials N]

``empty``: trials that do nothing, run side by side by Ray Tune, Ray's own start included.
``rerun``: ``ablate run`` on a finished study of 1,500 trials, from reading its file to knowing that
nothing is missing. ``logging``: what the ledger takes of a trial's time, on a learnability trial at
its default length, all of whose messages are written.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import yaml

from ablate.study.plan import make_plan
from ablate.sweep.driver import run_plan
from ablate.sweep.execution import Job, Recorder
from ablate.sweep.fake_study import FakePlan, end_message, fake_trial
from ablate.sweep.inline import InlineExecutor
from ablate.sweep.ledger import Ledger
from ablate.trial.run import run_trial
from benchmarks.interleaved import machine

TARGETS = {"empty_seconds": 40.0, "rerun_seconds": 3.0, "logging_share": 0.02}
STUDY = {
    "task": "learnability",
    "task_args": {"dim": 16, "length": 64, "rank": 4},
    "seeds": 5,
    "measure": {"primary": "final/loss"},
    "design": {
        "kind": "full",
        "factors": {
            "task_args.target": ["low_rank", "mlp", "attention_mlp", "attention_input"],
            "task_args.optimizer": ["adam", "rmsprop", "sgd"],
            "task_args.lr": [1e-4, 3e-4, 1e-3, 3e-3, 1e-2],
            "task_args.hidden_layers": [1, 2, 3, 4, 5],
        },
    },
}


def empty(folder: Path, trials: int) -> tuple[float, float]:
    """Seconds that Ray Tune takes for trials that do nothing; those before the first one runs."""
    from ablate.sweep.ray_tune import RayTuneExecutor

    plan = FakePlan(cells=trials // 5, seeds=5)
    times: list[float] = []
    with Ledger.open(folder / "empty.sqlite") as ledger:
        began = time.perf_counter()
        counts = run_plan(
            plan,
            ledger,
            executor=RayTuneExecutor(run=fake_trial, num_cpus=2),
            on_event=lambda event: times.append(time.perf_counter() - began),
        )
        spent = time.perf_counter() - began
    assert counts["done"] == plan.cells * plan.seeds
    return spent, times[0]


def rerun(folder: Path) -> tuple[float, int]:
    """Seconds until a run of a finished study knows that nothing is missing; its trials."""
    file = folder / "finished.yaml"
    file.write_text(yaml.safe_dump(STUDY, sort_keys=False))
    plan = make_plan(file, [])
    fingerprints = {cell.id: cell.fingerprint for cell in plan.cells}

    def finished(spec: dict[str, Any], report: Any) -> None:
        print_of = fingerprints[spec["cell"]]
        report({"kind": "start", "host": "h", "pid": 1, "device": "cpu", "info": {},
                "fingerprint": print_of})  # fmt: skip
        report(end_message("done", {"final/loss": 1.0}))

    with Ledger.open(folder / "finished.sqlite") as ledger:
        run_plan(plan, ledger, executor=InlineExecutor(finished))
        began = time.perf_counter()
        run_plan(make_plan(file, []), ledger, executor=_Nothing())
        return time.perf_counter() - began, len(plan.trials())


class _Nothing:
    def run(self, jobs: list[Job], recorder: Recorder) -> None:
        raise AssertionError("a finished study has nothing to run")


def logging(folder: Path) -> tuple[float, float]:
    """Share of a trial's time that its messages take, and the trial's seconds."""
    task = {"name": "learnability", "args": {"dim": 64}}
    config = {"model": None, "task": task, "train": None}
    spec = {"id": "c0-s0", "cell": "c0", "seed": 0, "config": config}
    spent = 0.0
    with Ledger.open(folder / "logging.sqlite") as ledger:
        ledger.save_plan(FakePlan(cells=1, seeds=1).to_json())
        ledger.add_trials([spec])
        recorder = Recorder(ledger, lambda event: None)

        def report(message: dict[str, Any]) -> None:
            nonlocal spent
            began = time.perf_counter()
            recorder.message("c0-s0", message)
            spent += time.perf_counter() - began

        began = time.perf_counter()
        run_trial(spec, report)
        whole = time.perf_counter() - began
    return spent / whole, whole


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description="What the platform costs beside the trials.")
    options.add_argument("--json", action="store_true", help="print one JSON object")
    options.add_argument("--trials", type=int, default=200, help="empty trials")
    given = options.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("RAY_worker_niceness", "0")  # else workers starve beside other load
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        share, trial = logging(folder)
        again, trials = rerun(folder)
        whole, start = empty(folder, given.trials)
    found = {"empty_seconds": whole, "rerun_seconds": again, "logging_share": share}
    if given.json:
        facts = {"machine": machine(), **found, "start_seconds": start, "targets": TARGETS}
        print(json.dumps(facts | {"trials": given.trials, "rerun_trials": trials}, indent=2))
        return
    print(f"load {machine()['load']} on {machine()['cores']} cores")
    rows = (
        (f"{given.trials} empty trials through Ray Tune", f"{whole:.1f} s", "40 s for 200"),
        ("  of that, Ray's start", f"{start:.1f} s", ""),
        (f"re-run of {trials:,} finished trials", f"{again:.2f} s", "3 s"),
        (f"logging, of a trial of {trial:.1f} s", f"{100 * share:.2f} %", "2 %"),
    )
    for what, value, target in rows:
        print(f"{what:36}{value:>10}{f'   below {target}' if target else ''}")


if __name__ == "__main__":
    main()
