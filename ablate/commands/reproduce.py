"""`ablate reproduce`: run one recorded trial again here, and say whether it comes out the same."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from ablate.analysis.formatting import listed, several
from ablate.commands.ledgers import find_cell, open_ledger, study_name
from ablate.commands.terminal import FAILED, OK, console, print_json
from ablate.errors import UserError
from ablate.sweep.execution import Message, RunTrial, run_safely
from ablate.sweep.ledger import Ledger
from ablate.sweep.records import MetricRow, TrialRecord

MACHINE = frozenset({"seconds", "cpu_seconds", "tokens_per_second", "peak_memory_bytes"})
"""What a summary says of the machine and not of the model; never the same twice."""

FACTS = (
    *("fingerprint", "commit", "data", "device", "host", "python", "torch", "numpy", "threads"),
    "lanes",
)
"""Where a difference can come from, in the order in which it is looked for."""

Point = tuple[int, str]


@dataclass(frozen=True)
class ReproduceOptions:
    """How to run again; `tolerance` is relative, and 0 asks for equality to the last bit."""

    seed: int | None = None
    tolerance: float = 0.0
    allow: Sequence[str] = ()
    as_json: bool = False
    quiet: bool = False
    trial: RunTrial | None = None
    """What runs the trial, in place of `ablate.trial.run.run_trial`; for tests."""


@dataclass
class Outcome:
    """What one run of a trial gave: its state, facts, final metrics and curve points."""

    state: str
    error: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    points: dict[Point, float] = field(default_factory=dict)


def reproduce_command(study: str, cell: str, options: ReproduceOptions) -> int:
    """Run one trial again without touching its record; exit 0 if it is equal, 1 if it differs.

    Raises:
        UserError: no such cell or seed, or the trial has no result to compare with.
    """
    with open_ledger(study) as ledger:
        plan = ledger.plan() or {}
        if not plan:
            raise UserError(f"study '{study_name(study)}' has not been planned yet: run it.")
        labels = {entry["id"]: entry["label"] for entry in plan["cells"]}
        record = _record(ledger, find_cell(labels, cell), labels, options.seed)
        recorded = recorded_outcome(record, ledger.rows(record.trial_id))
    spec = {
        "id": record.trial_id,
        "cell": record.cell_id,
        "seed": record.seed,
        "config": record.config,
        "resources": plan.get("resources") or {},
        "allow": list(options.allow),
    }
    again = _run(spec, options.trial)
    found = compare_outcomes(recorded, again, options.tolerance)
    found = {"study": plan["study"], "cell": record.cell_id, "label": labels[record.cell_id],
             "seed": record.seed, "trial": record.trial_id, **found}  # fmt: skip
    if options.as_json:
        print_json(found)
    else:
        _show(found, console(quiet=options.quiet))
    return OK if found["equal"] else FAILED


def recorded_outcome(record: TrialRecord, rows: Sequence[MetricRow]) -> Outcome:
    """Return what the ledger has of a trial."""
    return Outcome(
        record.state,
        record.error,
        {**record.info, "fingerprint": record.fingerprint, "device": record.device,
         "host": record.host},
        _of_the_model(record.summary),
        {(row.step, row.name): row.value for row in rows},
    )  # fmt: skip


def compare_outcomes(recorded: Outcome, again: Outcome, tolerance: float) -> dict[str, Any]:
    """Return what is equal and what is not, as plain values; ``equal`` is the verdict."""
    names = dict.fromkeys([*recorded.metrics, *again.metrics])
    metrics = [
        _metric(name, recorded.metrics.get(name), again.metrics.get(name), tolerance)
        for name in names
    ]
    unequal = [
        place
        for place in sorted({*recorded.points, *again.points})
        if not close(recorded.points.get(place), again.points.get(place), tolerance)
    ]
    state = recorded.state == again.state
    return {
        "equal": state and not unequal and all(one["equal"] for one in metrics),
        "tolerance": tolerance,
        "state": [recorded.state, again.state],
        "error": again.error,
        "metrics": metrics,
        "points": {
            "recorded": len(recorded.points),
            "again": len(again.points),
            "unequal": len(unequal),
            "first_unequal": list(unequal[0]) if unequal else None,
        },
        "facts": {
            name: [recorded.facts.get(name), again.facts.get(name)]
            for name in FACTS
            if recorded.facts.get(name) != again.facts.get(name)
        },
    }


def close(one: float | None, other: float | None, tolerance: float) -> bool:
    """Tell whether two values are equal: within `tolerance` of the larger, both absent or NaN."""
    if one is None or other is None:
        return one is other
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return one == other or math.isclose(one, other, rel_tol=tolerance, abs_tol=0.0)


def _metric(
    name: str, recorded: float | None, again: float | None, tolerance: float
) -> dict[str, Any]:
    return {
        "name": name,
        "recorded": recorded,
        "again": again,
        "difference": None if recorded is None or again is None else again - recorded,
        "equal": close(recorded, again, tolerance),
    }


def _of_the_model(summary: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in summary.items() if name not in MACHINE}


def _record(ledger: Ledger, cell: str, labels: Mapping[str, str], seed: int | None) -> TrialRecord:
    """Return the record of the cell's trial with that seed, or of its first finished one."""
    records = [one for one in ledger.trials() if one.cell_id == cell]
    known = {one.seed: one for one in records}
    if seed is not None and seed not in known:
        seeds = ", ".join(map(str, known))
        raise UserError(f"{labels[cell]} has no trial with seed {seed}. Seeds: {seeds}.")
    over = [one for one in records if one.state not in ("missing", "running", "lost", "cancelled")]
    chosen = known[seed] if seed is not None else next(iter(over), records[0])
    if chosen not in over:
        raise UserError(
            f"{labels[cell]}, seed {chosen.seed}, is {chosen.state}: there is no result to "
            "compare with. Run the study first."
        )
    return chosen


def _run(spec: dict[str, Any], run: RunTrial | None) -> Outcome:
    if run is None:
        from ablate.trial.run import run_trial

        run = run_trial
    found = Outcome("failed")

    def report(message: Message) -> None:
        if message["kind"] == "start":
            names = ("fingerprint", "device", "host")
            facts = {name: message.get(name) for name in names}
            found.facts = {**(message.get("info") or {}), **facts}
        elif message["kind"] == "row":
            step = int(message["step"])
            metrics = message["metrics"].items()
            found.points |= {(step, name): float(value) for name, value in metrics}
        else:
            found.state, found.error = message["state"], message.get("error")
            found.metrics = _of_the_model(message.get("summary") or {})

    run_safely(run, spec, report)
    return found


def _show(found: Mapping[str, Any], out: Console) -> None:
    head = f"{found['study']}: {found['label']}, seed {found['seed']} (trial {found['trial']})"
    out.print(head, style="bold", markup=False)
    for name, (before, now) in found["facts"].items():
        said = f"{name} was {before}, is {now}"
        if name == "lanes":
            said = (
                f"the trial was one of {before} in a pack and is alone now: its last digits may "
                "differ, --tolerance says by how much they may"
            )
        out.print(f"note: {said}", style="yellow", markup=False, soft_wrap=True)
    if found["error"]:
        out.print(f"note: {found['error']}", style="yellow", markup=False, soft_wrap=True)
    out.print(_table(found))
    points = found["points"]
    same = points["recorded"] - points["unequal"]
    text = f"curves: {max(same, 0)} of {several(points['recorded'], 'point')} equal"
    if points["first_unequal"]:
        step, name = points["first_unequal"]
        text += f"; the first that differs is {name} at step {step}"
    out.print(text, markup=False)
    out.print(_verdict(found), style="bold", markup=False)


def _table(found: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("metric")
    for name in ("recorded", "again", "difference"):
        table.add_column(name, justify="right")
    table.add_row("state", *found["state"], "0" if len(set(found["state"])) == 1 else "")
    for one in found["metrics"]:
        values = ("" if one[key] is None else repr(one[key]) for key in ("recorded", "again"))
        gap = one["difference"]
        nothing = one["equal"] and not gap
        table.add_row(
            one["name"], *values, "0" if nothing else "" if gap is None else f"{gap:+.3g}"
        )
    return table


def _verdict(found: Mapping[str, Any]) -> str:
    if found["equal"]:
        how = "to the last bit" if not found["tolerance"] else f"within {found['tolerance']:g}"
        return f"equal: every recorded value came out again, {how}"
    causes = listed(found["facts"]) or "nothing that was recorded"
    return f"different; what has changed since: {causes}"
