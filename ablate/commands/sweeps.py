"""`ablate run`, `status`, `retry` and `cancel`: what can be typed after them."""

from __future__ import annotations

from typing import Annotated

import typer

from ablate.commands.options import (
    Allow,
    ConfigDir,
    ExecutorName,
    Json,
    Overrides,
    Quiet,
    StaleChoice,
    Study,
)
from ablate.commands.terminal import guarded
from ablate.errors import UserError


@guarded
def run(
    study: Study,
    overrides: Overrides = None,
    max_trials: Annotated[
        int | None, typer.Option(min=0, help="Run at most this many trials now.")
    ] = None,
    max_hours: Annotated[
        float | None, typer.Option(min=0, help="Stop after so much time; the next run goes on.")
    ] = None,
    max_failures: Annotated[
        int | None, typer.Option(min=1, help="Stop when so many trials of this run have failed.")
    ] = None,
    max_disk: Annotated[
        str | None, typer.Option(help="Stop when the study's folder is larger: 20GB.")
    ] = None,
    trial_timeout: Annotated[
        str | None, typer.Option(help="Time that one attempt of a trial may take: 30min.")
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Show the plan, run nothing.")] = False,
    packing: Annotated[
        str | None,
        typer.Option(help="Trials of one shape that share a worker: auto, off, or how many."),
    ] = None,
    no_packing: Annotated[bool, typer.Option(help="The same as --packing off.")] = False,
    executor: Annotated[
        ExecutorName, typer.Option(help="ray: side by side. inline: in this process.")
    ] = ExecutorName.ray,
    address: Annotated[
        str | None, typer.Option(help="A running Ray cluster; this machine alone by default.")
    ] = None,
    config_dir: ConfigDir = None,
    allow: Allow = None,
    stale: Annotated[
        StaleChoice, typer.Option(help="Results that other code made.")
    ] = StaleChoice.rerun,
    take_over: Annotated[
        bool, typer.Option(help="Take the study from an owner that is surely gone.")
    ] = False,
    quiet: Quiet = False,
) -> int:
    """Run what is missing of a study, then write its report."""
    from ablate.commands.run import RunOptions, given_limits, run_command
    from ablate.sweep.packs import packing_of

    if no_packing and packing not in (None, "off"):
        raise UserError(f"--packing {packing} and --no-packing contradict each other: give one.")
    if no_packing:
        packing = "off"
    options = RunOptions(
        max_trials=max_trials,
        packing=None if packing is None else packing_of(packing),
        limits=given_limits(max_hours, max_failures, max_disk, trial_timeout),
        dry_run=dry_run,
        executor=executor.value,
        address=address,
        config_dirs=config_dir or [],
        allow=allow or [],
        stale=stale.value,
        take_over=take_over,
        quiet=quiet,
    )
    return run_command(study, overrides or [], options)


@guarded
def status(
    study: Study,
    trial: Annotated[
        str | None, typer.Option(metavar="ID", help="One trial, by its id or 'CELL seed N'.")
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="Print that trial's whole log.")] = False,
    json: Json = False,
) -> int:
    """Show how far a study is, and why trials failed."""
    from ablate.commands.status import status_command

    return status_command(study, trial=trial, log=log, as_json=json)


@guarded
def retry(
    study: Study,
    state: Annotated[
        str, typer.Option(help="States, with commas between: failed,diverged,pruned.")
    ] = "failed",
    trial: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Only this one. May be repeated.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="From the first step, not from a checkpoint.")
    ] = False,
    executor: Annotated[
        ExecutorName, typer.Option(help="ray: side by side. inline: in this process.")
    ] = ExecutorName.ray,
    address: Annotated[
        str | None, typer.Option(help="A running Ray cluster; this machine alone by default.")
    ] = None,
    quiet: Quiet = False,
) -> int:
    """Run trials of a study once more, by their state, with the settings of its last run."""
    from ablate.commands.retry import RetryOptions, retry_command

    options = RetryOptions(
        states=state,
        trials=trial or [],
        fresh=fresh,
        executor=executor.value,
        address=address,
        quiet=quiet,
    )
    return retry_command(study, options)


@guarded
def cancel(
    study: Study,
    trial: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Only this one; the others go on. May be repeated."),
    ] = None,
    quiet: Quiet = False,
) -> int:
    """Stop a run of this study in another process; the next run goes on from there."""
    from ablate.commands.cancel import cancel_command

    return cancel_command(study, trial or [], quiet=quiet)
