"""Open the ledger of a study that the user named, to read it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
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


MOST_NAMED = 100
"""At most this many cells are named to somebody who misspelt one."""


def find_cell(labels: Mapping[str, str], wanted: str) -> str:
    """Return the id of the cell with that label, or whose id begins so.

    Args:
        labels: of all cells, by id.
        wanted: a label, or at least four letters of an id.

    Raises:
        UserError: there is none.
    """
    for cell, label in labels.items():
        if label == wanted:
            return cell
    for cell in labels:
        if len(wanted) > 3 and cell.startswith(wanted):
            return cell
    near = difflib.get_close_matches(wanted, labels.values(), n=MOST_NAMED, cutoff=0.0)
    raise unknown("cell", wanted, near)


def trial_ids(ledger: Ledger, wanted: Sequence[str]) -> list[str]:
    """Return the ids of trials that are named by their id, or as ``LABEL seed N``.

    Raises:
        UserError: there is no such trial in the plan.
    """
    plan = ledger.plan() or {"cells": []}
    labels = {cell["id"]: cell["label"] for cell in plan["cells"]}
    names: dict[str, str] = {}
    for record in ledger.trials():
        if record.in_plan:
            names[f"{labels.get(record.cell_id)} seed {record.seed}"] = record.trial_id
    ids = set(names.values())
    found = []
    for name in wanted:
        known = name if name in ids else names.get(name)
        if known is None:
            near = difflib.get_close_matches(name, [*names, *ids], n=MOST_NAMED, cutoff=0.0)
            raise unknown("trial", name, near)
        found.append(known)
    return found
