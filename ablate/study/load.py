"""Find a study, compose it with what it includes, and lay the command line's overrides over it."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ablate.experiments
import ablate.search_spaces
from ablate.errors import UserError, unknown
from ablate.experiments.catalogue import study_names, study_path
from ablate.study.designs import refuse_many
from ablate.study.factors import make_factors
from ablate.study.schema import Design, Study, keys_of, validate
from ablate.study.strict_yaml import parse, read
from ablate.trial.space import GROUPS, ConfigDirs

# Below these keys, the rest of an override's key is one key: factor names have dots of their own.
_DOTTED = re.compile(
    r"(design\.factors|design\.blocks|designs\.[^.]+\.(?:factors|blocks)|model_args)\.(.+)"
)


def load_study(
    study: str | Path, overrides: Sequence[str] = (), *, config_dirs: ConfigDirs = ()
) -> tuple[Study, Path]:
    """Read the study `study` (a name or a path), with overrides such as ``seeds=5``.

    Raises:
        UserError: no such study, YAML that cannot be read, an include that fails, an override that
            makes no sense, content that the schema refuses, or a design of too many cells.
    """
    file = find_study(study, config_dirs)
    content = compose_study(file, config_dirs)
    for override in overrides:
        content = override_with(content, override)
    declared = validate(content, file)
    for key, design in declared.all_designs.items():
        if design.kind == "full":
            place = f"{file.name}: {key}"
            refuse_many(design, make_factors(design, place), place)
    return declared, file


def find_study(study: str | Path, config_dirs: ConfigDirs = ()) -> Path:
    """The file of a study: a path as it is, a name first in the user's folders, then in Ablate's.

    Raises:
        UserError: no file, or more than one of that name in one folder.
    """
    text = str(study)
    if text.endswith((".yaml", ".yml")) or "/" in text:
        path = Path(text)
        if path.is_dir():
            raise UserError(f"{text}: a folder; a study is a file that ends in .yaml.")
        if not path.is_file():
            raise UserError(f"{text}: no such file. A shipped study goes by its name alone.")
        if path.suffix != ".yaml":
            raise UserError(f"{text}: a study's file ends in .yaml; rename it.")
        return path.absolute()
    for folder in config_dirs:
        found = [
            path
            for path in sorted(Path(folder).rglob(f"{text}.yaml"))
            if path.parent.name not in ("model", *GROUPS)
        ]
        if len(found) > 1:
            raise UserError(f"'{text}' names {len(found)} studies in {folder}: give a path.")
        if found:
            return found[0].absolute()
    if text not in study_names():
        raise unknown("study", text, study_names())
    return study_path(text)


def compose_study(file: Path, config_dirs: ConfigDirs = ()) -> dict[str, Any]:
    """The content of a study file with everything that its defaults list includes.

    Raises:
        UserError: wrong YAML here or in an included file, a missing include, a cycle, or an
            interpolation that leads nowhere; with the file and, for includes, the way there.
    """
    roots = [file.parent, *(Path(folder).absolute() for folder in config_dirs)]
    roots += [Path(module.__path__[0]) for module in (ablate.experiments, ablate.search_spaces)]
    _check_includes(file, roots, ())
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    searched = json.dumps([f"file://{root}" for root in roots[1:]])
    try:
        with initialize_config_dir(str(file.parent), version_base="1.3"):
            composed = compose(file.stem, overrides=[f"hydra.searchpath={searched}"])
        content = OmegaConf.to_container(composed, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"{file.name}: {str(error).strip()}") from None
    assert isinstance(content, dict)
    named: dict[str, Any] = _named(content)
    return named


def _named(content: Any) -> Any:
    """`content` with text for keys; Hydra reads the key ``on`` as true."""
    if isinstance(content, list):
        return [_named(part) for part in content]
    if not isinstance(content, dict):
        return content
    return {"on" if key is True else str(key): _named(value) for key, value in content.items()}


def _check_includes(file: Path, roots: list[Path], stack: tuple[Path, ...]) -> None:
    """Read `file` and all that it includes by the strict rules, before Hydra does by its own."""
    way = " includes ".join(path.name for path in (*stack, file))
    if file in stack:
        raise UserError(f"{way}: a study cannot include itself.")
    content = read(file, where=way)
    defaults = content.get("defaults", [])
    if not isinstance(defaults, list):
        raise UserError(f"{way}: defaults is {defaults!r}; it must be a list.")
    for entry in defaults:
        target = _target(entry, file, roots, way)
        if target is not None:
            _check_includes(target, roots, (*stack, file))


def _target(entry: Any, file: Path, roots: list[Path], way: str) -> Path | None:
    """The file that one entry of a defaults list names; None for ``_self_`` and empty choices."""
    optional = False
    if isinstance(entry, dict) and len(entry) == 1:
        ((group, option),) = entry.items()
        optional = group.startswith("optional ")
        group = group.removeprefix("optional ").removeprefix("override ").partition("@")[0]
        name = f"{group}/{option}" if isinstance(option, str) else None
    elif isinstance(entry, str):
        name = None if entry == "_self_" else entry.partition("@")[0]
    else:
        raise UserError(f"{way}: defaults holds {entry!r}; write a file's name or GROUP: NAME.")
    if name is None or "${" in name or (isinstance(entry, dict) and "override " in str(entry)):
        return None
    folder = next((root for root in roots if file.is_relative_to(root)), file.parent)
    inside = Path() if name.startswith("/") else file.parent.relative_to(folder)
    relative = inside / f"{name.lstrip('/').removesuffix('.yaml')}.yaml"
    for root in roots:
        if (root / relative).is_file():
            return root / relative
    if optional:
        return None
    raise UserError(f"{way} includes {name}: no such file below {', '.join(map(str, roots))}.")


def override_with(content: dict[str, Any], override: str) -> dict[str, Any]:
    """A copy of `content` with one ``key=value`` laid over it, or one ``~key`` taken out.

    The value is read as YAML, by the same rules as the file.

    Raises:
        UserError: no ``=``, an unknown first key, or a key below something that has no keys.
    """
    changed = copy.deepcopy(content)
    where = f"command line: {override}"
    key, equals, text = override.partition("=")
    remove = key.startswith("~")
    if remove == bool(equals) or not key.strip("~"):
        raise UserError(f"{where}: write key=value, or ~key to take a key out.")
    path = _split(key.removeprefix("~"))
    fields = Study.model_fields
    if path[0] not in fields:
        raise unknown("key of a study", path[0], fields, where=where)
    if path[0] == "design" and len(path) > 1 and path[1] not in keys_of(Design):
        raise unknown("key of design", path[1], keys_of(Design), where=where)
    holder = changed
    for depth, part in enumerate(path[:-1], start=1):
        holder = holder.setdefault(part, {})
        if not isinstance(holder, dict):
            raise UserError(f"{where}: {'.'.join(path[:depth])} is {holder!r}, it has no keys.")
    name = path[-1]
    there = _take_out(holder, name) if path[0] == "model_args" else name in holder
    if not remove:
        holder[name] = parse(text, where=where)
    elif there:
        holder.pop(name, None)
    else:
        raise unknown(
            f"key of {'.'.join(path[:-1]) or 'this study'}", path[-1], holder, where=where
        )
    return changed


def _take_out(holder: dict[str, Any], name: str) -> bool:
    """Take out a name and what is below it, nested or spelt with dots; whether it was there."""
    found = False
    for key in list(holder):
        if key == name or key.startswith(f"{name}."):
            del holder[key]
            found = True
        elif name.startswith(f"{key}.") and isinstance(holder[key], dict):
            found |= _take_out(holder[key], name.removeprefix(f"{key}."))
    return found


def _split(key: str) -> list[str]:
    dotted = _DOTTED.fullmatch(key)
    return [*dotted[1].split("."), dotted[2]] if dotted else key.split(".")
