"""Settings typed on the command line, ``key=value``, read by the rules of study files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ablate.errors import UserError, unknown
from ablate.study.strict_yaml import parse
from ablate.trial.space import GROUPS, LAYER

_SECTIONS = ("task_args", "train")


def parse_setting(text: str) -> tuple[str, Any]:
    """Split one ``key=value``.

    Raises:
        UserError: there is no ``=``, no key, or the value cannot be read.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"'{text}' is no setting: write key=value.")
    return key.strip(), parse(value, where=f"command line: {text}")


def one_trial(model: str, settings: Sequence[str]) -> tuple[dict[str, Any], int]:
    """Return the content of a study that has one cell, and the seed.

    Args:
        model: a preset, or ``none`` for a task that brings its own learner.
        settings: ``task=``, ``seed=``, ``task_args.NAME=``, ``train.NAME=``, ``gpus=``, ``cpus=``,
            ``backend=``, and anything that a model has, such as ``retention=none`` or
            ``backbone.dim=64``.

    Raises:
        UserError: an unknown or doubled key, or a missing task.
    """
    sections: dict[str, dict[str, Any]] = {"task_args": {}, "train": {}, "model_args": {}}
    single: dict[str, Any] = {"seed": 0, "cpus": 1.0, "gpus": 0.0, "backend": "auto"}
    seen = set()
    for setting in settings:
        key, value = parse_setting(setting)
        section, _, name = key.partition(".")
        if key in seen:
            raise UserError(f"{key} is given twice.")
        seen.add(key)
        if section in _SECTIONS and name:
            sections[section][name] = value
        elif key in {"task", *single}:
            single[key] = value
        elif section in (*GROUPS, *LAYER):
            sections["model_args"][key] = value
        else:
            valid = ["task", *single, *(f"{one}.NAME" for one in _SECTIONS), *LAYER, *GROUPS]
            raise unknown("setting of one trial", key, valid)
    if "task" not in single:
        from ablate.experiments.catalogue import task_names

        raise UserError(f"a trial needs a task: add task=NAME. Valid: {', '.join(task_names())}.")
    seed = single["seed"]
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise UserError(f"seed is {seed!r}; it must be a whole number.")
    content = {
        "name": "train",
        "task": single["task"],
        "model": None if model == "none" else model,
        "seeds": [seed],
        "resources": {key: single[key] for key in ("cpus", "gpus", "backend")},
        **sections,
    }
    return content, seed
