"""`ablate launch`: what can be typed after it; `ablate.commands.jobs` does it."""

from __future__ import annotations

from typing import Annotated

import typer

from ablate.commands import complete
from ablate.commands.options import Allow, ConfigDir, Overrides, Quiet, StaleChoice
from ablate.commands.terminal import guarded

_HOME = "~/.ablate"


@guarded
def launch(
    study: Annotated[
        str | None,
        typer.Argument(
            help="Name of a study, or path of its file.", autocompletion=complete.studies
        ),
    ] = None,
    overrides: Overrides = None,
    address: Annotated[
        str | None, typer.Option(help="The cluster's job server, http://HEAD:8265.")
    ] = None,
    home: Annotated[
        str,
        typer.Option(help="ABLATE_HOME on the head, where ledger and reports lie: a lasting disk."),
    ] = _HOME,
    job: Annotated[str | None, typer.Option(help="A job that was launched before.")] = None,
    stop: Annotated[bool, typer.Option("--stop", help="Stop that job.")] = False,
    follow: Annotated[bool, typer.Option(help="Show the job's log until it ends.")] = True,
    env: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE for the job, or NAME with its value here. May be repeated."),
    ] = None,
    python: Annotated[str, typer.Option(help="The head's Python that has Ablate.")] = "python",
    max_trials: Annotated[
        int | None, typer.Option(min=0, help="Run at most this many trials now.")
    ] = None,
    stale: Annotated[
        StaleChoice, typer.Option(help="Results that other code made.")
    ] = StaleChoice.rerun,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take the study from an owner that is surely gone.")
    ] = False,
    config_dir: ConfigDir = None,
    allow: Allow = None,
    quiet: Quiet = False,
) -> int:
    """Run a study on a cluster as a job that outlives this machine; exit as the job does.

    Other options of ablate run go behind --, written --name=value.
    """
    from ablate.commands.jobs import LaunchOptions, launch_command

    # What follows `--` comes as overrides: options of `ablate run`, for the head to check.
    settings = [text for text in overrides or [] if not text.startswith("-")]
    passed = [text for text in overrides or [] if text.startswith("-")]
    passed += ["--stale", stale.value]
    passed += [] if max_trials is None else ["--max-trials", str(max_trials)]
    passed += ["--take-over"] if take_over else []
    options = LaunchOptions(
        address=address,
        home=home,
        job=job,
        stop=stop,
        follow=follow,
        env=env or [],
        python=python,
        config_dirs=config_dir or [],
        allow=allow or [],
        passed=passed,
        quiet=quiet,
    )
    return launch_command(study, settings, options)
