"""Run what is missing of a plan, and nothing twice."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, Protocol

from ablate.errors import UserError
from ablate.sweep.execution import Event, Executor, Job, Recorder, Spec, one_each
from ablate.sweep.handout import HandOut
from ablate.sweep.ledger import Ledger
from ablate.sweep.records import BROKEN, FINISHED
from ablate.sweep.watch import Limits, Stopped, Watch

Stale = Literal["rerun", "keep", "abort"]

AGAIN = BROKEN | {"missing", "running", "stale", "cancelled"}
CHOSEN = "again"
"""Key of the ledger under which `ablate retry` keeps finished trials that are to run again."""


class Planned(Protocol):
    """The part of `ablate.study.plan.Plan` that a driver needs."""

    def trials(self) -> list[Spec]:
        """Return the trial specs in the order in which they should run."""

    def to_json(self) -> dict[str, Any]:
        """Return the plan as the ledger keeps it."""


def run_plan(
    plan: Planned,
    ledger: Ledger,
    *,
    executor: Executor,
    on_event: Callable[[Event], None] = lambda event: None,
    stale: Stale = "rerun",
    max_trials: int | None = None,
    jobs_of: Callable[[list[Spec]], list[Job]] = one_each,
    only: Collection[str] | None = None,
    limits: Limits = Limits(),
    checkpoint: dict[str, float] | None = None,
    then: Iterator[Job] | None = None,
) -> dict[str, int]:
    """Execute the trials of `plan` that have no result yet; return the ledger's counts.

    The ledger's lock is held meanwhile, unless the caller holds it already. Trials that a dead
    driver left running become ``lost`` and run again, as failed and out-of-memory ones do. One that
    runs out of memory is tried once more at once, its batches in smaller parts.

    Args:
        plan: what is to be in the ledger.
        ledger: the study's ledger, open for writing.
        executor: where trials run.
        on_event: told of every message once it is in the ledger.
        stale: what to do with results that other code made: run them again, keep them, or raise.
        max_trials: run at most this many now.
        jobs_of: puts trials that are to share a worker together.
        only: run no others than these.
        limits: what the run may take.
        checkpoint: how often trials write checkpoints, and how many bytes these may take.
        then: jobs that follow, each asked for when a worker is free; their trials are in the ledger
            by then.

    Raises:
        UserError: a living process drives the study, or results are stale and `stale` is abort.
        Stopped: passed on after the running trials were marked ``cancelled``.
        KeyboardInterrupt: passed on after the running trials were marked ``lost``.
    """
    mine = not ledger.holds_lock
    if mine:
        ledger.acquire_lock("ablate run")
    try:
        ledger.mark_orphans()
        specs = plan.trials()
        ledger.save_plan(plan.to_json())
        ledger.add_trials(specs)
        todo = missing_trials(specs, ledger, stale, only)[:max_trials]
        if todo or then is not None:
            hard = bool(getattr(executor, "isolated", False))
            hand_out = HandOut(ledger.path.parent, checkpoint, limits.trial_seconds, hard)
            following = None if then is None else _Following(then, max_trials, todo)
            watch = Watch(ledger, limits)
            try:
                with watch:
                    _run(todo, ledger, hand_out, executor, jobs_of, on_event, watch, following)
            except KeyboardInterrupt as interrupt:
                # It can strike between a trial's begin and the recorder's note of it.
                state, reason = _left(watch.stopped)
                ledger.mark_orphans(state, reason)
                raise (watch.stopped or interrupt) from None
    finally:
        if mine:
            ledger.release_lock()
    return ledger.counts()


def _run(
    specs: list[Spec],
    ledger: Ledger,
    hand_out: HandOut,
    executor: Executor,
    jobs_of: Callable[[list[Spec]], list[Job]],
    on_event: Callable[[Event], None],
    watch: Watch,
    following: _Following | None = None,
) -> None:
    """Run `specs` and what follows, then once more those that ran out of memory."""
    events = Overseer(ledger, on_event, watch, hand_out.seconds)
    recorder = Recorder(ledger, events)
    try:
        jobs: Iterable[Job] = jobs_of(hand_out.complete(specs, ledger))
        if following is not None:
            more = (hand_out.complete(job, ledger) for job in following)
            specs, jobs = following.handed, itertools.chain(jobs, more)
        executor.run(jobs, recorder)
        if again := [spec for spec in specs if spec["id"] in events.smaller]:
            events.retrying = True
            recorder = Recorder(ledger, events)
            executor.run(one_each(hand_out.complete(again, ledger)), recorder)
    except KeyboardInterrupt:
        state, reason = _left(watch.stopped)
        recorder.lose_running(reason, state=state)
        raise


def _left(why: Stopped | None) -> tuple[str, str]:
    """State and reason of the trials that an interrupted run leaves."""
    return ("lost", "interrupted") if why is None else ("cancelled", str(why))


class _Following:
    """The jobs that follow, until as many trials are handed out as may run; `handed` keeps all."""

    def __init__(self, jobs: Iterator[Job], most: int | None, before: list[Spec]) -> None:
        self.handed = list(before)
        self._jobs, self._most = jobs, most

    def __iter__(self) -> Iterator[Job]:
        while self._most is None or len(self.handed) < self._most:
            job = next(self._jobs, None)
            if job is None:
                return
            job = job if self._most is None else job[: self._most - len(self.handed)]
            self.handed += job
            yield job


class Overseer:
    """Hears every event first: counts failures, and sees what a message alone does not say."""

    def __init__(
        self,
        ledger: Ledger,
        on_event: Callable[[Event], None],
        watch: Watch,
        seconds: float | None,
    ) -> None:
        """Keep who is to be told, and the seconds that an attempt may take."""
        self.smaller: set[str] = set()
        self.retrying = False
        self._ledger, self._on_event, self._watch = ledger, on_event, watch
        self._seconds = seconds
        self._began: dict[str, float] = {}
        self._chosen = set(ledger.get(CHOSEN, []))

    def __call__(self, event: Event) -> None:
        """Take one event and pass it on."""
        if event.kind == "begin":
            self._began[event.trial_id] = time.monotonic()
            if event.trial_id in self._chosen:
                self._chosen.discard(event.trial_id)
                self._ledger.set(CHOSEN, sorted(self._chosen))
        elif event.kind == "end":
            event = self._judged(event)
            retried = bool(event.message.get("retry")) and not self.retrying
            if retried:
                self.smaller.add(event.trial_id)
            elif event.message["state"] in BROKEN:
                self._watch.failed()
        self._on_event(event)

    def _judged(self, event: Event) -> Event:
        """A worker that ended its process after its time was not lost."""
        spent = time.monotonic() - self._began.get(event.trial_id, time.monotonic())
        if event.message["state"] != "lost" or self._seconds is None or spent < self._seconds:
            return event
        error = f"a step hung: its worker was ended after {spent:.0f} s, the limit is"
        message = {**event.message, "state": "timed_out", "error": f"{error} {self._seconds:g} s"}
        self._ledger.mark(event.trial_id, message["state"], message["error"])
        return replace(event, message=message)


def missing_trials(
    specs: list[Spec],
    ledger: Ledger,
    stale: Stale = "rerun",
    only: Collection[str] | None = None,
) -> list[Spec]:
    """Return the specs that have to run: no result, a broken one, or a stale one by `stale`.

    The ledger learns which results are stale; kept ones stand, listed under ``kept_stale``. Trials
    chosen to run again are among them, whatever their state.

    Raises:
        UserError: there are stale results and `stale` is ``abort``.
    """
    old = stale_trials(ledger)
    if old and stale == "abort":
        raise UserError(
            f"{len(old)} finished trials were made by other code than today's, "
            f"{old[0]} for one: use --stale rerun or --stale keep."
        )
    ledger.set("kept_stale", old if stale == "keep" else [])
    ledger.mark_stale([] if stale == "keep" else old)
    again = {record.trial_id for record in ledger.trials() if record.state in AGAIN}
    again |= set(ledger.get(CHOSEN, []))
    if only is not None:
        again &= set(only)
    return [spec for spec in specs if spec["id"] in again]


def stale_trials(ledger: Ledger) -> list[str]:
    """Return the planned trials with a result whose code is not that of the ledger's plan."""
    plan = ledger.plan() or {"cells": []}
    today = {cell["id"]: cell.get("fingerprint") for cell in plan["cells"]}
    return [
        record.trial_id
        for record in ledger.trials()
        if record.in_plan
        and record.state in FINISHED | {"stale"}
        and record.fingerprint is not None
        and today.get(record.cell_id) not in (None, record.fingerprint)
    ]
