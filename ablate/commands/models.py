"""`ablate show` and `ablate components`: one architecture, and all there is to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ablate.analysis.formatting import count, size
from ablate.arguments import options, plain
from ablate.commands.settings import parse_setting
from ablate.commands.terminal import OK, console, print_json
from ablate.components.kernels.backend import Served, set_backend
from ablate.errors import unknown
from ablate.trial.build import build_model
from ablate.trial.cost import measure_cost
from ablate.trial.space import (
    CHOICE,
    GROUPS,
    LAYER,
    Model,
    active_axes,
    apply,
    choices,
    compose_model,
    load_choice,
    preset_text,
    resolve,
    target_class,
)

VOCAB, CONTEXT = 256, 512


def show_command(
    model: str,
    settings: Sequence[str] = (),
    *,
    vocab: int = VOCAB,
    context: int = CONTEXT,
    config_dirs: Sequence[Path] = (),
    allow: Sequence[str] = (),
    as_json: bool = False,
) -> int:
    """Print what a preset is made of, where that comes from, and what it costs."""
    composed = compose_model(model, config_dirs, where="MODEL")
    for setting in settings:
        key, value = parse_setting(setting)
        composed = apply(composed, key, value, config_dirs=config_dirs, allow=allow, where=setting)
    resolved = resolve(composed, config_dirs=config_dirs, allow=allow, where=model)
    active = active_axes(composed, config_dirs=config_dirs, allow=allow)
    cost = measure_cost(resolved, vocab, context, allow=allow)
    shown = {
        "model": model,
        "about": preset_text(model, config_dirs),
        **{key: resolved[key] for key in LAYER},
        "axes": {
            group: _component(composed[group], resolved[group], allow)
            for group in GROUPS
            if group in active
        },
        "vocab": vocab,
        "context": context,
        "parameters": cost.parameters,
        "state_bytes": cost.state_bytes,
        "flops_per_token": cost.flops_per_token,
    }
    shown["kernels"] = [str(one) for one in _served(resolved, allow)]
    if as_json:
        print_json(shown)
    else:
        _show(shown, console())
    return OK


def _served(resolved: Model, allow: Sequence[str]) -> tuple[Served, ...]:
    """What would run each operation that has a kernel on this machine, by `auto`."""
    import torch

    built = build_model(resolved, 2, seed=0, device="meta", allow=allow)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return set_backend(built, "auto", device)


def components_command(
    axis: str | None,
    *,
    config_dirs: Sequence[Path] = (),
    allow: Sequence[str] = (),
    as_json: bool = False,
) -> int:
    """Print every choice of an axis, or of all axes, with its options and its source."""
    if axis is not None and axis not in GROUPS:
        raise unknown("axis", axis, GROUPS)
    catalogue = {
        group: {
            name: _choice(group, name, config_dirs, allow) for name in choices(group, config_dirs)
        }
        for group in (GROUPS if axis is None else (axis,))
    }
    models = choices("model", config_dirs) if axis is None else []
    if as_json:
        print_json({"axes": catalogue, **({"models": models} if axis is None else {})})
        return OK
    out = console()
    table = _table("axis", "choice", "options and defaults", "source")
    for group, found in catalogue.items():
        for i, (name, choice) in enumerate(found.items()):
            values = _spelt(choice["options"])
            row = ("" if i else group, name, values, choice["source"])
            table.add_row(*map(escape, row))
    out.print(table)
    if models:
        out.print(f"models: {', '.join(models)}", markup=False)
    return OK


def _component(composed: Model, resolved: Model, allow: Sequence[str]) -> dict[str, Any]:
    cls = target_class(resolved["_target_"], allow=allow)
    return {
        "choice": composed.get(CHOICE, cls.__name__),
        "target": resolved["_target_"],
        "options": {key: value for key, value in resolved.items() if key != "_target_"},
        "source": getattr(cls, "source", ""),
    }


def _choice(
    group: str, name: str, config_dirs: Sequence[Path], allow: Sequence[str]
) -> dict[str, Any]:
    written = load_choice(group, name, config_dirs)
    cls = target_class(written["_target_"], allow=allow, where=f"{group}/{name}.yaml")
    values = {
        option: plain(parameter.default)
        for option, parameter in options(cls).items()
        if parameter.default is not parameter.empty
    }
    values |= {key: value for key, value in written.items() if not key.startswith("_")}
    return {
        "target": written["_target_"],
        "options": values,
        "source": getattr(cls, "source", ""),
    }


def _show(shown: dict[str, Any], out: Console) -> None:
    out.print(shown["model"], style="bold", markup=False)
    for line in shown["about"]:
        out.print(line, markup=False, highlight=False)
    table = _table("axis", "choice", "options", "source")
    for group, found in shown["axes"].items():
        row = (group, found["choice"], _spelt(found["options"]), found["source"])
        table.add_row(*map(escape, row))
    out.print(table)
    for key in LAYER:
        if shown[key] is not None:
            out.print(f"{key} {shown[key]}")
    out.print(
        f"{shown['parameters']:,} parameters, {size(shown['state_bytes'])} of state, "
        f"{count(shown['flops_per_token'])} FLOPs per token of training "
        f"(vocabulary {shown['vocab']}, context {shown['context']})"
    )
    for line in shown["kernels"]:
        out.print(f"kernel: {line}", markup=False)


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name)
    return table


def _spelt(values: dict[str, Any]) -> str:
    return ", ".join(f"{key}={_short(value)}" for key, value in values.items())


def _short(value: Any) -> Any:
    """A memory of another preset by that preset's name."""
    if isinstance(value, list):
        return [_short(one) for one in value]
    return value["name"] if isinstance(value, dict) and "name" in value else value
