"""Where the numbers of a report come from, as pairs of name and text."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from ablate.analysis.formatting import DASH, listed, several
from ablate.analysis.frame import Cell, StudyResults
from ablate.dashboards.text_table import TextTable

MOST_COMMANDS = 200
"""The table of commands has at most this many cells; the others' are spelled the same way."""

_COSTS = frozenset({"parameters", "state_bytes", "flops_per_token"})


def provenance(results: StudyResults) -> list[tuple[str, str]]:
    """Return task, seeds, code, machine and every fact that the trials logged about themselves."""
    trials = [trial for trials in results.by_cell.values() for trial in trials]
    first = results.cells[0].config if results.cells else {}
    pairs = [
        ("study file", results.file),
        ("task", results.task),
        ("task arguments of the baseline", spelled(results.task_args)),
        ("training", spelled(first.get("train") or {})),
        ("measure", f"{results.primary}, goal: {results.goal}"),
        ("seeds", ", ".join(str(seed) for seed in results.seeds)),
        ("code fingerprints", distinct(trial.fingerprint for trial in trials)),
        ("results of older code", _older(results)),
        ("host", distinct(trial.host for trial in trials)),
        ("device", distinct(trial.device for trial in trials)),
    ]
    names = sorted({name for trial in trials for name in trial.info} - _COSTS)
    facts = [(name, distinct(trial.info.get(name) for trial in trials)) for name in names]
    return [(name, text) for name, text in [*pairs, *facts] if text and text != DASH]


def _older(results: StudyResults) -> str:
    kept = [
        trial.cell for trials in results.by_cell.values() for trial in trials if trial.older_code
    ]
    labels = listed(cell.label for cell in results.cells if cell.id in kept)
    return f"{len(kept)} kept although the code has changed since: {labels}" if kept else ""


def commands(results: StudyResults) -> list[tuple[str, str]]:
    """Return what to type to run what is missing, and to write this page again."""
    study = shlex.quote(results.study)
    return [
        ("run what is missing, then write this page", f"ablate run {study}"),
        ("write this page again", f"ablate report {study}"),
        ("see one cell in full", f"ablate plan {study} --explain CELL"),
        ("the table for a paper", f"ablate report {study} --format latex"),
    ]


def reproduction(results: StudyResults) -> TextTable:
    """Return for each cell with a result the command that runs one of its trials again.

    Beside it stand the code and the data that the cell's results are of.
    """
    rows: list[tuple[str, ...]] = []
    for cell in results.cells:
        if len(rows) == MOST_COMMANDS:
            break
        ran = [trial for trial in results.by_cell[cell.id] if trial.attempt]
        first = next((trial for trial in ran if trial.state == "done"), ran[0] if ran else None)
        if first is None:
            continue
        command = ["ablate", "reproduce", results.study, cell.label, "--seed", str(first.seed)]
        command += [text for name in _packages(cell) for text in ("--allow", name)]
        rows.append(
            (
                cell.label,
                shlex.join(command),
                distinct(trial.fingerprint for trial in ran),
                distinct(trial.info.get("commit") for trial in ran),
                distinct(trial.info.get("data") for trial in ran),
            )
        )
    return TextTable(
        "One trial of each cell again, compared with its record; --seed chooses another."
        + (f" The first {MOST_COMMANDS} cells." if len(rows) == MOST_COMMANDS else ""),
        "lllll",
        ("Cell", "Command", "Code", "Commit", "Data"),
        tuple(rows),
    )


def _packages(cell: Cell) -> list[str]:
    """Return the packages beside Ablate that hold components of a cell."""
    parts = (cell.config.get("model") or {}).values()
    targets = [
        str(part["_target_"]) for part in parts if isinstance(part, dict) and "_target_" in part
    ]
    names = dict.fromkeys(target.partition(".")[0] for target in targets)
    return [name for name in names if name != "ablate"]


def baseline_config(results: StudyResults) -> str:
    """Return the full configuration of the baseline, or of the first cell, as JSON."""
    cell = results.cell(results.baseline) or (results.cells[0] if results.cells else None)
    return json.dumps(dict(cell.config), indent=2, default=str) if cell and cell.config else ""


def spelled(values: Mapping[str, Any]) -> str:
    """Write a flat mapping on one line: ``context=256, tokens=2000000``."""
    return ", ".join(f"{name}={value}" for name, value in values.items())


def distinct(values: Iterable[object]) -> str:
    """Write the different values that occur, or how many there are if more than four."""
    found = list(dict.fromkeys(_plain(value) for value in values if value is not None))
    if len(found) > 4:
        return several(len(found), "different value")
    return ", ".join(found) if found else DASH


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:.6g}"
    return str(value)
