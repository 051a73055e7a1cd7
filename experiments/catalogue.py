"""Find tasks and studies by name: the folders below ``experiments/`` are the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.arguments import bind
from ablate.errors import UserError, unknown

if TYPE_CHECKING:  # tasks bring PyTorch, which takes seconds; names alone should not
    from ablate.experiments.task import Task

ROOT = Path(__file__).parent
PUBLISHED = "published"
"""Folders of this name hold tables of papers (`ablate.analysis.published`), no studies."""


def task_names() -> list[str]:
    """Every folder below ``experiments/`` that holds a ``task.py``, sorted."""
    return sorted(path.parent.name for path in ROOT.glob("*/task.py"))


def task_class(name: str) -> type[Task]:
    """The class of a task, whose keyword-only parameters are the task's arguments.

    Raises:
        UserError: no task has that name.
    """
    if name not in task_names():
        raise unknown("task", name, task_names())
    found: type[Task] = import_module(f"ablate.experiments.{name}.task").TASK
    return found


def make_task(name: str, args: Mapping[str, Any] | None = None) -> Task:
    """Make a task from plain values, as they stand in YAML.

    Raises:
        UserError: an unknown task or argument, a value of the wrong type, or one that the task
            itself refuses.
    """
    cls = task_class(name)
    given = bind(cls, args or {}, kind=f"argument of task {name}", prefix="task_args.", typed=True)
    return cls(**given)


def study_names() -> list[str]:
    """The names of all shipped studies: every ``<name>.yaml`` below ``experiments/``, sorted."""
    return sorted(_studies())


def study_path(name: str) -> Path:
    """The file of a shipped study.

    Raises:
        UserError: no study, or more than one, has that name.
    """
    found = _studies().get(name, [])
    if not found:
        raise unknown("study", name, study_names())
    if len(found) > 1:
        places = ", ".join(str(path.relative_to(ROOT)) for path in found)
        raise UserError(f"'{name}' names {len(found)} studies ({places}): rename all but one.")
    return found[0]


def _studies() -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in sorted(ROOT.rglob("*.yaml")):
        if PUBLISHED not in path.relative_to(ROOT).parts:
            found.setdefault(path.stem, []).append(path)
    return found
