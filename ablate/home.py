"""Where Ablate keeps what it makes: one folder, named by ABLATE_HOME, `./.ablate` by default."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ablate.errors import UserError


def home() -> Path:
    """Return the absolute folder of all studies; it is not made here."""
    return Path(os.environ.get("ABLATE_HOME") or ".ablate").expanduser().absolute()


def study_home(study: str) -> Path:
    """Return the folder of one study.

    Raises:
        UserError: the name cannot be the name of one folder.
    """
    if not re.fullmatch(r"[\w][\w .+-]*", study):
        raise UserError(
            f"study name {study!r} cannot name a folder: "
            "use letters, digits, '_', '-', '.', '+' and spaces, and begin with a letter or digit."
        )
    return home() / study


def ledger_path(study: str) -> Path:
    """Return the path of a study's ledger."""
    return study_home(study) / "ledger.sqlite"
