"""`ablate plan`: what a study would run, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ablate.analysis.numbers import count, duration, level, several, size
from ablate.commands.terminal import OK, console, print_json
from ablate.home import ledger_path
from ablate.sweep.driver import AGAIN
from ablate.sweep.ledger import Ledger
from ablate.sweep.records import TrialRecord

if TYPE_CHECKING:
    from ablate.study.plan import Cell, Plan

_MISSING = TrialRecord("", "", 0, "missing")


def plan_command(
    study: str,
    overrides: Sequence[str],
    *,
    config_dirs: Sequence[Path] = (),
    allow: Sequence[str] = (),
    probe: bool = False,
    as_json: bool = False,
) -> int:
    """Print the plan; start nothing and write nothing."""
    from ablate.study.plan import make_plan

    plan = make_plan(study, list(overrides), config_dirs=config_dirs, allow=allow, probe=probe)
    if as_json:
        print_json(plan.to_json())
    else:
        show_plan(plan, console())
    return OK


def show_plan(plan: Plan, out: Console) -> None:
    """Print cells, costs, warnings and totals."""
    out.print(plan.study, style="bold", markup=False)
    if plan.question:
        out.print(plan.question, markup=False)
    task = f"task {plan.task}, measure {plan.measure['primary']} ({plan.measure['goal']})"
    out.print(f"{task}, seeds {', '.join(map(str, plan.seeds))}", style="dim", markup=False)
    out.print(_table(plan))
    for cell in plan.cells:
        for warning in cell.warnings:
            out.print(f"note: {cell.label}: {warning}", style="yellow", markup=False)
    for warning in plan.warnings:
        out.print(f"note: {warning}", style="yellow", markup=False)
    out.print(totals(plan), markup=False)


def totals(plan: Plan) -> str:
    """Say in a line how many trials there are, how many are to run, and how long they take."""
    trials = plan.trials()
    known = _known(plan)
    left = sum(known.get(s["id"], _MISSING).state in AGAIN for s in trials)
    text = (
        f"{several(len(plan.cells), 'cell')} x {several(len(plan.seeds), 'seed')}"
        f" = {several(len(trials), 'trial')}"
    )
    if left < len(trials):
        text += f", {len(trials) - left} finished, {left} to run"
    seconds = [_seconds(cell, known) for cell in plan.cells]
    if all(value is not None for value in seconds):
        total = sum(value or 0.0 for value in seconds) * len(plan.seeds)
        text += f"; about {duration(total)} of training in all, one trial at a time"
    return text


def _known(plan: Plan) -> dict[str, TrialRecord]:
    """What the ledger has of the plan's trials; nothing if the study was never run."""
    path = ledger_path(plan.study)
    if not path.is_file():
        return {}
    with Ledger.open(path, read_only=True) as ledger:
        return {record.trial_id: record for record in ledger.trials()}


def _seconds(cell: Cell, known: dict[str, TrialRecord]) -> float | None:
    """How long a trial of the cell takes: as measured by finished ones, or by the probe."""
    found = [
        record.summary["seconds"]
        for record in known.values()
        if record.cell_id == cell.id and record.state == "done" and "seconds" in record.summary
    ]
    return sum(found) / len(found) if found else cell.cost.seconds_per_trial


def _table(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    names = ("cell", "changed", "compared with")
    for name in names:
        table.add_column(name)
    for name in ("parameters", "state", "FLOPs/token", "time/trial"):
        table.add_column(name, justify="right")
    labels = {cell.id: cell.label for cell in plan.cells}
    known = _known(plan)
    for cell in plan.cells:
        table.add_row(
            escape(cell.label),
            escape(_changes(cell)),
            escape(labels.get(cell.compared_with or "", "")),
            count(cell.cost.parameters),
            size(cell.cost.state_bytes),
            count(cell.cost.flops_per_token),
            duration(_seconds(cell, known)),
        )
    return table


def _changes(cell: Cell) -> str:
    return ", ".join(f"{key}: {level(a)} -> {level(b)}" for key, (a, b) in cell.changed.items())
