"""Arguments and options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ablate.commands import complete


class ExecutorName(StrEnum):
    """Where trials run."""

    ray = "ray"
    inline = "inline"


class StaleChoice(StrEnum):
    """What to do with results that other code made."""

    rerun = "rerun"
    keep = "keep"
    abort = "abort"


class BackendChoice(StrEnum):
    """What runs operations that have Triton kernels."""

    auto = "auto"
    torch = "torch"
    triton = "triton"


class Format(StrEnum):
    """Formats of a report."""

    html = "html"
    md = "md"
    latex = "latex"
    csv = "csv"
    parquet = "parquet"


Study = Annotated[
    str,
    typer.Argument(help="Name of a study, or path of its file.", autocompletion=complete.studies),
]
Model = Annotated[str, typer.Argument(help="Name of a preset.", autocompletion=complete.models)]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Laid over the study file.")
]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="task=NAME, task_args.NAME, train.NAME, seed, retention=none, backbone.dim=64, ...",
        autocompletion=complete.train_settings,
    ),
]
Backend = Annotated[
    BackendChoice, typer.Option(help="auto: Triton kernels on a GPU. triton: an error without.")
]
ConfigDir = Annotated[
    list[Path] | None,
    typer.Option(
        exists=True,
        file_okay=False,
        help="Folder with your own search spaces and studies; looked in first.",
    ),
]
Allow = Annotated[
    list[str] | None, typer.Option(help="A package of yours that may hold components.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only what went wrong.")]
