"""A trial's model, built with the backend that it asks for, and what that comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ablate.components.kernels.backend import (
    facts,
    nothing_served,
    refusals,
    served,
    set_backend,
)
from ablate.components.language_model import LanguageModel
from ablate.errors import UserError
from ablate.trial.build import build_model

TORCH = facts(())
"""Of a trial without operations that have kernels."""


@dataclass(frozen=True)
class Built:
    """A model, what runs its operations (to be logged), and where that is not what was asked."""

    model: LanguageModel
    facts: dict[str, str]
    warnings: list[str]


def build_for(spec: Mapping[str, Any], vocab: int, device: str) -> Built:
    """The model of a trial's spec, on a device.

    Raises:
        UserError: as `build_model`; so too where kernels are asked for and cannot run.
    """
    choice = str((spec.get("resources") or {}).get("backend") or "auto")
    model = build_model(
        spec["config"]["model"],
        vocab,
        seed=int(spec["seed"]),
        device=device,
        allow=tuple(spec.get("allow") or ()),
        backend=choice,
    )
    found = served(model, torch.device(device))
    return Built(model, facts(found), refusals(found, choice))


def choose(model: LanguageModel, choice: str, device: str) -> list[str]:
    """Let a model that is on `device` run as `choice` says; return what there is to note of it.

    Raises:
        UserError: kernels are asked for, and cannot run here or serve nothing of the model.
    """
    try:
        found = set_backend(model, choice, torch.device(device))
    except ValueError as error:
        raise UserError(f"--{error}") from error
    if choice == "triton" and (problem := nothing_served(found)):
        raise UserError(f"--{problem}")
    ran = [f"runs in {one}" for one in found if one.backend == "triton"]
    return [*ran, *refusals(found, choice)]
