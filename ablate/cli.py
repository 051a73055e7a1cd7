"""The command line: what can be typed. What each command does stands in `ablate.commands`.

Exit codes: 0 done, 1 trials failed or something outside did (tracker, hub, disk), 2 bad input, 3
stopped at a limit, 130 interrupted or cancelled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ablate.commands import complete, data, launch, saved, sweeps
from ablate.commands.options import (
    Allow,
    ConfigDir,
    Format,
    Json,
    Model,
    Overrides,
    Quiet,
    Settings,
    Study,
)
from ablate.commands.terminal import guarded
from ablate.telemetry import set_defaults

app = typer.Typer(
    help="Ablation studies of neural-memory sequence models: declare, run, compare.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
track = typer.Typer(help="The MLflow view of a study.", no_args_is_help=True)
app.add_typer(track, name="track")
app.add_typer(data.app, name="data")
app.command()(launch.launch)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"ablate {version('ablate')}")
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Ablation studies of neural-memory sequence models: declare, run, compare."""
    set_defaults()


@app.command()
@guarded
def plan(
    study: Study,
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    allow: Allow = None,
    probe: Annotated[
        bool, typer.Option(help="Train two steps of each cell, for its time and no-ops.")
    ] = False,
    budget: Annotated[
        str | None, typer.Option(help="Training time there is, such as 8h: what fits in it?")
    ] = None,
    explain: Annotated[
        str | None, typer.Option(metavar="CELL", help="Show one cell by its label or id.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the plan as a page.")] = None,
    json: Json = False,
) -> int:
    """Show cells, costs and warnings of a study; run nothing."""
    from ablate.commands.plan import PlanOptions, plan_command

    options = PlanOptions(
        config_dirs=config_dir or [],
        allow=allow or [],
        probe=probe,
        budget=budget,
        explain=explain,
        html=html,
        as_json=json,
    )
    return plan_command(study, overrides or [], options)


@app.command()
@guarded
def new(
    name: Annotated[str, typer.Argument(help="Name of the study; writes NAME.yaml.")],
    overrides: Overrides = None,
    model: Annotated[
        str | None, typer.Option(help="A preset.", autocompletion=complete.models)
    ] = None,
    task: Annotated[str | None, typer.Option(help="A task.")] = None,
    factor: Annotated[
        list[str] | None, typer.Option(help="What varies: 'window=[4, 1]'. May be repeated.")
    ] = None,
    design: Annotated[str, typer.Option(help="Kind of design.")] = "one_factor",
    seeds: Annotated[int | None, typer.Option(min=1, help="How many.")] = None,
    measure: Annotated[str | None, typer.Option(help="The metric.")] = None,
    goal: Annotated[str | None, typer.Option(help="min or max.")] = None,
    question: Annotated[str | None, typer.Option(help="What is to be found out.")] = None,
    folder: Annotated[Path, typer.Option(help="Where the file goes.")] = Path(),
    force: Annotated[bool, typer.Option(help="Write over a file that is there.")] = False,
    config_dir: ConfigDir = None,
    allow: Allow = None,
) -> int:
    """Write a commented study file; asks for what is missing on a terminal."""
    from ablate.commands.new import NewOptions, new_command

    options = NewOptions(
        model=model,
        task=task,
        factors=factor or [],
        design=design,
        seeds=seeds,
        measure=measure,
        goal=goal,
        question=question,
        overrides=overrides or [],
        folder=folder,
        force=force,
        config_dirs=config_dir or [],
        allow=allow or [],
    )
    return new_command(name, options)


for _command in (sweeps.run, sweeps.status, sweeps.retry, sweeps.cancel):
    app.command()(_command)


@app.command()
@guarded
def reproduce(
    study: Study,
    cell: Annotated[str, typer.Argument(help="A cell's label, or the beginning of its id.")],
    seed: Annotated[
        int | None, typer.Option(help="Which trial; the first finished one by default.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Relative difference that counts as equal.")
    ] = 0.0,
    allow: Allow = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run one recorded trial again; exit 0 if it comes out equal, 1 if not."""
    from ablate.commands.reproduce import ReproduceOptions, reproduce_command

    options = ReproduceOptions(seed, tolerance, allow or [], json, quiet)
    return reproduce_command(study, cell, options)


@app.command()
@guarded
def report(
    study: Annotated[
        list[str],
        typer.Argument(
            help="Name of a study or path of its file; two are compared.",
            autocompletion=complete.studies,
        ),
    ],
    format: Annotated[
        Format, typer.Option(help="html and parquet are written to a file.")
    ] = Format.html,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write here.")] = None,
    paper: Annotated[
        str | None,
        typer.Option(
            help="A published table to set beside, atlas/table6.", autocompletion=complete.papers
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option(help="Exit with 1 unless every claim is supported.")
    ] = False,
    figures: Annotated[
        Path | None, typer.Option(help="Write the figures into this folder as PNG.")
    ] = None,
    quiet: Quiet = False,
) -> int:
    """Write the report of a study from its ledger, or compare two studies."""
    from ablate.commands.report import ReportOptions, report_command

    options = ReportOptions(format.value, output, paper, check, quiet, figures)
    return report_command(study, options)


@app.command()
@guarded
def dash(
    study: Study,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="A free one by default.")
    ] = None,
    paper: Annotated[
        str | None,
        typer.Option(
            help="A published table to set beside, atlas/table6.", autocompletion=complete.papers
        ),
    ] = None,
) -> int:
    """Serve the report of a running study on this machine, until Ctrl-C."""
    from ablate.commands.dash import dash_command

    return dash_command(study, port=port, paper=paper)


@app.command()
@guarded
def ui(
    study: Annotated[
        str | None,
        typer.Argument(help="Study to point to.", autocompletion=complete.studies),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="A free one by default.")
    ] = None,
) -> int:
    """Serve the MLflow pages on this machine, until Ctrl-C."""
    from ablate.commands.track import ui_command

    return ui_command(study, port=port)


app.command()(saved.train)
app.command("eval")(saved.evaluate)
app.command()(saved.generate)


@app.command()
@guarded
def show(
    model: Model,
    settings: Settings = None,
    vocab: Annotated[int, typer.Option(min=1, help="Size of the vocabulary.")] = 256,
    context: Annotated[int, typer.Option(min=1, help="Length of a sequence.")] = 512,
    config_dir: ConfigDir = None,
    allow: Allow = None,
    json: Json = False,
) -> int:
    """Show what a preset is made of, and what it costs."""
    from ablate.commands.models import show_command

    return show_command(
        model,
        settings or [],
        vocab=vocab,
        context=context,
        config_dirs=config_dir or [],
        allow=allow or [],
        as_json=json,
    )


@app.command()
@guarded
def components(
    axis: Annotated[
        str | None, typer.Argument(help="One axis.", autocompletion=complete.axes)
    ] = None,
    config_dir: ConfigDir = None,
    allow: Allow = None,
    json: Json = False,
) -> int:
    """List every choice there is, with its options and its source."""
    from ablate.commands.models import components_command

    return components_command(axis, config_dirs=config_dir or [], allow=allow or [], as_json=json)


@app.command()
@guarded
def check(
    target: Annotated[
        str,
        typer.Argument(
            help="A preset, a model's YAML file, or my_module.py[:Class].",
            autocompletion=complete.models,
        ),
    ],
    settings: Settings = None,
    axis: Annotated[
        str | None,
        typer.Option(
            help="What your class is a choice of; by default what it declares.",
            autocompletion=complete.axes,
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="The preset to put your class into; omeganet or atlas by default.",
            autocompletion=complete.models,
        ),
    ] = None,
    config_dir: ConfigDir = None,
    allow: Allow = None,
    json: Json = False,
) -> int:
    """Check that a model, or a component of yours, is a sound sequence model."""
    from ablate.commands.check import check_command

    return check_command(
        target,
        settings or [],
        axis=axis,
        host=host,
        config_dirs=config_dir or [],
        allow=allow or [],
        as_json=json,
    )


@app.command()
@guarded
def doctor(json: Json = False) -> int:
    """Check this machine: versions, GPU, tracker, folders."""
    from ablate.doctor import doctor_command

    return doctor_command(as_json=json)


@track.command()
@guarded
def push(study: Study, quiet: Quiet = False) -> int:
    """Bring MLflow up to a study's ledger; twice is the same as once."""
    from ablate.commands.track import push_command

    return push_command(study, quiet=quiet)


def main(args: list[str] | None = None) -> Any:
    """Run the command line; the entry point of the `ablate` program."""
    return app(args)
