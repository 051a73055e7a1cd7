"""`ablate run`: plan a study, run what is missing, keep MLflow up to date, write the report."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ablate.analysis import formatting
from ablate.analysis.comparisons import compare
from ablate.analysis.frame import StudyResults
from ablate.commands.plan import show_plan, totals
from ablate.commands.prepare import prepare_tasks, tasks_of
from ablate.commands.progress import RunProgress
from ablate.commands.report import keep_page, results_of, write_files
from ablate.commands.search import RunningSearch
from ablate.commands.status import counts_line
from ablate.commands.terminal import (
    FAILED,
    INTERRUPTED,
    LIMIT,
    OK,
    console,
    program,
    stopped_by_sigterm,
)
from ablate.errors import UserError
from ablate.home import ledger_path
from ablate.sweep.driver import Stale, missing_trials, run_plan
from ablate.sweep.execution import Event, Executor, RunTrial
from ablate.sweep.ledger import Ledger
from ablate.sweep.packs import Packer, Packing
from ablate.sweep.records import BROKEN
from ablate.sweep.watch import Limits, Stopped
from ablate.track.background import BackgroundView
from ablate.track.tracker import TrackerError
from ablate.track.view import MlflowView

COMMAND = "command"
"""Key of the ledger under which a run keeps its study, overrides and folders, for `retry`."""
PACKING = "packing"
"""Key of the ledger for what the last run packed, and what it did not and why."""
LIMIT_CODES = {"cancelled": INTERRUPTED, "max_failures": FAILED}
"""Exit codes of runs that stopped by themselves; `LIMIT` for the others."""


@dataclass(frozen=True)
class RunOptions:
    """How to run; the fields are the options of the command."""

    max_trials: int | None = None
    dry_run: bool = False
    executor: Literal["ray", "inline"] = "ray"
    address: str | None = None
    config_dirs: Sequence[Path] = ()
    allow: Sequence[str] = ()
    stale: Stale = "rerun"
    take_over: bool = False
    quiet: bool = False
    limits: Mapping[str, float] = field(default_factory=dict)
    """Those of `given_limits`; they come before the study's."""
    packing: Packing | None = None
    """Comes before the study's."""
    only: Sequence[str] | None = None
    """Run no other trials than these."""
    trial: RunTrial | None = None
    """What runs one trial, in place of `ablate.trial.run.run_trial`; for tests."""


def run_command(study: str, overrides: Sequence[str], options: RunOptions) -> int:
    """Run a study and return the exit code: 0 done, 1 trials or the tracker failed, 130 stopped."""
    from ablate.study.load import load_study

    out = console(quiet=options.quiet)
    # Reading finds most mistakes, and PyTorch, which planning needs, takes seconds to load.
    declared, file = load_study(study, list(overrides), config_dirs=options.config_dirs)

    from ablate.study.plan import plan_study

    planned = partial(
        plan_study, declared, file, config_dirs=options.config_dirs, allow=options.allow
    )
    plan = planned()
    if options.dry_run:
        show_plan(plan, out)
        return OK
    if plan.pruning and options.executor == "inline":
        raise UserError(
            f"{file.name}: pruning compares trials that run side by side; --executor inline runs "
            "them one by one. Use --executor ray, or pruning=null."
        )

    if prepare_tasks(tasks_of(cell.config for cell in plan.cells), out):
        plan = planned()  # cells are named by their data

    command = {
        "study": str(Path(study).absolute()) if Path(study).is_file() else study,
        "overrides": list(overrides),
        "config_dirs": [str(folder.absolute()) for folder in options.config_dirs],
        "allow": list(options.allow),
    }

    def search(ledger: Ledger) -> RunningSearch:
        return RunningSearch(
            declared, file, plan, ledger, config_dirs=options.config_dirs, allow=options.allow,
            stale=options.stale,
        )  # fmt: skip

    search_of = search if plan.search else None
    return run_study(plan, options, out, search=search_of, command=command)


def given_limits(
    max_hours: float | None,
    max_failures: int | None,
    max_disk: str | None,
    trial_timeout: str | None,
) -> dict[str, float]:
    """Return the limits that were given on the command line.

    Raises:
        UserError: a time or a size that cannot be read.
    """
    from ablate.study.quantities import bytes_of, seconds_of

    found: dict[str, float | None] = {"max_hours": max_hours, "max_failures": max_failures}
    texts = {"max_disk": (max_disk, bytes_of), "trial_timeout": (trial_timeout, seconds_of)}
    for name, (text, value_of) in texts.items():
        try:
            found[name] = None if text is None else value_of(text)
        except ValueError as error:
            raise UserError(f"--{name.replace('_', '-')} is '{text}': it {error}.") from None
    return {name: value for name, value in found.items() if value is not None}


def run_study(
    plan: Any,
    options: RunOptions,
    out: Console,
    *,
    search: Callable[[Ledger], RunningSearch] | None = None,
    command: Mapping[str, Any] | None = None,
) -> int:
    """Run a plan that is made already; the rest of `run_command`.

    Args:
        plan: what to run.
        options: how.
        out: where to say so.
        search: takes up the search of a plan that grows.
        command: how `ablate retry` is to plan the study again.
    """
    view = MlflowView()
    with Ledger.open(ledger_path(plan.study)) as ledger, stopped_by_sigterm():
        ledger.acquire_lock("ablate run", force=options.take_over)
        ledger.mark_orphans()
        running = search(ledger) if search else None
        plan = running.plan if running else plan
        ledger.save_plan(plan.to_json())
        ledger.add_trials(plan.trials())
        if command:
            _keep_page(plan.study, ledger.get(COMMAND), command, out)
            ledger.set(COMMAND, dict(command))
        missing = missing_trials(plan.trials(), ledger, options.stale, options.only)
        todo = len(missing)
        if options.only is None:
            todo += plan.size - len(plan.trials())
        most = _max_trials(plan, options)
        todo = todo if most is None else min(todo, most)
        _announce(plan, todo, ledger, out)
        problems: list[str] = []

        def tracker_failed(text: str) -> None:
            problems.append(text)
            out.print(f"warning: {text}; training goes on, the ledger keeps everything",
                      style="yellow", markup=False, soft_wrap=True)  # fmt: skip

        background = BackgroundView(view, ledger.path, tracker_failed)
        stopped: KeyboardInterrupt | None = None
        try:
            _execute(plan, ledger, todo, background, options, out, running)
        except KeyboardInterrupt as why:
            stopped = why
        finally:
            background.close()
        plan = running.plan if running else plan
        return _finish(plan, ledger, view, problems, stopped=stopped, out=out)


def _keep_page(
    study: str, last: Mapping[str, Any] | None, now: Mapping[str, Any], out: Console
) -> None:
    """Keep the page of a run with other overrides, whose trials this run will not show."""
    if last is None:
        return
    if kept := keep_page(study, last["overrides"], now["overrides"]):
        same = shlex.join([program(), "run", last["study"], *last["overrides"]])
        out.print(f"note: report.html will show this run; the page of `{same}` is kept as {kept}, "
                  "and that command makes it again from what is done",
                  style="yellow", markup=False, soft_wrap=True)  # fmt: skip


def _execute(
    plan: Any,
    ledger: Ledger,
    todo: int,
    background: BackgroundView,
    options: RunOptions,
    out: Console,
    running: RunningSearch | None,
) -> None:
    with RunProgress(plan.to_json(), todo, out, ledger.trials()) as progress:

        def on_event(event: Event) -> None:
            if running:
                running.event(event)
            progress.event(event)
            if event.kind == "end":
                background.trial_ended(event.trial_id)

        if running:
            running.progress = progress
        run_plan(
            plan,
            ledger,
            executor=_executor(plan, options),
            on_event=on_event,
            stale=options.stale,
            max_trials=_max_trials(plan, options),
            jobs_of=_packer(plan, options, ledger, out).jobs_of,
            only=options.only,
            limits=_limits(plan, options),
            checkpoint=plan.checkpoint,
            then=running.jobs() if running and options.only is None else None,
        )


def _max_trials(plan: Any, options: RunOptions) -> int | None:
    given = options.max_trials
    planned: int | None = plan.limits.get("max_trials") if options.only is None else None
    return planned if given is None else given


def _limits(plan: Any, options: RunOptions) -> Limits:
    both = {**plan.limits, **options.limits}
    return Limits(
        hours=both.get("max_hours"),
        trial_seconds=both.get("trial_timeout"),
        failures=both.get("max_failures"),
        disk=both.get("max_disk"),
    )


def _packer(plan: Any, options: RunOptions, ledger: Ledger, out: Console) -> Packer:
    """What puts trials into packs; pruning judges trials one by one, and a search asks for them."""
    packing = plan.resources.get("packing", "auto") if options.packing is None else options.packing
    if options.trial or plan.search or getattr(plan, "pruning", None):
        packing = "off"
    ledger.set(PACKING, [])

    def tell(note: str) -> None:
        ledger.set(PACKING, [*ledger.get(PACKING, []), note])
        out.print(f"note: {note}", style="yellow", markup=False)

    inline = options.executor == "inline"
    side_by_side = 1 if inline else int((os.cpu_count() or 1) // plan.resources["cpus"])
    return Packer(packing, max(1, side_by_side), tell)


def _executor(plan: Any, options: RunOptions) -> Executor:
    if options.executor == "inline":
        from ablate.sweep.inline import InlineExecutor

        return InlineExecutor(options.trial)
    from ablate.sweep.ray_tune import RayTuneExecutor
    from ablate.sweep.tune_feed import Pruning

    pruning = getattr(plan, "pruning", None)
    return RayTuneExecutor(
        cpus=plan.resources["cpus"],
        gpus=plan.resources["gpus"],
        address=options.address,
        run=options.trial,
        pruning=Pruning(
            metric=plan.measure["primary"], goal=plan.measure["goal"], **pruning
        ) if pruning else None,
    )  # fmt: skip


def _announce(plan: Any, todo: int, ledger: Ledger, out: Console) -> None:
    out.print(f"{plan.study}: {totals(plan)}", style="bold", markup=False)
    notes = list(plan.warnings)
    if stale := ledger.counts()["stale"]:
        notes.append(f"{formatting.several(stale, 'result')} of older code will be made again")
    if kept := len(ledger.get("kept_stale", [])):
        notes.append(f"{formatting.several(kept, 'result')} of older code kept")
    for note in notes:
        out.print(f"note: {note}", style="yellow", markup=False)
    if todo:
        out.print(f"running {formatting.several(todo, 'trial')}", markup=False)


def _finish(
    plan: Any,
    ledger: Ledger,
    view: MlflowView,
    problems: list[str],
    *,
    stopped: KeyboardInterrupt | None,
    out: Console,
) -> int:
    """Write the report, bring MLflow up to date, say what there is now."""
    counts = ledger.counts()
    results = results_of(ledger)
    files = write_files(results)
    problems = _pushed(ledger, view, files, problems, out)
    cut = "" if stopped is None else "interrupted: "
    if isinstance(stopped, Stopped):
        cut = "stopped: "
        print(f"stopped: {stopped} ({stopped.kind.replace('_', '-')})", file=sys.stderr)
    out.print(f"{cut}{counts_line(counts)}", style="bold")
    out.print(means_table(results))
    me = program()
    out.print(f"report:    {files[0]}", markup=False, soft_wrap=True)
    if problems:
        print_problem(problems[0], f"{me} track push {plan.study}", out)
    else:
        out.print(f"MLflow UI: {me} ui {plan.study}", markup=False, soft_wrap=True)
    broken = sum(counts[state] for state in BROKEN)
    if stopped or broken or counts["cancelled"]:
        out.print("the same command again runs what is missing")
    if isinstance(stopped, Stopped):
        return LIMIT_CODES.get(stopped.kind, LIMIT)
    if stopped:
        return INTERRUPTED
    return FAILED if broken or problems else OK


def _pushed(
    ledger: Ledger, view: MlflowView, files: list[Path], problems: list[str], out: Console
) -> list[str]:
    """Bring MLflow up to date, also if it was away for a while; return what is wrong with it."""
    try:
        if problems:
            view.push(ledger, files)
            out.print("the tracker is back and has everything", style="green")
        else:
            view.sync(ledger, files)
    except TrackerError as error:
        return [*problems, str(error)]
    return []


def print_problem(problem: str, command: str, out: Console) -> None:
    """Say that the tracker failed and how to push later, on standard error even when quiet."""
    print(f"error: {problem}\nNothing is lost; push later: {command}", file=sys.stderr)


def means_table(results: StudyResults) -> Table:
    """Return the small table that closes a run: each cell's mean, and its difference."""
    comparisons = compare(results)
    decimals = formatting.decimals_for(comparisons)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("cell")
    table.add_column("seeds", justify="right")
    table.add_column(results.primary, justify="right")
    table.add_column("difference", justify="right")
    table.add_column("verdict")
    for row in comparisons.rows:
        table.add_row(
            escape(row.cell.label),
            f"{row.summary.n}/{row.planned}",
            formatting.number(row.summary.mean, decimals),
            formatting.signed(row.effect.difference, decimals) if row.effect else "",
            row.verdict.value,
        )
    return table
