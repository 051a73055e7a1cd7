"""The resolved configuration of each point of a design, and its identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ablate.errors import UserError, unknown
from ablate.experiments.catalogue import make_task, task_class
from ablate.experiments.task import Task
from ablate.study.factors import Factor, Levels
from ablate.study.schema import Study
from ablate.trial.arguments import bind
from ablate.trial.space import (
    GROUPS,
    ConfigDirs,
    Inactive,
    Model,
    active_axes,
    apply,
    compose_model,
    resolve,
)
from ablate.trial.train import TrainConfig

SECTIONS = ("task_args", "train")


@dataclass(frozen=True)
class Configured:
    """One cell before it is measured.

    Args:
        id: hash of the resolved configuration and of the data.
        config: ``model`` (or None), ``task`` and ``train``, with every default spelt out.
        levels: the factors that apply here.
        inactive: why each other factor does not apply.
        unused: why keys of ``model_args`` change nothing here.
    """

    id: str
    config: dict[str, Any]
    task: Task
    levels: Levels
    inactive: Mapping[str, str]
    unused: Mapping[str, str]


@dataclass
class Workshop:
    """Turns levels into configurations; reads each preset and makes each task once."""

    study: Study
    file: str
    config_dirs: ConfigDirs = ()
    allow: tuple[str, ...] = ()
    _tasks: dict[str, tuple[dict[str, Any], Task, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            self.needs_model = not hasattr(task_class(self.study.task), "run")
        except UserError as error:
            raise UserError(f"{self.file}: task: {error}") from None
        if self.needs_model == (self.study.model is None):
            need = "needs a model" if self.needs_model else "brings its own learner, so no model"
            raise UserError(
                f"{self.file}: model is {self.study.model!r}; {self.study.task} {need}."
            )

    def configure(self, levels: Levels) -> Configured:
        """The cell of one point.

        Raises:
            UserError: an unknown key, choice or value, with file and key.
        """
        task_args, task, data = self._task(levels)
        inactive: dict[str, str] = {}
        unused: dict[str, str] = {}
        config: dict[str, Any] = {"model": None, "task": None, "train": None}
        if self.needs_model:
            config["model"] = self._model(levels, inactive, unused)
            config["train"] = self._train(levels)
        config["task"] = {"name": self.study.task, "args": task_args}
        here = {key: level for key, level in levels.items() if key not in inactive}
        return Configured(identity(config, data), config, task, here, inactive, unused)

    def check_keys(self, factors: tuple[Factor, ...]) -> None:
        """Refuse a factor that is no setting at all, or that is set elsewhere too.

        Raises:
            UserError: with the nearest valid key.
        """
        fixed = {
            **self.study.model_args,
            **{f"task_args.{key}": value for key, value in self.study.task_args.items()},
            **{f"train.{key}": value for key, value in self.study.train.items()},
        }
        for factor in factors:
            section, _, option = factor.key.partition(".")
            where = f"{self.file}: design.factors"
            if factor.key in fixed:
                raise UserError(
                    f"{where}: {factor.key} is also set outside the design, to "
                    f"{fixed[factor.key]!r}. The first level is the baseline's: remove one of both."
                )
            if section in SECTIONS and option:
                if section == "train" and not self.needs_model:
                    raise UserError(f"{where}: {factor.key}: {self.study.task} trains by itself.")
            elif not self.needs_model:
                raise UserError(
                    f"{where}: '{factor.key}' belongs to a model, but {self.study.task} has none. "
                    "Factors here are task_args.NAME."
                )
            elif section not in (*GROUPS, "chunk"):
                valid = [*GROUPS, "chunk", *(f"{one}.NAME" for one in SECTIONS)]
                raise unknown("factor", factor.key, valid, where=where)

    def _task(self, levels: Levels) -> tuple[dict[str, Any], Task, str]:
        args = {**self.study.task_args, **_of("task_args", levels)}
        key = json.dumps(args, sort_keys=True)
        if key not in self._tasks:
            name = self.study.task
            bound = bind(
                task_class(name),
                args,
                kind=f"argument of task {name}",
                prefix="task_args.",
                where=self.file,
            )
            try:
                task = make_task(name, bound)
            except (UserError, ValueError) as error:
                raise UserError(f"{self.file}: {error}") from error
            self._tasks[key] = (bound, task, task.data_identity())
        return self._tasks[key]

    def _train(self, levels: Levels) -> dict[str, Any]:
        values = {**self.study.train, **_of("train", levels)}
        bound = bind(TrainConfig, values, kind="key of train", prefix="train.", where=self.file)
        try:
            TrainConfig(**bound)
        except ValueError as error:
            raise UserError(f"{self.file}: {error}") from None
        return bound

    def _model(self, levels: Levels, inactive: dict[str, str], unused: dict[str, str]) -> Model:
        """The resolved model: first all swaps of choices, then all options of what is there."""
        assert self.study.model is not None
        model = compose_model(self.study.model, self.config_dirs, where=f"{self.file}: model")
        args = self.study.model_args
        factors = {k: v for k, v in levels.items() if k.partition(".")[0] not in SECTIONS}
        sections = (("model_args", args, unused), ("design.factors", factors, inactive))
        for section, settings, _ in sections:
            for key, value in _swaps(settings).items():
                model = self._apply(model, section, key, value)
        active = self._active(model)
        for section, settings, idle in sections:
            for key, value in settings.items():
                axis = key.partition(".")[0]
                if axis in GROUPS and axis not in active:
                    why = f"{axis} is not active in any cell"
                    idle[key] = f"{self.file}: {section}.{key}: {why}."
                elif key not in _swaps(settings):
                    try:
                        model = self._apply(model, section, key, value)
                    except Inactive as reason:
                        idle[key] = str(reason)
        return resolve(model, config_dirs=self.config_dirs, allow=self.allow, where=self.file)

    def _active(self, model: Model) -> tuple[str, ...]:
        axes = active_axes(model, config_dirs=self.config_dirs, allow=self.allow, where=self.file)
        return (*axes, "backbone")

    def _apply(self, model: Model, section: str, key: str, value: Any) -> Model:
        where = f"{self.file}: {section}.{key}"
        return apply(model, key, value, config_dirs=self.config_dirs, allow=self.allow, where=where)


def _of(section: str, levels: Levels) -> Levels:
    prefix = f"{section}."
    return {key[len(prefix) :]: v for key, v in levels.items() if key.startswith(prefix)}


def _swaps(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that choose a component: an axis by itself, with anything but a number."""
    return {
        key: value
        for key, value in settings.items()
        if key in GROUPS and (isinstance(value, bool) or not isinstance(value, (int, float)))
    }


def identity(config: Mapping[str, Any], data: str) -> str:
    """Hash of what a cell computes; key order and the model's name do not matter."""
    model = config["model"]
    semantic = {**config, "model": model and {**model, "name": ""}, "data": data}
    text = json.dumps(semantic, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
