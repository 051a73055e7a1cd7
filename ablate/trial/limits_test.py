"""Every limit identity that a component declares holds for whole models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from ablate.components.limits import Limit
from ablate.trial.build import build_model
from ablate.trial.space import AXES, Model, apply, choices, compose_model, load_choice, resolve
from ablate.trial.space import target_class as class_of

SMALL = {"backbone.dim": 8, "backbone.heads": 2, "backbone.layers": 1, "chunk": 4}


def declared() -> Iterator[Any]:
    """(axis, choice, limit) over the catalogue, each class once."""
    seen = set()
    for axis in AXES:
        for choice in choices(axis):
            cls = class_of(load_choice(axis, choice)["_target_"])
            if cls not in seen:
                seen.add(cls)
                for limit in getattr(cls, "limits", ()):
                    yield pytest.param(axis, choice, limit, id=f"{axis} {choice}: {limit.says}")


def changed(model: Model, settings: Mapping[str, Any]) -> Model:
    for key, value in settings.items():
        model = apply(model, key, value)
    return model


def hold(model: nn.Module, held: Mapping[str, float], reached: set[str]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            for end, value in held.items():
                if f".{name}".endswith(f".{end}"):
                    parameter.fill_(value)
                    reached.add(end)


@pytest.mark.parametrize(("axis", "choice", "limit"), list(declared()))
def test_limits_hold_by_their_outputs(axis: str, choice: str, limit: Limit) -> None:
    start = changed(compose_model("atlas"), {**SMALL, axis: choice})
    one = changed(start, {**limit.given, **{f"{axis}.{k}": v for k, v in limit.options.items()}})
    other = changed(one, limit.equals)
    assert resolve(one) != resolve(other), "both sides are the same setting"
    tokens = torch.randint(11, (2, 11), generator=torch.Generator().manual_seed(0))
    logits, reached = [], set[str]()
    for spec in (one, other):
        model = build_model(spec, 11, seed=0, dtype=torch.float64)
        hold(model, limit.held, reached)
        with torch.no_grad():
            logits.append(model(tokens)[0])
    assert reached == set(limit.held)
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-9, atol=1e-10)


def test_the_catalogue_declares_limits() -> None:
    axes = {param.values[0] for param in declared()}
    assert axes == set(AXES)
