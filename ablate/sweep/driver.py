"""Run what is missing of a plan, and nothing twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol

from ablate.errors import UserError
from ablate.sweep.execution import Event, Executor, Job, Recorder, Spec, one_each
from ablate.sweep.ledger import Ledger
from ablate.sweep.records import BROKEN, FINISHED

Stale = Literal["rerun", "keep", "abort"]


AGAIN = BROKEN | {"missing", "running", "stale"}


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
) -> dict[str, int]:
    """Execute the trials of `plan` that have no result yet; return the ledger's counts.

    The ledger's lock is held meanwhile, unless the caller holds it already. Trials that a dead
    driver left running become ``lost`` and run again, as failed and out-of-memory ones do.

    Args:
        plan: what is to be in the ledger.
        ledger: the study's ledger, open for writing.
        executor: where trials run.
        on_event: told of every message once it is in the ledger.
        stale: what to do with results that other code made: run them again, keep them, or raise.
        max_trials: run at most this many now.
        jobs_of: puts trials that are to share a worker together.

    Raises:
        UserError: a living process drives the study, or results are stale and `stale` is abort.
        KeyboardInterrupt: passed on after the running trials were marked ``lost``.
    """
    mine = not ledger.holds_lock
    if mine:
        ledger.acquire_lock("ablate run")
    recorder = Recorder(ledger, on_event)
    try:
        ledger.mark_orphans()
        specs = plan.trials()
        ledger.save_plan(plan.to_json())
        ledger.add_trials(specs)
        if todo := missing_trials(specs, ledger, stale)[:max_trials]:
            executor.run(jobs_of(todo), recorder)
    except KeyboardInterrupt:
        recorder.lose_running("interrupted")
        raise
    finally:
        if mine:
            ledger.release_lock()
    return ledger.counts()


def missing_trials(specs: list[Spec], ledger: Ledger, stale: Stale = "rerun") -> list[Spec]:
    """Return the specs that have to run: no result, a broken one, or a stale one by `stale`.

    The ledger learns which results are stale; kept ones stand, listed under ``kept_stale``.

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
