"""`ablate status`: how far a study is, from its ledger alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ablate.analysis.formatting import several
from ablate.commands.ledgers import open_ledger, study_name, trial_ids
from ablate.commands.terminal import OK, console, first_line, print_json
from ablate.errors import UserError
from ablate.sweep.ledger import Ledger
from ablate.sweep.lock import LockHolder
from ablate.sweep.records import BROKEN, STATES, TrialRecord
from ablate.trial.log import log_path, tail

_SHOWN = 10
_TRACE_LINES = 3
_LOG_LINES = 20
_LOG_SHOWN = 5


def status_command(
    study: str, *, trial: str | None = None, log: bool = False, as_json: bool = False
) -> int:
    """Print counts by state, in all and per cell, and why trials failed; or all about one trial."""
    if log and trial is None:
        raise UserError("--log needs --trial ID: the trial whose log is wanted.")
    with open_ledger(study) as ledger:
        folder = ledger.path.parent
        if trial is not None:
            (trial_id,) = trial_ids(ledger, [trial])
            path = log_path(folder, trial_id)
            return _show_log(path) if log else _show_trial(ledger, trial_id, path, as_json)
        plan = ledger.plan()
        if plan is None:
            raise UserError(f"study '{study_name(study)}' has not been planned yet: run it.")
        holder = ledger.lock_holder()
        records = _as_seen(ledger.trials(), holder)
        kept, packing = ledger.get("kept_stale", []), ledger.get("packing", [])
        pushed = _pushed(ledger.get("tracker_state", {}))
    status = summarise(plan, records, holder)
    for failure in status["failures"]:
        failure["log"] = tail(log_path(folder, failure["trial"]), _LOG_LINES)
    status["kept_stale"], status["packing"] = kept, packing
    status["tracker"] = pushed
    if as_json:
        print_json(status)
    else:
        _show(status, console())
    return OK


def _show_log(path: Path) -> int:
    lines = tail(path, 0)
    if not lines:
        raise UserError(f"no log at {path}: the trial has not run, or ran on another machine.")
    print("\n".join(lines))
    return OK


def _show_trial(ledger: Ledger, trial_id: str, path: Path, as_json: bool) -> int:
    """Print the record of one trial, and the end of its log."""
    record = ledger.trial(trial_id)
    facts = asdict(record)
    facts["log_file"], facts["log"] = str(path), tail(path, _LOG_LINES)
    if as_json:
        print_json(facts)
        return OK
    out = console()
    cell = _label(ledger.plan() or {"cells": []}, record)
    out.print(f"{cell} seed {record.seed}: {record.state}", style="bold", markup=False)
    for name in ("trial_id", "attempt", "host", "device", "error"):
        if facts[name] is not None:
            out.print(f"{name:12}{facts[name]}", markup=False, soft_wrap=True)
    backends = sorted(name for name in record.info if name.startswith("backend"))
    for name in (*backends, "resumed", "micro_batches", "warnings"):
        if name in record.info:
            out.print(f"{name:11} {record.info[name]}", markup=False, soft_wrap=True)
    width = max(map(len, record.summary), default=0) + 2
    for name, value in record.summary.items():
        out.print(f"{name:{width}}{value:.6g}", markup=False)
    out.print(f"log         {path}", markup=False, soft_wrap=True)
    for line in facts["log"]:
        out.print(f"    {line}", style="dim", markup=False)
    return OK


def summarise(
    plan: dict[str, Any], records: list[TrialRecord], holder: LockHolder | None
) -> dict[str, Any]:
    """Return the status of a study as plain values: ``counts``, ``cells``, ``failures``, ..."""
    planned = [record for record in records if record.in_plan]
    driver = holder if holder is not None and holder.alive() else None
    return {
        "study": plan["study"],
        "counts": count_states(planned),
        "trials": len(planned),
        "outside_plan": len(records) - len(planned),
        "driver": driver and driver.to_json(),
        "cells": [
            {
                "id": cell["id"],
                "label": cell["label"],
                "counts": count_states(r for r in planned if r.cell_id == cell["id"]),
            }
            for cell in plan["cells"]
        ],
        "failures": [
            {
                "trial": record.trial_id,
                "cell": _label(plan, record),
                "seed": record.seed,
                "state": record.state,
                "attempt": record.attempt,
                "error": record.error,
                "traceback": record.traceback,
            }
            for record in planned
            if record.state in BROKEN | {"diverged", "cancelled"}
        ],
    }


def count_states(records: Iterable[TrialRecord]) -> dict[str, int]:
    """Count records by state; every state has an entry."""
    found = Counter(record.state for record in records)
    return {state: found[state] for state in STATES}


def counts_line(counts: dict[str, int]) -> str:
    """Write the states that occur: ``17 done, 3 failed``."""
    return ", ".join(f"{n} {state}" for state, n in counts.items() if n) or "no trials"


def _as_seen(records: list[TrialRecord], holder: LockHolder | None) -> list[TrialRecord]:
    """What a dead driver left running is lost, although nobody has written that down yet."""
    if holder is not None and holder.alive():
        return records
    reason = "the process that drove this trial is gone"
    return [
        replace(record, state="lost", error=reason) if record.state == "running" else record
        for record in records
    ]


def _pushed(tracker_state: dict[str, Any]) -> dict[str, int]:
    return {uri: len(state["trials"]) for uri, state in tracker_state.items()}


def _label(plan: dict[str, Any], record: TrialRecord) -> str:
    labels = {cell["id"]: cell["label"] for cell in plan["cells"]}
    return str(labels.get(record.cell_id, record.cell_id))


def _show(status: dict[str, Any], out: Console) -> None:
    line = f"{status['study']}: {counts_line(status['counts'])} of {status['trials']}"
    out.print(line, style="bold", markup=False)
    if status["driver"]:
        out.print(f"running now: {LockHolder(**status['driver']).describe()}", markup=False)
    if status["outside_plan"]:
        kept = several(status["outside_plan"], "trial")
        again = "run it as it was planned then to have them back"
        out.print(f"{kept} kept that the last plan no longer has; {again}", style="dim")
    for note in status["packing"]:
        out.print(f"note: {note}", style="yellow", markup=False)
    if status["kept_stale"]:
        kept = several(len(status["kept_stale"]), "result")
        out.print(f"note: {kept} kept although the code has changed since", style="yellow")
    out.print(_table(status["cells"]))
    failures = status["failures"]
    for failure in failures[:_SHOWN]:
        out.print(
            f"{failure['state']}: {failure['cell']} seed {failure['seed']}: "
            f"{first_line(failure['error'])}",
            style="red",
            markup=False,
        )
        trace = (failure["traceback"] or "").rstrip().splitlines()[-_TRACE_LINES:]
        # A trial that raised has the traceback at the end of its log too.
        for text in trace or failure["log"][-_LOG_SHOWN:]:
            out.print(f"    {text}", style="dim", markup=False)
    if len(failures) > _SHOWN:
        out.print(f"... and {len(failures) - _SHOWN} more; --json has all")
    if failures:
        command = f"ablate status {status['study']} --trial {failures[0]['trial']} --log"
        out.print(f"a whole log: {command}", style="dim", markup=False, soft_wrap=True)


def _table(cells: list[dict[str, Any]]) -> Table:
    used = [state for state in STATES if any(cell["counts"][state] for cell in cells)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("cell")
    for state in used:
        table.add_column(state, justify="right")
    for cell in cells:
        numbers = [str(cell["counts"][state] or "") for state in used]
        table.add_row(escape(cell["label"]), *numbers)
    return table
