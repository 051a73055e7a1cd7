"""`ablate train`, `eval` and `generate`: what can be typed after them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ablate.commands import complete
from ablate.commands.options import (
    Allow,
    Backend,
    BackendChoice,
    ConfigDir,
    Json,
    Model,
    Quiet,
    Settings,
)
from ablate.commands.terminal import guarded

Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="What `ablate train --save DIR` wrote.")
]


@guarded
def train(
    model: Model,
    settings: Settings = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write model.safetensors and config.json there."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Let --save overwrite a saved model.")
    ] = False,
    config_dir: ConfigDir = None,
    allow: Allow = None,
    quiet: Quiet = False,
) -> int:
    """Train one model once, without a study."""
    from ablate.commands.train import train_command

    return train_command(
        model,
        settings or [],
        save=save,
        force=force,
        config_dirs=config_dir or [],
        allow=allow or [],
        quiet=quiet,
    )


@guarded
def evaluate(
    folder: Folder,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="task_args.NAME=VALUE for every task, or TASK.NAME=VALUE for one.",
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Names with commas between; by default the model's own.",
            autocompletion=complete.tasks,
        ),
    ] = None,
    newton_schulz: Annotated[
        int | None,
        typer.Option(min=0, metavar="K", help="Newton-Schulz steps, as test-time compute."),
    ] = None,
    backend: Backend = BackendChoice.auto,
    allow: Allow = None,
    json: Json = False,
) -> int:
    """Score a saved model: its own task's metrics, or those of other tasks."""
    from ablate.commands.evaluate import EvaluateOptions, evaluate_command

    options = EvaluateOptions(tasks, newton_schulz, allow or [], json, backend.value)
    return evaluate_command(folder, settings or [], options)


@guarded
def generate(
    folder: Folder,
    prompt: Annotated[str, typer.Option(help="Text to go on from.")],
    tokens: Annotated[int, typer.Option(min=1, help="How many to generate.")] = 200,
    temperature: Annotated[
        float, typer.Option(min=0, help="0 always takes the most likely token.")
    ] = 1.0,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Choose among the K most likely tokens.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    backend: Backend = BackendChoice.auto,
    allow: Allow = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say how large the state is, and the speed.")
    ] = False,
    json: Json = False,
) -> int:
    """Let a saved model of text go on from a prompt, with a state of one size."""
    from ablate.commands.generate import GenerateOptions, generate_command
    from ablate.trial.generate import Sampling

    sampling = Sampling(temperature, top_k, seed)
    options = GenerateOptions(prompt, tokens, sampling, allow or [], verbose, json, backend.value)
    return generate_command(folder, options)
