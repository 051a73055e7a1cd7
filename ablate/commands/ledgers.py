"""Open the ledger of a study that the user named, to read it."""

from __future__ import annotations

from pathlib import Path

from ablate.errors import UserError, unknown
from ablate.home import home, ledger_path
from ablate.sweep.ledger import Ledger


def study_name(study: str) -> str:
    """Return the name of a study given by name or by path."""
    return Path(study).stem if study.endswith((".yaml", ".yml")) or "/" in study else study


def open_ledger(study: str, *, read_only: bool = True) -> Ledger:
    """Open the ledger of a study that was run before.

    Raises:
        UserError: it was never run, or is no study at all.
    """
    name = study_name(study)
    path = ledger_path(name)
    if Ledger.begun(path):
        return Ledger.open(path, read_only=read_only)
    from ablate.commands.complete import studies

    run = {file.parent.name for file in home().glob("*/ledger.sqlite")}
    known = run | set(studies(""))
    if name not in known and not Path(study).is_file():
        raise unknown("study", name, known)
    raise UserError(f"study '{name}' has not been run yet: no ledger at {path}.")
