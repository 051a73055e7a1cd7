"""What to check: a preset, a model's file, or a component of the user's own in its module."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ablate.errors import UserError, unknown
from ablate.trial.space import (
    GROUPS,
    Model,
    active_axes,
    choices,
    compose_model,
    load_choice,
    target_class,
)

HOST, MUON_HOST = "omeganet", "atlas"


@dataclass(frozen=True)
class Target:
    """A model as it is composed, and the package that its own component lies in."""

    model: Model
    allow: tuple[str, ...]
    says: str


def find_target(
    given: str,
    *,
    axis: str | None = None,
    host: str | None = None,
    config_dirs: Sequence[Path] = (),
    allow: Sequence[str] = (),
) -> Target:
    """Read what the user named.

    Args:
        given: a preset, ``model.yaml``, ``module.py`` or ``module.py:Class``.
        axis: the axis that the class is a choice of; by default what the class declares.
        host: the preset whose choice it replaces.

    Raises:
        UserError: no such thing, no class or more than one, or an axis that cannot be told.
    """
    file, _, wanted = given.partition(":")
    if file.endswith(".py"):
        cls = _find_class(Path(file), wanted)
        return _in_host(cls, axis or declared_axis(cls), host, config_dirs, allow)
    if axis or host:
        raise UserError(f"--axis and --host belong to a module (my_module.py), not to '{given}'.")
    if given.endswith((".yaml", ".yml")):
        with _as_preset(Path(given), config_dirs) as (name, folders):
            return Target(compose_model(name, folders), tuple(allow), given)
    return Target(compose_model(given, config_dirs, where="TARGET"), tuple(allow), given)


@contextmanager
def _as_preset(file: Path, config_dirs: Sequence[Path]) -> Iterator[tuple[str, list[Path]]]:
    """The file as a preset of some folder: its own if that is called ``model``."""
    if not file.is_file():
        raise UserError(f"{file}: there is no such file.")
    if file.parent.absolute().name == "model":
        yield file.stem, [file.parent.absolute().parent, *config_dirs]
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "model" / f"{file.stem}.yaml"
        copy.parent.mkdir()
        copy.write_text(file.read_text())
        yield file.stem, [Path(folder), *config_dirs]


def _find_class(file: Path, wanted: str) -> type:
    """The class of a file by its name, or the only one that can be a choice."""
    module = _load(file)
    own = {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
    }
    if wanted:
        if wanted not in own:
            raise unknown(f"class of {file}", wanted, own)
        return own[wanted]
    likely = [name for name, cls in own.items() if hasattr(cls, "axes")] or list(own)
    if len(likely) == 1:
        return own[likely[0]]
    if not likely:
        raise UserError(f"{file} defines no class: a choice of an axis is a class.")
    raise UserError(
        f"{file} defines several classes; name one: "
        f"{' or '.join(f'{file}:{name}' for name in likely)}."
    )


def _load(file: Path) -> ModuleType:
    """Run a file as the module of its name, as a study would import it."""
    if not file.is_file():
        raise UserError(f"{file}: there is no such file.")
    name = file.stem
    if not name.isidentifier():
        raise UserError(f"{file}: '{name}' cannot be the name of a module; use letters, digits, _.")
    there = sys.modules.get(name)
    if there is not None and Path(getattr(there, "__file__", None) or "").resolve() == (
        file.resolve()
    ):
        return there
    if there is not None or name in sys.stdlib_module_names or name == "ablate":
        raise UserError(f"{file}: another module is called '{name}'; call the file something else.")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def declared_axis(cls: type) -> str:
    """The axis that a class says it is a choice of, or shares a base with the choices of.

    Raises:
        UserError: it says nothing, or no axis that there is.
    """
    said = getattr(cls, "axis", None)
    if said is not None:
        if said not in GROUPS:
            raise unknown("axis", said, GROUPS, where=f"{cls.__name__}.axis")
        return str(said)
    if getattr(cls, "is_mixer", False):
        return "memory"
    bases = {base for base in cls.__mro__[1:] if base.__module__.startswith("ablate.")}
    for axis in GROUPS:
        for name in choices(axis):
            shipped = target_class(load_choice(axis, name)["_target_"])
            if bases & set(shipped.__mro__):
                return axis
    raise UserError(
        f"{cls.__name__} does not say which axis it is a choice of: pass --axis, or write "
        f'axis: ClassVar[str] = "retention" into the class. Valid: {", ".join(GROUPS)}.'
    )


def _in_host(
    cls: type,
    axis: str,
    host: str | None,
    config_dirs: Sequence[Path],
    allow: Sequence[str],
) -> Target:
    """A preset with the class in the place of the preset's own choice."""
    if axis not in GROUPS:
        raise unknown("axis", axis, GROUPS, where="--axis")
    name = host or (MUON_HOST if axis == "newton_schulz" else HOST)
    model = compose_model(name, config_dirs, where="--host")
    if axis not in active_axes(model, config_dirs=config_dirs, allow=allow):
        raise UserError(f"--host {name} has no {axis} that {cls.__name__} could replace.")
    component: dict[str, Any] = {"_target_": f"{cls.__module__}.{cls.__name__}"}
    allowed = (*allow, cls.__module__.partition(".")[0])
    return Target({**model, axis: component}, allowed, f"{cls.__name__} as {axis} of {name}")
