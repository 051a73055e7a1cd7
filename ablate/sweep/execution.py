"""What the driver and its executors say to each other.

An executor runs jobs somewhere and passes their trials' messages on; the recorder writes each to
the ledger, in the driver's process, and tells whoever listens. A job is one trial, or several that
share a worker: a pack. Each trial of a pack begins, reports and ends for itself.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ablate.errors import Failure
from ablate.sweep.ledger import Ledger
from ablate.sweep.records import ENDS

Spec = dict[str, Any]
Message = dict[str, Any]
Job = list[Spec]
"""What one worker is given at a time: one trial, or the several of a pack."""
RunTrial = Callable[[Spec, Callable[[Message], None]], None]
Burst = Mapping[str, Message]
"""One message of each of some trials of a pack, by trial id."""
RunPack = Callable[[Job, Callable[[Burst], None]], None]


@dataclass(frozen=True)
class Event:
    """A message that is now in the ledger; kind is ``begin``, ``start``, ``row`` or ``end``.

    ``again`` ends an attempt that is followed by another one.
    """

    kind: str
    trial_id: str
    message: Message


class Executor(Protocol):
    """Runs jobs; neither a trial's own failure nor the loss of a job may end the others."""

    def run(self, jobs: Iterable[Job], recorder: Recorder) -> None:
        """Run all of `jobs`, telling `recorder` of each message as it comes.

        An iterator is asked for its next job when that can run: it may depend on earlier ones.
        """


class Recorder:
    """Writes what trials report to the ledger, then passes it on as events."""

    def __init__(self, ledger: Ledger, on_event: Callable[[Event], None]) -> None:
        self._ledger = ledger
        self._on_event = on_event
        self._running: dict[str, int] = {}
        self._ended: set[str] = set()

    def begin(self, trial_id: str) -> None:
        """Open an attempt, unless this run has begun one."""
        if trial_id in self._running or trial_id in self._ended:
            return
        self._running[trial_id] = self._ledger.begin(trial_id)
        self._on_event(Event("begin", trial_id, {}))

    def message(self, trial_id: str, message: Message) -> None:
        """Record one message; one that cannot be read fails the trial, never the sweep."""
        self.begin(trial_id)
        if trial_id in self._ended:
            return
        try:
            self._ledger.record(trial_id, self._running[trial_id], message)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._close(trial_id, "failed", f"the trial sent an unreadable message: {error!r}")
            return
        if message["kind"] == "end":
            self._ended.add(trial_id)
            del self._running[trial_id]
        self._on_event(Event(message["kind"], trial_id, message))

    def lost(self, trial_id: str, error: str) -> None:
        """Record that whatever ran the trial is gone; nothing happens if it had ended."""
        if trial_id not in self._ended:
            self.begin(trial_id)
            self._close(trial_id, "lost", error)

    def lost_but_again(self, trial_id: str, error: str) -> None:
        """Record an unfinished trial as lost; its next `begin` is another attempt."""
        if trial_id in self._running:
            self._ledger.mark(trial_id, "lost", error)
            del self._running[trial_id]
            self._on_event(Event("again", trial_id, {"kind": "again", "error": error}))

    @property
    def failure(self) -> Failure | None:
        """What kept the ledger from being written; an executor that was stopped by it says so."""
        return self._ledger.failure

    def unfinished(self, job: Job) -> Job:
        """Return the trials of `job` that have not ended in this run."""
        return [spec for spec in job if spec["id"] not in self._ended]

    def lose_running(self, error: str, *, state: str = "lost") -> None:
        """Record every trial that has begun and not ended as lost, or as ``cancelled``."""
        for trial_id in list(self._running):
            self._close(trial_id, state, error)

    def _close(self, trial_id: str, state: str, error: str) -> None:
        self._ledger.mark(trial_id, state, error)
        self._ended.add(trial_id)
        del self._running[trial_id]
        self._on_event(Event("end", trial_id, {"kind": "end", "state": state, "error": error}))


def one_each(specs: list[Spec]) -> list[Job]:
    """Return one job for each trial: no packs."""
    return [[spec] for spec in specs]


def run_job(
    job: Job, report: Callable[[Burst], None], *, run: RunTrial | None, pack: RunPack | None
) -> None:
    """Run one job in this process; each of its trials ends once.

    Args:
        job: its trials.
        report: told of each message.
        run: runs a lone trial, `ablate.trial.run.run_trial` by default.
        pack: runs several trials: `ablate.trial.packed.run_pack` by default, or a given `run` in
            turn.
    """
    if run is None and pack is None and len(job) > 1:
        from ablate.trial.packed import run_pack as pack
    if run is None:
        from ablate.trial.run import run_trial

        run = run_trial
    if len(job) == 1 or pack is None:
        for spec in job:
            run_safely(run, spec, _tagged(spec["id"], report))
    else:
        run_pack_safely(pack, job, report)


def _tagged(trial_id: str, report: Callable[[Burst], None]) -> Callable[[Message], None]:
    return lambda message: report({trial_id: message})


def run_safely(run: RunTrial, spec: Spec, report: Callable[[Message], None]) -> None:
    """Run one trial so that an end message always comes, even if `run` breaks its promise."""

    def run_one(job: Job, burst: Callable[[Burst], None]) -> None:
        run(job[0], _tagged(job[0]["id"], burst))

    run_pack_safely(run_one, [spec], lambda burst: report(burst[spec["id"]]))


def run_pack_safely(pack: RunPack, job: Job, report: Callable[[Burst], None]) -> None:
    """Run several trials so that each gets its end message, even if `pack` breaks its promise."""
    running = dict.fromkeys(spec["id"] for spec in job)

    def pass_on(burst: Burst) -> None:
        report(burst)
        for trial_id, message in burst.items():
            if message.get("kind") == "end" and message.get("state") in ENDS:
                running.pop(trial_id, None)

    try:
        pack(job, pass_on)
        problem, trace = "the trial returned without an end message", None
    except Exception as error:
        problem, trace = f"{type(error).__name__}: {error}", traceback.format_exc()
    if running:
        end = {"kind": "end", "state": "failed", "error": problem, "traceback": trace}
        report({trial_id: end for trial_id in running})
