"""The search space: read presets and choices, swap one, and resolve what a model really is.

A model is a plain dict: ``name``, ``chunk`` and ``read`` of its memory layers, one entry for each
axis (None where the axis is not active) and ``backbone``. The entries name a class by ``_target_``
beside that class's options.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import json
import sys
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from ablate.arguments import bind, options
from ablate.errors import UserError, unknown

Model: TypeAlias = dict[str, Any]
ConfigDirs: TypeAlias = Sequence[str | Path]

AXES = (
    "memory",
    "feature_map",
    "window",
    "bias",
    "retention",
    "inner_optimizer",
    "newton_schulz",
)
LAYOUT = ("hybrid", "backbone")  # how memories make a model; every model has both
GROUPS = (*AXES, *LAYOUT)
LAYER = ("chunk", "read")  # settings of the memory layer itself
CHOICE = "_choice_"  # the name that a component was chosen by; not part of what it is
ALONE = {"_target_": "ablate.components.hybrid.MemoryAlone", CHOICE: "lmm"}


class Inactive(UserError):
    """A setting for something that this model does not have."""


def choices(group: str, config_dirs: ConfigDirs = ()) -> list[str]:
    """Names of all choices of an axis (or ``backbone``, or ``model`` for the presets), sorted."""
    roots = [Path(folder) for folder in config_dirs]
    found = {path.stem for root in roots for path in (root / group).glob("*.yaml")}
    return sorted(found | _shipped(group))


@functools.cache
def _shipped(group: str) -> frozenset[str]:
    folder = resources.files("ablate.search_spaces") / group
    if not folder.is_dir():
        return frozenset()
    return frozenset(item.name[:-5] for item in folder.iterdir() if item.name.endswith(".yaml"))


def compose_model(name: str, config_dirs: ConfigDirs = (), *, where: str = "") -> Model:
    """Read the preset `name` with all its choices; the user's folders come before Ablate's.

    Raises:
        UserError: no such preset, a key that no model has, or YAML that Hydra cannot compose.
    """
    known = choices("model", config_dirs)
    if name not in known:
        raise unknown("preset", name, known, where=where)
    composed, chosen = _compose("model@_global_", name, _folders(config_dirs))
    valid = ("name", *LAYER, *GROUPS)
    file = f"search_spaces/model/{name}.yaml"
    for key in composed:
        if key not in valid:
            raise unknown("key of a model", key, valid, where=file)
    model: Model = {"name": name, **{key: composed.get(key) for key in LAYER}}
    for group in GROUPS:
        component = composed.get(group, dict(ALONE) if group == "hybrid" else None)
        if component is not None and "_target_" not in component:
            raise UserError(
                f"{file}: {group} has no _target_; name a choice in its defaults list: "
                f"- /{group}: {' | '.join(choices(group, config_dirs))}"
            )
        if component is not None and group in chosen:
            component[CHOICE] = chosen[group]
        model[group] = component
    return model


def preset_text(name: str, config_dirs: ConfigDirs = ()) -> list[str]:
    """What a preset's file says at its head: its update rule and where that is printed."""
    file = Path("model") / f"{name}.yaml"
    for root in (*map(Path, config_dirs), resources.files("ablate.search_spaces")):
        found = root / str(file)
        if found.is_file():
            lines = found.read_text(encoding="utf-8").splitlines()
            head = itertools.takewhile(lambda line: line.startswith("#"), lines)
            return [line.lstrip("# ") for line in head]
    return []


def load_choice(axis: str, name: str, config_dirs: ConfigDirs = (), *, where: str = "") -> Model:
    """Read one choice of an axis.

    Raises:
        UserError: no such choice.
    """
    known = choices(axis, config_dirs)
    if name not in known:
        raise unknown(f"choice of {axis}", name, known, where=where)
    composed, _ = _compose(axis, name, _folders(config_dirs))
    component: Model = composed.get(axis, composed)
    component[CHOICE] = name
    return component


def _folders(config_dirs: ConfigDirs) -> tuple[str, ...]:
    return tuple(str(Path(folder).absolute()) for folder in config_dirs)


def _compose(group: str, name: str, folders: tuple[str, ...]) -> tuple[Model, dict[str, str]]:
    content, chosen = _compose_once(group, name, folders)
    return _copied(content), dict(chosen)


def _copied(value: Any) -> Any:
    """A copy of plain content; a plan makes some ten thousand, for which deepcopy is slow."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


@functools.lru_cache(maxsize=256)
def _compose_once(group: str, name: str, folders: tuple[str, ...]) -> tuple[Model, dict[str, str]]:
    """What Hydra makes of one file: the plain content, and the choices of its defaults list."""
    from hydra import compose, initialize
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    # With no primary config, the search path alone decides which folder comes first.
    searched = [*(f"file://{folder}" for folder in folders), "pkg://ablate.search_spaces"]
    overrides = [f"hydra.searchpath={json.dumps(searched)}", f"+{group}={name}"]
    try:
        with initialize(config_path=None, version_base="1.3"):
            composed = compose(overrides=overrides, return_hydra_config=True)
            own = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
            content = OmegaConf.to_container(own, resolve=True)
            chosen = dict(composed.hydra.runtime.choices)
    except (HydraException, OmegaConfBaseException, YAMLError, RecursionError, ValueError) as error:
        file = f"search_spaces/{group.partition('@')[0]}/{name}.yaml"
        raise UserError(f"{file}: {str(error).strip()}") from None
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}, {
        key: value for key, value in chosen.items() if value is not None
    }


def target_class(target: str, *, allow: Iterable[str] = (), where: str = "") -> type:
    """The class that a ``_target_`` names; only classes below ``ablate`` or an allowed package.

    Raises:
        UserError: a target elsewhere, or one that is not there.
    """
    packages = ("ablate", *allow)
    module_name, _, name = str(target).rpartition(".")
    if str(target).partition(".")[0] not in packages or not module_name:
        raise UserError(
            f"{_place(where)}_target_ '{target}' is refused: it must lie below "
            f"{' or '.join(f'{package}.' for package in packages)}; --allow PACKAGE admits another."
        )
    try:
        module = sys.modules.get(module_name) or importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(f"{_place(where)}_target_ '{target}': {error}.") from None
    found = getattr(module, name, None)
    if inspect.isclass(found) and found.__module__.partition(".")[0] in packages:
        return found
    here = [
        key
        for key, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module_name
    ]
    raise unknown(f"class of {module_name}", name, here, where=where)


def check_component(
    axis: str, component: Model, *, allow: Iterable[str] = (), where: str = ""
) -> Model:
    """`component` with every option of its class: given ones checked, defaults filled in.

    Raises:
        UserError: a refused target, an unknown option, or a value of the wrong type.
    """
    cls = target_class(component["_target_"], allow=allow, where=where)
    values = {key: value for key, value in component.items() if not key.startswith("_")}
    bound = bind(cls, values, kind=f"key of {axis}", prefix=f"{axis}.", where=where)
    return {"_target_": component["_target_"], **bound}


def apply(
    model: Model,
    key: str,
    value: Any,
    *,
    config_dirs: ConfigDirs = (),
    allow: Iterable[str] = (),
    where: str = "",
) -> Model:
    """A copy of `model` with one thing changed.

    An axis with a name swaps its choice (naming the present choice changes nothing), an axis with
    a number sets the option that the choice declares as ``principal``, ``axis.option`` sets any
    option, and ``chunk`` and ``read`` set those.

    Raises:
        Inactive: the model has no such axis or its choice has no such option.
        UserError: an unknown axis or choice, or a value that fits none of the above.
    """
    axis, _, option = key.partition(".")
    if key not in LAYER and (axis not in GROUPS or "." in option):
        valid = [*LAYER, *GROUPS, *_dotted(model, allow)]
        raise unknown("key of a model", key, valid, where=where)
    changed = dict(model)
    present = changed.get(axis)
    if key in LAYER:
        if not _has_chunk(model, allow):
            raise Inactive(f"{_place(where)}{key} is not active in {model['name']}.")
        changed[key] = value
    elif option or _is_number(value):
        if present is None:
            raise Inactive(f"{_place(where)}{axis} is not active in {model['name']}.")
        option = _option(axis, option, present, value, allow=allow, where=where)
        changed[axis] = {**present, option: value}
    elif not isinstance(value, str):
        names = choices(axis, config_dirs)
        hint = " Write 'none' for no effect." if value is None and "none" in names else ""
        raise UserError(
            f"{_place(where)}{axis} is {value!r}; it must be the name of a choice.{hint} "
            f"Valid: {', '.join(names)}."
        )
    elif present is None or present.get(CHOICE) != value:
        changed[axis] = load_choice(axis, value, config_dirs, where=where)
    return changed


def _option(
    axis: str, option: str, present: Model, value: Any, *, allow: Iterable[str], where: str
) -> str:
    """The option that a setting means: the named one, or the principal one for a bare number."""
    cls = target_class(present["_target_"], allow=allow, where=where)
    known = options(cls)
    option = option or getattr(cls, "principal", None) or ""
    if not option:
        raise UserError(
            f"{_place(where)}{axis} is {value!r}, but {cls.__name__} has no principal option that "
            f"takes a number; write {axis}.OPTION. Valid: {', '.join(known) or 'none'}."
        )
    if option not in known:
        raise Inactive(str(unknown(f"key of {axis} ({cls.__name__})", option, known, where=where)))
    return option


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _place(where: str) -> str:
    return f"{where}: " if where else ""


def _dotted(model: Model, allow: Iterable[str]) -> list[str]:
    return [
        f"{group}.{option}"
        for group in GROUPS
        if model.get(group)
        for option in options(target_class(model[group]["_target_"], allow=allow))
    ]


def _has_chunk(model: Model, allow: Iterable[str]) -> bool:
    memory = target_class(model["memory"]["_target_"], allow=allow)
    return not getattr(memory, "is_mixer", False)


def is_kernel(model: Model, allow: Iterable[str] = ()) -> bool:
    """Whether the feature map is known by its kernel alone; then no chunk means the whole sequence.

    The memory is then another layer, which keeps what was written as pairs.
    """
    lift = model.get("feature_map")
    return lift is not None and getattr(
        target_class(lift["_target_"], allow=allow), "is_kernel", False
    )


def active_axes(
    model: Model, *, config_dirs: ConfigDirs = (), allow: Iterable[str] = (), where: str = ""
) -> tuple[str, ...]:
    """The groups that matter: memory and layout, and what an active choice makes active in turn.

    Raises:
        UserError: an active axis without a choice.
    """
    active = ["memory", *LAYOUT]
    owner = dict.fromkeys(active, f"model {model['name']}")
    for axis in active:
        component = _component(model, axis)
        if component is None:
            names = ", ".join(choices(axis, config_dirs))
            raise UserError(
                f"{_place(where)}{axis} has no choice, but {owner[axis]} needs one: set {axis}. "
                f"Valid: {names}."
            )
        cls = target_class(component["_target_"], allow=allow, where=where)
        for further in getattr(cls, "axes", ()):
            if further not in active:
                active.append(further)
                owner[further] = f"{axis} {component.get(CHOICE, cls.__name__)}"
    return tuple(group for group in GROUPS if group in active)


def _component(model: Model, group: str) -> Model | None:
    """A model without a hybrid is its memory alone."""
    component: Model | None = model.get(group)
    return ALONE if component is None and group == "hybrid" else component


def resolve(
    model: Model, *, config_dirs: ConfigDirs = (), allow: Iterable[str] = (), where: str = ""
) -> Model:
    """What the model really is: inactive axes None, every default spelt out, all values checked.

    Two models that differ in spelling only resolve to equal dicts; resolving twice changes nothing.

    Raises:
        UserError: an active axis without a choice, an unknown option, or a value of a wrong type.
    """
    active = active_axes(model, config_dirs=config_dirs, allow=allow, where=where)
    resolved: Model = {"name": model["name"], **dict.fromkeys(LAYER)}
    if _has_chunk(model, allow):
        chunk = model.get("chunk")
        if isinstance(chunk, float) and chunk.is_integer():
            chunk = int(chunk)
        whole = chunk is None and is_kernel(model, allow)
        if not whole and (not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1):
            raise UserError(f"{_place(where)}chunk is {chunk!r}; it must be a whole number >= 1.")
        resolved["chunk"] = chunk
        resolved["read"] = _read(model, where)
    for group in GROUPS:
        component = _component(model, group)
        resolved[group] = (
            check_component(group, component, allow=allow, where=where)
            if component is not None and group in active
            else None
        )
    others = resolved["hybrid"].get("memories")
    if isinstance(others, list):

        def named(one: str | Model) -> str | Model:
            return _other(one, model, config_dirs=config_dirs, allow=allow, where=where)

        resolved["hybrid"]["memories"] = [named(one) for one in others]
    return resolved


def _other(
    named: str | Model, model: Model, *, config_dirs: ConfigDirs, allow: Iterable[str], where: str
) -> str | Model:
    """The memory of another preset, resolved, which a hybrid has beside this model's own."""
    from ablate.components.hybrid import OWN

    if named == OWN:
        return OWN
    other = compose_model(named, config_dirs, where=where) if isinstance(named, str) else named
    whole = {**other, "hybrid": None, "backbone": model["backbone"]}
    found = resolve(whole, config_dirs=config_dirs, allow=allow, where=where)
    return {key: found[key] for key in ("name", *LAYER, *AXES)}


def _read(model: Model, where: str) -> str:
    """When a token reads the memory: after its own write, unless the model says otherwise."""
    from ablate.components.memory_layer import READS

    read = model.get("read") or READS[0]
    if read not in READS:
        raise unknown("value of read", read, READS, where=where)
    return str(read)
