"""`ablate plan`: what a study would run, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from ablate.analysis.formatting import about, count, duration, several, size
from ablate.commands.ledgers import find_cell
from ablate.commands.plan_table import print_cells
from ablate.commands.terminal import OK, console, print_json
from ablate.home import ledger_path
from ablate.study.rates import ABOUT
from ablate.sweep.driver import AGAIN
from ablate.sweep.ledger import Ledger
from ablate.sweep.records import TrialRecord

if TYPE_CHECKING:
    from ablate.study.plan import Cell, Plan

_MISSING = TrialRecord("", "", 0, "missing")
_ROWS = 100


@dataclass(frozen=True)
class PlanOptions:
    """How to show a plan; the fields are the options of the command."""

    config_dirs: Sequence[Path] = ()
    allow: Sequence[str] = ()
    probe: bool = False
    budget: str | None = None
    explain: str | None = None
    html: Path | None = None
    as_json: bool = False


def plan_command(study: str, overrides: Sequence[str], options: PlanOptions) -> int:
    """Print the plan; start nothing, and write nothing but the page that was asked for."""
    from ablate.study.load import load_study

    # Reading finds most mistakes, and PyTorch, which planning needs, takes seconds to load.
    declared, file = load_study(study, list(overrides), config_dirs=options.config_dirs)

    from ablate.study.budget import parse_budget, propose
    from ablate.study.plan import plan_study

    budget = parse_budget(options.budget) if options.budget else None
    plan = plan_study(
        declared, file, config_dirs=options.config_dirs, allow=options.allow, probe=options.probe
    )
    out = console()
    proposals = propose(plan.cells, plan.power, budget) if budget else []
    if options.html:
        from ablate.dashboards.plan_page import plan_page

        options.html.write_text(plan_page(plan.to_json()), encoding="utf-8", newline="\n")
        out.print(f"page: {options.html}", markup=False, soft_wrap=True)
    if options.explain:
        _explain(plan, options.explain, out, as_json=options.as_json)
    elif options.as_json:
        fitting = {"proposals": [asdict(one) for one in proposals]} if budget else {}
        print_json({**plan.to_json(), **fitting})
    elif not options.html:
        show_plan(plan, out)
        for one in proposals:
            out.print(_proposal(one.seeds, one.labels, one.left_out, one.seconds, one.reason),
                      markup=False)  # fmt: skip
    return OK


def show_plan(plan: Plan, out: Console) -> None:
    """Print cells, costs, warnings and totals."""
    out.print(plan.study, style="bold", markup=False)
    if plan.question:
        out.print(plan.question, markup=False)
    task = f"task {plan.task}, measure {plan.measure['primary']} ({plan.measure['goal']})"
    seeds = f"seeds {', '.join(map(str, plan.seeds))}"
    out.print(f"{task}, {seeds}, design {plan.design}", style="dim", markup=False)
    print_cells(plan.cells[:_ROWS], {cell.id: cell.label for cell in plan.cells}, out)
    if len(plan.cells) > _ROWS:
        out.print(f"... and {len(plan.cells) - _ROWS:,} more; --json has all", style="dim")
    for key, choice in plan.search.get("space", {}).items():
        out.print(f"searched: {key}: {_range(choice)}", markup=False)
    for cell in plan.cells[:_ROWS]:
        # What does not apply is no surprise where the file says so; JSON has it.
        told = [text for text in cell.warnings if not text.startswith("n/a")]
        for warning in (*told, *_matching(cell)):
            out.print(f"note: {cell.label}: {warning}", style="yellow", markup=False)
    for warning in plan.warnings:
        out.print(f"note: {warning}", style="yellow", markup=False)
    out.print(totals(plan), markup=False)


def totals(plan: Plan) -> str:
    """Say in a line how many trials there are, how many are to run, and what they take."""
    trials = plan.trials()
    known = _known(plan)
    has = [known.get(spec["id"], _MISSING) for spec in trials]
    if plan.search:  # what it has chosen so far stands in the ledger alone
        has = [record for record in known.values() if record.in_plan] or has
    finished = sum(record.state not in AGAIN for record in has)
    text = (
        f"{several(plan.rows, 'cell')} x {several(len(plan.seeds), 'seed')}"
        f" = {several(plan.size, 'trial')}"
    )
    if finished:
        text += f", {finished} finished, {plan.size - finished} to run"
    cost = plan.cost()
    if cost["trial_seconds"] is not None:
        rough = about(cost["time_from"])
        text += f"; {rough or 'about '}{duration(cost['trial_seconds'])} of training in all, "
        text += "one trial at a time"
        if cost["gpu_hours"]:
            text += f", {rough}{cost['gpu_hours']:.2g} GPU-hours"
        text += f"; ~{size(cost['disk_bytes'])} on disk"
        if rough:
            text += f"\n{ABOUT[cost['time_from']]}"
    return text


def _known(plan: Plan) -> dict[str, TrialRecord]:
    """What the ledger has of the plan's trials; nothing if the study was never run."""
    path = ledger_path(plan.study)
    if not Ledger.begun(path):
        return {}
    with Ledger.open(path, read_only=True) as ledger:
        return {record.trial_id: record for record in ledger.trials()}


def _matching(cell: Cell) -> list[str]:
    found = cell.matched
    if found is None:
        return []
    moved = f"{found.key}={found.after}"
    if found.after != found.before:
        moved = f"{found.key} {found.before} -> {found.after}"
    return [f"matched by {moved}: {count(found.reached)} {found.on} ({found.mismatch:+.2%})"]


def _range(choice: dict[str, object]) -> str:
    if "levels" in choice:
        return f"one of {choice['levels']}"
    return f"{choice['low']} to {choice['high']}{', by its logarithm' if choice['log'] else ''}"


def _proposal(
    seeds: int, labels: Sequence[str], left_out: Sequence[str], seconds: float, reason: str
) -> str:
    text = (
        f"fits: {several(len(labels), 'cell')} x {several(seeds, 'seed')}, "
        f"{duration(seconds)} (seeds={seeds}: {reason})"
    )
    return text + (f"; without {', '.join(left_out)}" if left_out else "")


def _explain(plan: Plan, wanted: str, out: Console, *, as_json: bool) -> None:
    """Print one cell's whole configuration and how it differs from the one it is compared with.

    Raises:
        UserError: no cell has that label or id.
    """
    found = find_cell({cell.id: cell.label for cell in plan.cells}, wanted)
    cell = next(one for one in plan.cells if one.id == found)
    other = next((one for one in plan.cells if one.id == cell.compared_with), None)
    differences = config_changes(other.config, cell.config) if other else {}
    if as_json:
        shown = next(one for one in plan.to_json()["cells"] if one["id"] == cell.id)
        print_json({"cell": shown, "differences": differences})
        return
    import yaml

    out.print(f"{cell.label} ({cell.id})", style="bold", markup=False)
    if other is not None:
        out.print(f"compared with {other.label} ({other.id}):", markup=False)
        for key, (before, after) in differences.items():
            out.print(f"  {key}: {before} -> {after}", markup=False)
    for warning in (*cell.warnings, *_matching(cell)):
        out.print(f"note: {warning}", style="yellow", markup=False)
    out.print(yaml.safe_dump(cell.config, sort_keys=False), markup=False)


def config_changes(
    before: object, after: object, key: str = ""
) -> dict[str, tuple[object, object]]:
    """Return what differs between two configurations, by dotted key; a missing value is None."""
    if isinstance(before, dict) and isinstance(after, dict):
        found: dict[str, tuple[object, object]] = {}
        for name in {**before, **after}:
            inner = f"{key}.{name}" if key else str(name)
            found |= config_changes(before.get(name), after.get(name), inner)
        return found
    return {} if before == after else {key: (before, after)}
