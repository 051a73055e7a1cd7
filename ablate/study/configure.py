"""The resolved configuration of each point of a design, and its identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from ablate.arguments import bind
from ablate.errors import UserError, unknown
from ablate.experiments.catalogue import make_task, task_class
from ablate.experiments.task import MemoryTask, Task
from ablate.study.factors import Factor, Levels
from ablate.study.schema import Scalar, Study
from ablate.trial.space import (
    CHOICE,
    GROUPS,
    LAYER,
    ConfigDirs,
    Inactive,
    Model,
    active_axes,
    apply,
    compose_model,
    resolve,
    target_class,
)
from ablate.trial.train import TrainConfig

SECTIONS = ("task_args", "train")
MODEL = "model"
"""The factor whose levels are whole presets."""


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
    """Turns levels into configurations; reads each preset and makes each task once.

    `base` is the model that levels are applied to, and `parts` whole components that some levels
    stand for; a path between two models sets both.
    """

    study: Study
    file: str
    config_dirs: ConfigDirs = ()
    allow: tuple[str, ...] = ()
    base: Model | None = None
    parts: dict[tuple[str, str], Model] = field(default_factory=dict)
    _tasks: dict[str, tuple[dict[str, Any], Task, str]] = field(default_factory=dict)
    _presets: dict[str, Model] = field(default_factory=dict)

    def __post_init__(self) -> None:
        needs = {}
        for name in self.study.task_names:
            try:
                needs[name] = not hasattr(task_class(name), "run")
            except UserError as error:
                raise UserError(f"{self.file}: task: {error}") from None
        self.preset = self.study.model or next(_starts(self.study), None)
        for name, needed in needs.items():
            if needed == (self.preset is None):
                need = "needs a model" if needed else "brings its own learner, so no model"
                raise UserError(f"{self.file}: model is {self.preset!r}; {name} {need}.")
        self.needs_model = self.preset is not None
        # A memory that learns online is not trained, nor is a task's own learner.
        self.trains = any(not hasattr(task_class(name), "learn") for name in needs)
        self.trains &= self.needs_model
        if self.study.train and self.needs_model and not self.trains:
            raise UserError(f"{self.file}: train: {next(iter(needs))} trains by itself.")

    def configure(self, levels: Levels) -> Configured:
        """The cell of one point.

        Raises:
            UserError: an unknown key, choice or value, with file and key.
        """
        name, task_args, task, data = self._task(levels)
        inactive: dict[str, str] = {}
        unused: dict[str, str] = {}
        config: dict[str, Any] = {"model": None, "task": None, "train": None}
        if self.needs_model:
            config["model"] = self._model(levels, inactive, unused)
            if not isinstance(task, MemoryTask):
                config["train"] = self._train(levels)
                self._check_ends(config["model"], name, task)
        config["task"] = {"name": name, "args": task_args}
        here = {key: level for key, level in levels.items() if key not in inactive}
        return Configured(identity(config, data), config, task, here, inactive, unused)

    def _check_ends(self, model: Model, name: str, task: Task) -> None:
        """Refuse a head that is not the task's kind: one that sees the answer would always win."""
        cls: Any = target_class(model["backbone"]["_target_"], allow=self.allow)
        wanted = getattr(task, "reconstructs", False)
        if cls.reconstructs and not wanted:
            raise UserError(
                f"{self.file}: backbone {cls.__name__} says a row from its end, where it has seen "
                f"what {name} asks it to predict; only a task of reconstruction may have it."
            )
        if wanted and not cls.reconstructs:
            raise UserError(
                f"{self.file}: {name} asks for the row that the model has read, which "
                f"{cls.__name__} repeats token by token; set model_args.backbone: autoencoder."
            )

    def changed(self, one: Configured, key: str, value: Any) -> Configured:
        """The same cell with one option of its model set to another value."""
        model = self.apply(one.config["model"], "match.by", key, value)
        config = {**one.config, "model": self.resolve(model)}
        data = self._task(one.levels)[3]
        return replace(one, id=identity(config, data), config=config)

    def present(self, key: str, like: Scalar) -> Scalar:
        """What the study's model, task or training has for `key`; `like` is another level of it.

        Raises:
            UserError: the model has no such part.
        """
        section, _, option = key.partition(".")
        if section == "train":
            return cast(Scalar, self._train({}).get(option))
        if section == "task_args":
            return cast(Scalar, self._task({})[1].get(option))
        model = self.start(self.preset or "")
        resolved = self.resolve(model)
        if key in LAYER:
            return cast(Scalar, resolved[key])
        component = resolved.get(section)
        if component is None:
            raise UserError(f"{section} is not active in {self.preset}")
        if not option and not isinstance(like, str):
            option = target_class(component["_target_"], allow=self.allow).principal or ""  # type: ignore[attr-defined]
        return cast(Scalar, component[option] if option else model[section].get(CHOICE))

    def start(self, preset: str) -> Model:
        """A preset with the study's `model_args` that it has."""
        return self._set_arguments(self._compose(preset), {})

    def _compose(self, preset: str) -> Model:
        if preset not in self._presets:
            found = compose_model(preset, self.config_dirs, where=f"{self.file}: model")
            self._presets[preset] = found
        return self._presets[preset]

    def check_keys(self, factors: tuple[Factor, ...]) -> None:
        """Refuse a factor that is no setting at all, or that is set elsewhere too.

        Raises:
            UserError: with the nearest valid key.
        """
        task_args = [self.study.task_args, *self.study.tasks.values()]
        fixed = {
            **self.study.model_args,
            **{f"task_args.{key}": value for args in task_args for key, value in args.items()},
            **{f"train.{key}": value for key, value in self.study.train.items()},
        }
        if self.study.model:
            fixed[MODEL] = self.study.model
        for factor in factors:
            if factor.key in fixed:
                raise UserError(
                    f"{self.file}: design.factors: {factor.key} is also set outside the design, to "
                    f"{fixed[factor.key]!r}. The first level is the baseline's: remove one of both."
                )
            if not (factor.key == "task" and self.study.tasks):
                self.check_key(factor.key, f"{self.file}: design.factors")

    def check_key(self, key: str, where: str) -> None:
        """Refuse a key that is no setting.

        Raises:
            UserError: with the nearest valid key.
        """
        section, _, option = key.partition(".")
        if section in SECTIONS and option:
            if section == "train" and not self.trains:
                raise UserError(f"{where}: {key}: {self.study.task_names[0]} trains by itself.")
        elif not self.needs_model:
            raise UserError(
                f"{where}: '{key}' belongs to a model, but {self.study.task_names[0]} has none. "
                "Factors here are task_args.NAME."
            )
        elif section not in (*GROUPS, *LAYER) and key != MODEL:
            valid = [MODEL, *GROUPS, *LAYER, *(f"{one}.NAME" for one in SECTIONS)]
            raise unknown("factor", key, valid, where=where)

    def _task(self, levels: Levels) -> tuple[str, dict[str, Any], Task, str]:
        name = str(levels.get("task", self.study.task_names[0]))
        args = {
            **self.study.task_args,
            **self.study.tasks.get(name, {}),
            **_of("task_args", levels),
        }
        key = json.dumps([name, args], sort_keys=True)
        if key not in self._tasks:
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
            if (primary := self.study.measure.primary) not in task.metrics:
                where = f"{self.file}: measure.primary"
                raise unknown(f"metric of {name}", primary, task.metrics, where=where)
            self._tasks[key] = (bound, task, task.data_identity())
        return (name, *self._tasks[key])

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
        model = self.base or self._compose(str(levels.get(MODEL, self.preset)))
        factors = {
            key: level
            for key, level in levels.items()
            if key.partition(".")[0] not in (*SECTIONS, "task", MODEL)
        }
        args = self.study.model_args
        for section, settings in (("model_args", args), ("design.factors", factors)):
            for key, value in _swaps(settings).items():
                if part := self.parts.get((key, str(value))):
                    model = {**model, key: part}
                else:
                    model = self.apply(model, section, key, value)
        model = self._set_options(model, "model_args", args, unused)
        return self.resolve(self._set_options(model, "design.factors", factors, inactive))

    def _set_arguments(self, model: Model, unused: dict[str, str]) -> Model:
        for key, value in _swaps(self.study.model_args).items():
            model = self.apply(model, "model_args", key, value)
        return self._set_options(model, "model_args", self.study.model_args, unused)

    def _set_options(
        self, model: Model, section: str, settings: Mapping[str, Any], idle: dict[str, str]
    ) -> Model:
        """`model` with the settings that choose no component; what has no effect goes to `idle`."""
        active = self._active(model)
        for key, value in settings.items():
            axis = key.partition(".")[0]
            if axis in GROUPS and axis not in active:
                idle[key] = f"{self.file}: {section}.{key}: {axis} is not active in any cell."
            elif key not in _swaps(settings):
                try:
                    model = self.apply(model, section, key, value)
                except Inactive as reason:
                    idle[key] = str(reason)
        return model

    def resolve(self, model: Model) -> Model:
        """What a model really is, every default spelt out."""
        return resolve(model, config_dirs=self.config_dirs, allow=self.allow, where=self.file)

    def _active(self, model: Model) -> tuple[str, ...]:
        return active_axes(model, config_dirs=self.config_dirs, allow=self.allow, where=self.file)

    def apply(self, model: Model, section: str, key: str, value: Any) -> Model:
        """`model` with one setting of a section of the file laid over it."""
        where = f"{self.file}: {section}.{key}"
        return apply(model, key, value, config_dirs=self.config_dirs, allow=self.allow, where=where)


def _starts(study: Study) -> Iterator[str]:
    """Presets that designs start from, where the study names none."""
    for design in study.all_designs.values():
        if design.start:
            yield design.start
        for factors in (design.blocks, design.factors):
            if MODEL in factors and factors[MODEL].levels:
                yield str(factors[MODEL].levels[0])


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
