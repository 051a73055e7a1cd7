"""Run one trial from its plain spec and report plain messages: start, some rows, end."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import torch

from ablate.components.language_model import LanguageModel
from ablate.errors import Failure, UserError
from ablate.experiments.catalogue import make_task
from ablate.experiments.task import Draws, LearnerTask, MemoryTask, Row, SequenceTask, Task
from ablate.trial.backend import TORCH, build_for
from ablate.trial.checkpoint import Checkpoint, folder_of
from ablate.trial.fingerprint import fingerprint
from ablate.trial.guard import Guard, Stopped, request_path
from ablate.trial.log import TrialLog, captured, log_path
from ablate.trial.memory import is_out_of_memory, peak_memory, reset_peak_memory
from ablate.trial.metrics import non_finite, to_floats
from ablate.trial.online import cost_of, draws_of
from ablate.trial.revision import revision
from ablate.trial.streams import generator
from ablate.trial.train import Diverged, Loop, Progress, TrainConfig, train

Message: TypeAlias = dict[str, Any]
Report: TypeAlias = Callable[[Message], None]
Keep: TypeAlias = Callable[[LanguageModel], None]

RESULTS = ("done", "diverged", "pruned")
"""States with a result that stands; it needs no checkpoint any more."""
COUNTED = ("parameters", "state_bytes", "flops_per_token")


def run_trial(spec: dict[str, Any], report: Report, *, keep: Keep | None = None) -> None:
    """Run the trial of `spec` and report a start, some rows and one end; it raises no failure.

    Args:
        spec: ``id``, ``cell``, ``seed`` and ``config`` (``model``, ``task``, ``train``); also
            ``resources`` (``cpus``, ``gpus``), ``allow`` (packages that may hold components),
            ``cost``, where the plan has counted already, and what the driver adds
            (`ablate.sweep.handout`): ``files``, ``limits``, ``micro_batches``.
        report: takes each message, a dict of plain values. The end's state is ``done``,
            ``diverged``, ``oom``, ``timed_out``, ``cancelled`` or ``failed``; an ``oom`` trial that
            may do better in smaller parts says so under ``retry``.
        keep: takes the model once it is trained, if anybody wants it.
    """
    files = spec.get("files") or {}
    log = TrialLog(log_path(Path(files["study"]), spec["id"])) if files else None
    try:
        with captured(log):
            _run(Trial(spec, logged(report, log), keep=keep))
    finally:
        if log is not None:
            log.close()


def _run(trial: Trial) -> None:
    problem = None
    try:
        with trial.guard.watching():
            trial.run()
    except Exception as error:
        problem = error
    finally:
        trial.let_go()
    trial.finish(problem)


def logged(report: Report, log: TrialLog | None) -> Report:
    """Pass messages on, and write each to the log as a line."""
    if log is None:
        return report

    def tell(message: Message) -> None:
        match message["kind"]:
            case "start":
                log.line(f"started on {message['host']}, process {message['pid']}")
            case "row":
                values = "  ".join(f"{k} {v:.6g}" for k, v in message["metrics"].items())
                log.line(f"step {message['step']}  {values}")
            case "end":
                for warning in message["warnings"]:
                    log.line(f"note: {warning}")
                log.write(message["traceback"] or "")
                log.line(": ".join(filter(None, (message["state"], message["error"]))))
        report(message)

    return tell


@dataclass
class Trial:
    """One trial under way: what it has reported so far.

    As one of several lanes of a pack (`ablate.trial.packed`), `share` is its part of the pack's
    time, in seconds.
    """

    spec: dict[str, Any]
    report: Report
    began: float = field(default_factory=time.perf_counter)
    cpu_began: float = field(default_factory=time.process_time)
    started: bool = False
    last: dict[str, float] = field(default_factory=dict)
    last_row: Row | None = None
    warnings: list[str] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    rows_of_batch: int = 1
    lanes: int = 1
    share: float = 0.0
    ended: bool = False
    keep: Keep | None = None
    backend: dict[str, str] = field(default_factory=lambda: dict(TORCH))

    def __post_init__(self) -> None:
        resources = self.spec.get("resources") or {}
        self.allow = tuple(self.spec.get("allow") or ())
        self.micro_batches = int(self.spec.get("micro_batches") or 1)
        wants_gpu = float(resources.get("gpus") or 0) > 0
        self.device = "cuda" if wants_gpu and torch.cuda.is_available() else "cpu"
        if wants_gpu and self.device == "cpu":
            self.warnings.append("resources.gpus asks for a GPU, torch sees none: ran on the CPU")
        limits, files = self.spec.get("limits") or {}, self.spec.get("files")
        request = request_path(Path(files["study"]), self.spec["id"]) if files else None
        self.guard = Guard(request, limits.get("seconds"), bool(limits.get("hard")))
        torch.set_num_threads(max(1, int(resources.get("cpus") or 1)))
        reset_peak_memory(self.device)

    @cached_property
    def fingerprint(self) -> str:
        """That of the code which this trial runs."""
        return fingerprint(self.spec["config"], allow=self.allow)

    def run(self) -> None:
        """Build and learn.

        Raises:
            Diverged: a loss or metric is not finite.
            Stopped: the trial's time is up, or somebody wants it to stop.
        """
        self.check()
        config, seed = self.spec["config"], int(self.spec["seed"])
        task = make_task(config["task"]["name"], config["task"]["args"])
        if config.get("model") is None:
            self.start(self.costs(task), facts_of(task))
            learner = cast(LearnerTask, task)
            learner.run(lambda name: generator(seed, name), self.learner_row)
            return
        if isinstance(task, MemoryTask):
            self.start(self.costs(task), facts_of(task))
            task.learn([task], [self.draws(seed)], lambda rows: self.learner_row(rows[0]))
            return
        sequences = cast(SequenceTask, task)
        self.rows_of_batch = sequences.batch
        model = self.build(sequences.vocab)
        costs = self.costs(task)
        self.checkpoint = self.make_checkpoint()

        def begin(loop: Loop) -> Progress:
            progress = self.checkpoint.restore(loop) if self.checkpoint else Progress()
            self.start(costs, facts_of(task))
            return progress

        train(
            model,
            sequences,
            TrainConfig(**(config.get("train") or {})),
            seed=seed,
            report=self.row,
            warn=self.warnings.append,
            micro_batches=self.micro_batches,
            begin=begin,
            after_step=self.after_step,
        )
        if self.keep is not None:
            self.keep(model)

    def draws(self, seed: int) -> Draws:
        """What chance gives a memory that learns alone."""
        model = self.spec["config"]["model"]
        return draws_of(model, seed, device=self.device, allow=self.allow)

    def costs(self, task: Task) -> dict[str, Any]:
        """What the plan has counted of the model, or what is counted now; nothing without one."""
        model = self.spec["config"].get("model")
        if model is None:
            return {}
        counted = self.spec.get("cost") or asdict(cost_of(model, task, allow=self.allow))
        return {key: counted[key] for key in COUNTED}

    def build(self, vocab: int) -> LanguageModel:
        """The trial's model; keep what runs it, and say where that is not what was asked for."""
        built = build_for(self.spec, vocab, self.device)
        self.backend = built.facts
        self.warnings += built.warnings
        return built.model

    def make_checkpoint(self) -> Checkpoint | None:
        """The trial's checkpoint, if the driver wants one."""
        files = self.spec.get("files") or {}
        if not files.get("checkpoint"):
            return None
        config = json.dumps(self.spec["config"], sort_keys=True, default=str)
        return Checkpoint(
            folder=folder_of(Path(files["study"]), self.spec["id"]),
            identity={
                "trial": self.spec["id"],
                "configuration": hashlib.sha256(config.encode()).hexdigest()[:12],
                "code": self.fingerprint,
                "torch": torch.__version__,
                "device": self.device,
                "backend": self.backend["backend"],
            },
            every=float(files["checkpoint"]["every"]),
            keep=float(files["checkpoint"]["keep"]),
            attempt=int(files["attempt"]),
            warn=self.warnings.append,
        )

    def after_step(self, loop: Loop, progress: Progress) -> None:
        """Save a checkpoint when one is due, and stop when the trial is to stop.

        Raises:
            Stopped: see `Guard`.
        """
        if progress.step == loop.steps:
            return
        stop, point = self.guard.wanted(), self.checkpoint
        if point is not None and (stop or point.due()):
            point.save(loop, progress, warnings=self.all_warnings(), spent=self.seconds())
        if stop:
            raise stop

    def check(self) -> None:
        """Stop if the trial is to stop.

        Raises:
            Stopped: see `Guard`.
        """
        if stop := self.guard.wanted():
            raise stop

    def seconds(self) -> float:
        """Since the trial's start, with what the attempts took that it goes on from."""
        if self.lanes > 1:
            return self.share
        before = self.checkpoint.spent if self.checkpoint else 0.0
        return before + time.perf_counter() - self.began

    def all_warnings(self) -> list[str]:
        """Those of this attempt and of the attempts that it goes on from, each once."""
        carried = self.checkpoint.carried if self.checkpoint else []
        return list(dict.fromkeys([*carried, *self.warnings]))

    def start(self, facts: dict[str, Any], task_info: dict[str, Any]) -> None:
        """Say where and with what this trial runs."""
        self.started = True
        versions = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "threads": torch.get_num_threads(),
            **self.backend,
        }
        if commit := revision():
            versions["commit"] = commit
        if self.micro_batches > 1:
            versions["micro_batches"] = self.micro_batches
        if self.lanes > 1:
            versions["lanes"] = self.lanes
        if self.checkpoint and self.checkpoint.resumed:
            versions["resumed"] = self.checkpoint.resumed
        self.report(
            {
                "kind": "start",
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "device": self.device_name(),
                "fingerprint": self.fingerprint,
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
            Stopped: the trial's time is up, or somebody wants it to stop.
        """
        metrics, gaps = to_floats(row.metrics)
        self.warnings += [f"metric '{name}' was None: a gap in its curve" for name in gaps]
        previous, at = self.last, self.last_row.step if self.last_row else 0
        self.row(Row(row.step, row.tokens, row.seconds, metrics))
        if names := non_finite(metrics):
            raise Diverged(row.step, names, previous, at)
        self.check()

    def finish(self, problem: Exception | None) -> None:
        """End as `problem` says, None for well; no message follows."""
        state, error, trace = "done", None, None
        match problem:
            case None:
                pass
            case Diverged():
                state, error, self.last = "diverged", str(problem), problem.last
            case Stopped():
                state, error = problem.state, str(problem)
            case UserError() | Failure():  # says all; where it was raised helps nobody
                state, error = "failed", f"{type(problem).__name__}: {problem}"
            case _:
                state = "oom" if is_out_of_memory(problem) else "failed"
                error = f"{type(problem).__name__}: {problem}"
                trace = "".join(traceback.format_exception(problem))
        self.end(state, error, trace)
        self.ended = True
        if state in RESULTS:
            self.forget()

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
            "seconds": self.seconds(),
            "tokens_per_second": tokens / learning if learning else 0.0,
        }
        if self.lanes == 1:  # the process's figures are the trial's only if it ran alone
            summary["cpu_seconds"] = time.process_time() - self.cpu_began
            summary["peak_memory_bytes"] = float(peak_memory(self.device))
        message = {
            "kind": "end",
            "state": state,
            "error": error,
            "traceback": trace,
            "summary": summary,
            "warnings": self.all_warnings(),
        }
        smaller = min(2 * self.micro_batches, self.rows_of_batch)
        if state == "oom" and self.lanes > 1:
            message["retry"] = {"alone": True}
        elif state == "oom" and smaller > self.micro_batches:
            message["retry"] = {"micro_batches": smaller}
        self.report(message)

    def let_go(self) -> None:
        """Let another process go on from the checkpoint."""
        if self.checkpoint is not None:
            self.checkpoint.close()

    def forget(self) -> None:
        """Delete the checkpoint: the trial has its result."""
        if self.checkpoint is not None:
            self.checkpoint.remove()


def facts_of(task: Task) -> dict[str, Any]:
    """What there is to know about a task's data, to be logged once."""
    info = task.info()  # first: it makes data ready, which gives them their identity
    return {"data": task.data_identity(), **info}
