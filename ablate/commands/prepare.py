"""Data of a study made ready ahead of its trials, and what is there checked."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from ablate.analysis.formatting import count, size
from ablate.commands.terminal import OK, console
from ablate.errors import UserError

if TYPE_CHECKING:  # it brings PyTorch, which takes seconds
    from ablate.experiments.prepared import PreparedTask


def prepare_command(
    study: str,
    overrides: Sequence[str],
    config_dirs: Sequence[Path],
    allow: Sequence[str],
    *,
    quiet: bool = False,
) -> int:
    """Pack the text of all cells, where it is not packed yet."""
    out = console(quiet=quiet)
    tasks = _tasks(study, overrides, config_dirs, allow)
    prepare_tasks(tasks, out)
    for task in tasks:
        out.print(_about(task), markup=False, soft_wrap=True)
    if not tasks:
        out.print("nothing to prepare: the data of this study are made as they are needed")
    return OK


def check_command(
    study: str, overrides: Sequence[str], config_dirs: Sequence[Path], allow: Sequence[str]
) -> int:
    """Compare every byte of the packed text with the hashes that were written with it.

    Raises:
        UserError: some of it is not packed yet.
        Failure: some of it is damaged.
    """
    from ablate.experiments.language.shards import INDEX, check_folder

    out = console()
    for task in _tasks(study, overrides, config_dirs, allow):
        if task.folder is None or not (task.folder / INDEX).is_file():
            same = shlex.join([study, *overrides])
            raise UserError(f"{_name(task)} is not prepared: ablate data prepare {same}")
        check_folder(task.folder)
        out.print(f"whole: {_about(task)}", markup=False, soft_wrap=True)
    return OK


def prepare_tasks(tasks: Iterable[PreparedTask], out: Console) -> bool:
    """Make data ready, with a bar; whether there was anything to do.

    Raises:
        UserError: the data are not to be had.
        Failure: the hub did not answer, or the disk is full.
    """
    waiting = [task for task in tasks if not task.is_prepared]
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    for task in waiting:
        out.print(f"preparing {_name(task)}", markup=False)
        with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
            line = bar.add_task("looking for the text", total=getattr(task, "corpus_bytes", None))

            def show(done: int, what: str, bar: Progress = bar, line: Any = line) -> None:
                bar.update(line, completed=done, description=what)

            task.prepare(show)
    return bool(waiting)


def tasks_of(configs: Iterable[dict[str, Any]]) -> list[PreparedTask]:
    """The tasks of some trials that have data to make ready, each once.

    Args:
        configs: of the trials, with ``task``: name and args.
    """
    from ablate.experiments.catalogue import make_task
    from ablate.experiments.prepared import PreparedTask

    specs = {json.dumps(config["task"], sort_keys=True): config["task"] for config in configs}
    found: dict[str, PreparedTask] = {}
    for spec in specs.values():
        task = make_task(spec["name"], spec["args"])
        if isinstance(task, PreparedTask) and task.folder is not None:
            found.setdefault(str(task.folder), task)
    return list(found.values())


def _tasks(
    study: str, overrides: Sequence[str], config_dirs: Sequence[Path], allow: Sequence[str]
) -> list[PreparedTask]:
    from ablate.study.plan import make_plan

    plan = make_plan(study, overrides, config_dirs=config_dirs, allow=allow)
    return tasks_of(cell.config for cell in plan.cells)


def _name(task: PreparedTask) -> str:
    words = [getattr(task, key, "") for key in ("corpus", "tokenizer")]
    return " in ".join(filter(None, words)) or task.name


def _about(task: PreparedTask) -> str:
    facts = task.prepared_info()
    parts = [
        f"{_name(task)}: {size(float(facts['train_bytes']))} of text in "
        f"{count(float(facts['train_tokens']))} tokens to train on",
        f"{size(float(facts['validation_bytes']))} held out",
        f"from {facts['data_source']}",
    ]
    if facts.get("data_is_sample") == "yes":
        parts.append("a sample, not the corpus of any paper")
    return f"{', '.join(parts)}; {task.folder}"
