"""Run several trials of one shape as one program: the lanes of a pack.

Each lane is a trial like any other: its own start, rows and end, its own divergence. What a pack
shares is the worker's time. A lane's seconds are its share: while n lanes run, each is charged one
n-th, so that the shares add up to the pack's time. Memory and CPU time of the process belong to no
lane, and are left out. A pack writes no checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from ablate.experiments.catalogue import make_task
from ablate.experiments.task import Draws, MemoryTask, PackableTask, Row, Task
from ablate.trial.guard import Stopped
from ablate.trial.log import TrialLog, log_path
from ablate.trial.metrics import MetricError
from ablate.trial.run import Message, Trial, facts_of, logged
from ablate.trial.streams import generator
from ablate.trial.train import Diverged, is_trained

Burst = Mapping[str, Message]


def run_pack(specs: Sequence[dict[str, Any]], report: Callable[[Burst], None]) -> None:
    """Run trials that `ablate.trial.lanes` finds alike, side by side; it raises no failure.

    A lane that diverges or is cancelled ends alone. What goes wrong with the program as a whole
    ends every lane that runs; those out of memory ask to be tried alone.

    Args:
        specs: as `ablate.trial.run.run_trial` takes them.
        report: takes the messages, those of one moment together.
    """
    pack = Pack(report)
    with ExitStack() as logs:
        for spec in specs:
            pack.add(spec, logs, len(specs))
        try:
            with pack.trials[0].guard.watching():
                config = specs[0]["config"]
                if is_trained(config):
                    from ablate.trial.packed_models import train_lanes

                    train_lanes(pack)
                elif config.get("model") is None:
                    _learn(pack)
                else:
                    _teach(pack)
            pack.finish(None)
        except _AllEnded:
            pass
        except Exception as problem:
            pack.finish(problem)


class _AllEnded(Exception):
    """No lane is left that wants to go on."""


class Pack:
    """The trials of a pack, their messages and the time that they share."""

    def __init__(self, report: Callable[[Burst], None]) -> None:
        self.trials: list[Trial] = []
        self._report = report
        self._waiting: dict[str, Message] = {}
        self._ticked = time.perf_counter()

    def add(self, spec: dict[str, Any], logs: ExitStack, lanes: int) -> None:
        """Take one trial on; `logs` closes its log."""
        files = spec.get("files") or {}
        log = TrialLog(log_path(Path(files["study"]), spec["id"])) if files else None
        if log is not None:
            logs.callback(log.close)
        trial = Trial(spec, logged(partial(self._post, spec["id"]), log), lanes=lanes)
        if trial.guard.seconds is not None:
            trial.guard.seconds *= lanes  # the limit is on its share
        self.trials.append(trial)

    def running(self) -> list[int]:
        """The lanes that have not ended."""
        return [lane for lane, trial in enumerate(self.trials) if not trial.ended]

    def tick(self) -> float:
        """Charge the time since the last call to the running lanes; what each was charged."""
        now = time.perf_counter()
        running = self.running()
        share = (now - self._ticked) / max(1, len(running))
        for lane in running:
            self.trials[lane].share += share
        self._ticked = now
        return share

    def attempt(self, lane: int, act: Callable[[], None]) -> None:
        """Do something that may end the lane."""
        try:
            act()
            self.trials[lane].check()
        except (Diverged, Stopped, MetricError) as problem:
            self.trials[lane].finish(problem)

    def send(self) -> None:
        """Pass on what has been reported.

        Raises:
            _AllEnded: every lane has ended.
        """
        self._flush()
        if not self.running():
            raise _AllEnded

    def finish(self, problem: Exception | None) -> None:
        """End all lanes that run, and send their messages."""
        self.tick()
        for lane in self.running():
            self.trials[lane].finish(problem)
        self._flush()

    def _post(self, trial_id: str, message: Message) -> None:
        if trial_id in self._waiting:
            self._flush()
        self._waiting[trial_id] = message

    def _flush(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, {}
            self._report(waiting)


def _start(pack: Pack) -> list[Task]:
    """Start every lane; their tasks, which bring what learns or teach a memory."""
    tasks = []
    for trial in pack.trials:
        task = trial.spec["config"]["task"]
        tasks.append(make_task(task["name"], task["args"]))
        trial.start(trial.costs(tasks[-1]), facts_of(tasks[-1]))
    pack.send()
    return tasks


def _learn(pack: Pack) -> None:
    """Lanes of a task that brings its own learner."""
    tasks = [cast(PackableTask, task) for task in _start(pack)]

    @cache
    def streams(seed: int) -> Callable[[str], np.random.Generator]:
        return lambda name: generator(seed, name)

    seeds = [int(trial.spec["seed"]) for trial in pack.trials]
    tasks[0].run_lanes(tasks, [streams(seed) for seed in seeds], partial(_pass_on, pack))


def _teach(pack: Pack) -> None:
    """Lanes of memories that learn alone, all of one model."""
    tasks = [cast(MemoryTask, task) for task in _start(pack)]

    @cache
    def draws(seed: int) -> Draws:
        return cache(pack.trials[0].draws(seed))

    seeds = [int(trial.spec["seed"]) for trial in pack.trials]
    tasks[0].learn(tasks, [draws(seed) for seed in seeds], partial(_pass_on, pack))


def _pass_on(pack: Pack, rows: Mapping[int, Row]) -> None:
    """Report the rows of lanes that go on, each with its lane's time."""
    pack.tick()
    for lane, row in rows.items():
        trial = pack.trials[lane]
        if not trial.ended:
            pack.attempt(lane, partial(trial.learner_row, replace(row, seconds=trial.share)))
    pack.send()
