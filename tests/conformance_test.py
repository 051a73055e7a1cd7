"""Every preset is a sound sequence model: a new YAML is tested by existing."""

from __future__ import annotations

import math

import pytest

from ablate.conformance.learning import toy_losses
from ablate.conformance.subject import Subject
from ablate.conformance.suite import run_checks, shrink
from ablate.trial.space import choices, compose_model

PRESETS = choices("model")


@pytest.mark.parametrize("name", PRESETS)
def test_preset_conforms(name: str) -> None:
    results = list(run_checks(Subject(shrink(compose_model(name)))))
    failed = [f"{one.name}: {one.measured}. {one.causes}" for one in results if not one.passed]
    assert not failed, "\n".join(failed)
    assert len(results) == 15


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_preset_trains_200_steps(name: str) -> None:
    losses = toy_losses(Subject(shrink(compose_model(name))), steps=200)
    assert all(map(math.isfinite, losses))
    assert losses[-1] < 0.5 * losses[0]
