"""Every preset trains: two hundred steps on one small batch stay finite and fit it."""

from __future__ import annotations

import math

import pytest

from ablate.conformance.learning import toy_losses
from ablate.conformance.subject import Subject
from ablate.conformance.suite import shrink
from ablate.trial.space import choices, compose_model


@pytest.mark.parametrize("name", choices("model"))
def test_preset_trains_200_steps(name: str) -> None:
    losses = toy_losses(Subject(shrink(compose_model(name))), steps=200)
    assert len(losses) == 200
    assert all(map(math.isfinite, losses))
    assert losses[-1] < 0.5 * losses[0]
