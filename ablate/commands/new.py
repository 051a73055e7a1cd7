"""`ablate new`: write a commented study file from flags, or from answers on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
import yaml

from ablate.commands.settings import parse_setting
from ablate.commands.terminal import OK, console, program
from ablate.errors import UserError

_COMMENTS = {
    "question": "What the study is to find out; the report begins with it.",
    "model": "The preset that everything is changed from: `ablate show {model}` prints it.",
    "model_args": "Settings of the model that hold in every cell.",
    "task": "What every model is trained and scored on.",
    "task_args": "Arguments of the task that hold in every cell.",
    "train": "How the outer loop learns.",
    "seeds": "The same seeds in every cell, so that effects are paired differences.",
    "design": (
        "Which cells there are. The first level of a factor is the baseline's;\n"
        "`ablate components` lists what else there is for each axis."
    ),
    "measure": "What the study is judged by, and whether less or more of it is better.",
    "resources": "What one trial holds while it runs.",
}


@dataclass(frozen=True)
class NewOptions:
    """What the new study says; what is None is asked for on a terminal."""

    model: str | None = None
    task: str | None = None
    factors: Sequence[str] = ()
    design: str = "one_factor"
    seeds: int | None = None
    measure: str | None = None
    goal: str | None = None
    question: str | None = None
    overrides: Sequence[str] = ()
    folder: Path = Path()
    force: bool = False
    config_dirs: Sequence[Path] = ()
    allow: Sequence[str] = ()


def new_command(name: str, options: NewOptions) -> int:
    """Write ``NAME.yaml``, if the study that it declares can be planned.

    Raises:
        UserError: something is missing and there is no terminal, the file is there already, or
            anything that is wrong with the study.
    """
    from ablate.study.cells import make_cells
    from ablate.study.configure import Workshop
    from ablate.study.load import override_with
    from ablate.study.schema import validate

    path = options.folder / f"{name.removesuffix('.yaml')}.yaml"
    if path.exists() and not options.force:
        raise UserError(f"{path} is there already; --force writes over it.")
    content = _content(options)
    for override in options.overrides:
        content = override_with(content, override)
    study = validate(content, path)
    laid = make_cells(Workshop(study, path.name, options.config_dirs, tuple(options.allow)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(study_text(content), encoding="utf-8", newline="\n")
    out = console()
    trials = len(laid.cells) * len(study.seeds)
    out.print(f"{path}: {len(laid.cells)} cells, {trials} trials", markup=False, soft_wrap=True)
    out.print(f"next: {program()} plan {path}", markup=False, soft_wrap=True)
    return OK


def study_text(content: dict[str, Any]) -> str:
    """Return a study file with a comment above every key."""
    parts = []
    for key, value in content.items():
        comment = _COMMENTS.get(key, "").format(model=content.get("model"))
        lines = [f"# {line}" for line in comment.splitlines()]
        flow = None if isinstance(value, (dict, list)) else False
        body = yaml.safe_dump({key: value}, sort_keys=False, default_flow_style=flow, width=96)
        parts.append("\n".join([*lines, body.rstrip()]))
    return "\n\n".join(parts) + "\n"


def _content(options: NewOptions) -> dict[str, Any]:
    from ablate.experiments.catalogue import task_class, task_names
    from ablate.trial.space import choices

    task = options.task or _ask("task", f"task ({', '.join(task_names())})", "language")
    content: dict[str, Any] = {"question": options.question or _question()}
    if not hasattr(task_class(task), "run"):
        presets = choices("model", options.config_dirs)
        content["model"] = options.model or _ask("model", f"model ({', '.join(presets)})", "atlas")
    elif options.model:
        content["model"] = options.model
    settings = [parse_setting(text) for text in options.factors] or _asked_factors()
    factors = {
        key: value if isinstance(value, (list, dict)) else [value] for key, value in settings
    }
    seeds = options.seeds or int(_ask("seeds", "seeds", "5"))
    goal = options.goal or "min"
    measure = options.measure or _ask("measure", "measure", "val/loss")
    return {
        **content,
        "task": task,
        "seeds": seeds,
        "design": {"kind": options.design, "factors": factors},
        "measure": {"primary": measure, "goal": goal},
        "resources": {"cpus": 1},
    }


def _question() -> str:
    return str(typer.prompt("question", default="")) if _is_terminal() else ""


def _asked_factors() -> list[tuple[str, Any]]:
    """Factors typed one a line, until an empty one."""
    if not _is_terminal():
        raise UserError("a study needs a factor: add --factor 'window=[4, 1]', one or more.")
    found: list[tuple[str, Any]] = []
    while True:
        text = str(typer.prompt("factor, such as window=[4, 1] (empty ends)", default=""))
        if not text:
            return found
        found.append(parse_setting(text))


def _ask(flag: str, text: str, default: str) -> str:
    """The answer on a terminal; without one, the default for all but the task.

    Raises:
        UserError: there is no terminal to ask for the task on.
    """
    if _is_terminal():
        return str(typer.prompt(text, default=default))
    if flag == "task":
        raise UserError("a study needs a task: add --task NAME.")
    return default


def _is_terminal() -> bool:
    return sys.stdin.isatty()
