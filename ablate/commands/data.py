"""`ablate data`: what can be typed after it; `ablate.commands.prepare` does it."""

from __future__ import annotations

import typer

from ablate.commands.options import Allow, ConfigDir, Overrides, Quiet, Study
from ablate.commands.terminal import guarded

app = typer.Typer(help="Data that a study's trials share.", no_args_is_help=True)


@app.command()
@guarded
def prepare(
    study: Study,
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    allow: Allow = None,
    quiet: Quiet = False,
) -> int:
    """Pack the text of all cells of a study, where it is not packed yet; `run` does it too."""
    from ablate.commands.prepare import prepare_command

    return prepare_command(study, overrides or [], config_dir or [], allow or [], quiet=quiet)


@app.command()
@guarded
def check(
    study: Study,
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    allow: Allow = None,
) -> int:
    """Compare every byte of a study's packed text with the hashes that were written with it."""
    from ablate.commands.prepare import check_command

    return check_command(study, overrides or [], config_dir or [], allow or [])
