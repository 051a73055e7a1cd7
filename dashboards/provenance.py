"""Where the numbers of a report come from, as pairs of name and text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ablate.analysis.formatting import DASH, several
from ablate.analysis.frame import StudyResults

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
        ("host", distinct(trial.host for trial in trials)),
        ("device", distinct(trial.device for trial in trials)),
    ]
    names = sorted({name for trial in trials for name in trial.info} - _COSTS)
    facts = [(name, distinct(trial.info.get(name) for trial in trials)) for name in names]
    return [(name, text) for name, text in [*pairs, *facts] if text and text != DASH]


def commands(results: StudyResults) -> list[tuple[str, str]]:
    """Return what to type to run what is missing, and to write this page again."""
    return [
        ("run what is missing, then write this page", f"ablate run {_quoted(results.study)}"),
        ("write this page again", f"ablate report {_quoted(results.study)}"),
        ("see one cell in full", f"ablate plan {_quoted(results.study)} --explain CELL"),
        (
            "the table for a paper",
            f"ablate report {_quoted(results.study)} --format latex",
        ),
    ]


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


def _quoted(study: str) -> str:
    return study if study.replace("-", "").replace("_", "").isalnum() else json.dumps(study)
