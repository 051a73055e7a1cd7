"""Whether the limit identities that components declare hold in the models of a study.

Ablate's tests hold those of its own components, so a plan checks the user's; with a probe, all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ablate.components.limits import Limit
from ablate.errors import UserError
from ablate.study.cells import Cell
from ablate.study.configure import Workshop
from ablate.trial.build import build_model
from ablate.trial.space import AXES, Model, target_class

SMALL = {"backbone.dim": 8, "backbone.heads": 2, "backbone.head_dim": None, "backbone.layers": 1}
VOCAB, LENGTH = 11, 11
TOLERANCE = 1e-8


def limit_sentences(workshop: Workshop, cells: list[Cell], *, own: bool) -> list[str]:
    """What is wrong with the declared limits of the components that the cells use.

    Args:
        own: whether Ablate's own components are checked too.
    """
    found = []
    seen: set[type] = set()
    for cell in cells:
        model = cell.config["model"] or {}
        for axis in AXES:
            component = model.get(axis)
            if component is None:
                continue
            cls = target_class(component["_target_"], allow=workshop.allow)
            if cls in seen or (cls.__module__.startswith("ablate.") and not own):
                continue
            seen.add(cls)
            for limit in getattr(cls, "limits", ()):
                problem = _problem(workshop, axis, component, limit)
                if problem:
                    found.append(f"{axis} {cls.__name__}: '{limit.says}' {problem}")
    return found


def _problem(workshop: Workshop, axis: str, component: Model, limit: Limit) -> str | None:
    base: Model = {**workshop.start(workshop.preset or ""), axis: component}
    options = {f"{axis}.{key}": value for key, value in limit.options.items()}
    try:
        one = _changed(workshop, base, {**SMALL, "chunk": 4, **limit.given, **options})
        other = _changed(workshop, one, limit.equals)
        gap = _gap(workshop, one, other, limit.held)
    except UserError as error:
        return f"could not be checked: {error}"
    return f"does not hold: outputs differ by {gap:.2g}" if not gap <= TOLERANCE else None


def _changed(workshop: Workshop, model: Model, settings: Mapping[str, Any]) -> Model:
    for key, value in settings.items():
        model = workshop.apply(model, "limits", key, value)
    return model


def _gap(workshop: Workshop, one: Model, other: Model, held: Mapping[str, float]) -> float:
    """The largest difference of the two models' outputs, over their largest output."""
    tokens = torch.randint(VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    outputs = []
    for spec in (one, other):
        model = build_model(
            workshop.resolve(spec), VOCAB, seed=0, dtype=torch.float64, allow=workshop.allow
        )
        _hold(model, held)
        with torch.no_grad():
            outputs.append(model(tokens)[0])
    return float((outputs[0] - outputs[1]).abs().max() / outputs[0].abs().max())


def _hold(model: nn.Module, held: Mapping[str, float]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            for end, value in held.items():
                if f".{name}".endswith(f".{end}"):
                    parameter.fill_(value)
