"""Run one trial from its plain spec and report plain messages: start, some rows, end."""

from __future__ import annotations

import os
import platform
import resource
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np
import torch

from ablate.experiments.catalogue import make_task
from ablate.experiments.task import LearnerTask, Row, SequenceTask, Task
from ablate.trial.build import build_model
from ablate.trial.cost import measure_cost
from ablate.trial.fingerprint import fingerprint
from ablate.trial.metrics import non_finite, to_floats
from ablate.trial.revision import revision
from ablate.trial.streams import generator
from ablate.trial.train import Diverged, TrainConfig, train

Message: TypeAlias = dict[str, Any]
Report: TypeAlias = Callable[[Message], None]

COUNTED = ("parameters", "state_bytes", "flops_per_token")


def run_trial(spec: dict[str, Any], report: Report) -> None:
    """Run the trial of `spec` and report a start, some rows and one end; it raises no failure.

    Args:
        spec: ``id``, ``cell``, ``seed`` and ``config`` (``model``, ``task``, ``train``); also
            ``resources`` (``cpus``, ``gpus``), ``allow`` (packages that may hold components) and
            ``cost``, where the plan has counted already.
        report: takes each message, a dict of plain values. The end's state is ``done``,
            ``diverged``, ``oom`` or ``failed``.
    """
    trial = _Trial(spec, report)
    state, error, trace = "done", None, None
    try:
        trial.run()
    except Diverged as problem:
        state, error = "diverged", str(problem)
        trial.last = problem.last
    except Exception as problem:
        state = "oom" if _is_out_of_memory(problem) else "failed"
        error = f"{type(problem).__name__}: {problem}"
        trace = traceback.format_exc()
    trial.end(state, error, trace)


@dataclass
class _Trial:
    """One trial under way: what it has reported so far."""

    spec: dict[str, Any]
    report: Report
    began: float = field(default_factory=time.perf_counter)
    started: bool = False
    last: dict[str, float] = field(default_factory=dict)
    last_row: Row | None = None
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        resources = self.spec.get("resources") or {}
        self.allow = tuple(self.spec.get("allow") or ())
        wants_gpu = float(resources.get("gpus") or 0) > 0
        self.device = "cuda" if wants_gpu and torch.cuda.is_available() else "cpu"
        if wants_gpu and self.device == "cpu":
            self.warnings.append("resources.gpus asks for a GPU, torch sees none: ran on the CPU")
        torch.set_num_threads(max(1, int(resources.get("cpus") or 1)))
        _reset_peak_memory(self.device)

    def run(self) -> None:
        """Build and learn.

        Raises:
            Diverged: a loss or metric is not finite.
        """
        config, seed = self.spec["config"], int(self.spec["seed"])
        task = make_task(config["task"]["name"], config["task"]["args"])
        if config.get("model") is None:
            self.start({}, _facts(task))
            learner = cast(LearnerTask, task)
            learner.run(lambda name: generator(seed, name), self.learner_row)
            return
        sequences = cast(SequenceTask, task)
        model = build_model(
            config["model"], sequences.vocab, seed=seed, device=self.device, allow=self.allow
        )
        facts = self.spec.get("cost") or asdict(
            measure_cost(config["model"], sequences.vocab, sequences.context, allow=self.allow)
        )
        self.start({key: facts[key] for key in COUNTED}, _facts(task))
        train_config = TrainConfig(**(config.get("train") or {}))
        train(model, sequences, train_config, seed=seed, report=self.row, warn=self.warnings.append)

    def start(self, facts: dict[str, Any], task_info: dict[str, Any]) -> None:
        """Say where and with what this trial runs."""
        self.started = True
        versions = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "threads": torch.get_num_threads(),
            "backend": "torch",
        }
        if commit := revision():
            versions["commit"] = commit
        self.report(
            {
                "kind": "start",
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "device": self.device_name(),
                "fingerprint": fingerprint(self.spec["config"], allow=self.allow),
                "info": {**facts, **versions, **task_info},
            }
        )

    def device_name(self) -> str:
        """The processor, by name for a GPU."""
        return torch.cuda.get_device_name() if self.device == "cuda" else "cpu"

    def row(self, row: Row) -> None:
        """Pass one row on."""
        self.last_row = row
        self.last = dict(row.metrics)
        self.report(
            {
                "kind": "row",
                "step": row.step,
                "tokens": row.tokens,
                "seconds": row.seconds,
                "metrics": row.metrics,
            }
        )

    def learner_row(self, row: Row) -> None:
        """Pass on a row of a task that learns by itself, and stop it when it diverges.

        Raises:
            Diverged: a metric is not finite.
        """
        metrics, gaps = to_floats(row.metrics)
        self.warnings += [f"metric '{name}' was None: a gap in its curve" for name in gaps]
        previous, at = self.last, self.last_row.step if self.last_row else 0
        self.row(Row(row.step, row.tokens, row.seconds, metrics))
        if names := non_finite(metrics):
            raise Diverged(row.step, names, previous, at)

    def end(self, state: str, error: str | None, trace: str | None) -> None:
        """Sum up; the last message of the trial."""
        if not self.started:
            self.report(
                {"kind": "start", "host": socket.gethostname(), "pid": os.getpid(),
                 "device": self.device, "fingerprint": None, "info": {}}
            )  # fmt: skip
        row = self.last_row
        tokens, learning = (row.tokens, row.seconds) if row else (0, 0.0)
        summary = {
            **self.last,
            "tokens": float(tokens),
            "seconds": time.perf_counter() - self.began,
            "tokens_per_second": tokens / learning if learning else 0.0,
            "peak_memory_bytes": float(_peak_memory(self.device)),
        }
        self.report(
            {
                "kind": "end",
                "state": state,
                "error": error,
                "traceback": trace,
                "summary": summary,
                "warnings": self.warnings,
            }
        )


def _facts(task: Task) -> dict[str, Any]:
    return {"data": task.data_identity(), **task.info()}


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _reset_peak_memory(device: str) -> None:
    """Forget the peak of earlier trials in this process, where the system lets us."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass


def _peak_memory(device: str) -> int:
    """Most bytes in use at once: allocated on the GPU, or resident in this process on the CPU."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    try:
        with open("/proc/self/status") as file:
            peak = next(line for line in file if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024
    except (OSError, StopIteration):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if platform.system() == "Darwin" else most * 1024
