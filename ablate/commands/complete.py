"""Completion of names in the shell; looks at file names only, so that it is quick."""

from __future__ import annotations

from importlib import resources
from typing import Any


def studies(incomplete: str) -> list[str]:
    """Return the shipped studies that begin so."""
    files = _root("ablate.experiments").rglob("*.yaml")
    return _beginning(incomplete, {path.stem for path in files if "published" not in path.parts})


def papers(incomplete: str) -> list[str]:
    """Return the published tables that begin so."""
    files = _root("ablate.experiments").glob("*/published/*/*.yaml")
    return _beginning(incomplete, {f"{path.parent.name}/{path.stem}" for path in files})


def models(incomplete: str) -> list[str]:
    """Return the presets that begin so."""
    return _beginning(incomplete, _stems("ablate.search_spaces", "model/*.yaml"))


def axes(incomplete: str) -> list[str]:
    """Return the axes that begin so."""
    return _beginning(incomplete, {folder for folder in _folders("ablate.search_spaces")})


def tasks(incomplete: str) -> list[str]:
    """Return the tasks that the last name of a list may become."""
    before, comma, last = incomplete.rpartition(",")
    names = _beginning(last, {path.parent.name for path in _task_files()})
    return [f"{before}{comma}{name}" for name in names]


def train_settings(incomplete: str) -> list[str]:
    """Complete ``task=`` with the tasks, and ``axis=`` with the axis's choices."""
    key, equals, _ = incomplete.partition("=")
    if key == "task" and equals:
        return _beginning(incomplete, {f"task={path.parent.name}" for path in _task_files()})
    if equals:
        names = {f"{key}={name}" for name in _stems("ablate.search_spaces", f"{key}/*.yaml")}
        return _beginning(incomplete, names)
    keys = {"task", "seed", *_folders("ablate.search_spaces")} - {"model"}
    return _beginning(incomplete, {f"{key}=" for key in keys})


def _beginning(incomplete: str, names: set[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


def _task_files() -> Any:
    return _root("ablate.experiments").glob("*/task.py")


def _stems(package: str, pattern: str) -> set[str]:
    return {path.stem for path in _root(package).rglob(pattern)}


def _folders(package: str) -> set[str]:
    return {path.parent.name for path in _root(package).glob("*/*.yaml")}


def _root(package: str) -> Any:
    return resources.files(package)
