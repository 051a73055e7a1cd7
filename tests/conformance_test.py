"""Every preset is a sound sequence model: a new YAML is tested by existing."""

from __future__ import annotations

import pytest

from ablate.conformance.running import check_compiled
from ablate.conformance.subject import Subject
from ablate.conformance.suite import CHECKS, run_checks, shrink
from ablate.trial.space import choices, compose_model

# Seconds for each preset, and so in a file of its own.
QUICK = [check for check in CHECKS if check is not check_compiled]


@pytest.mark.parametrize("name", choices("model"))
def test_preset_conforms(name: str) -> None:
    results = list(run_checks(Subject(shrink(compose_model(name))), QUICK))
    failed = [f"{one.name}: {one.measured}. {one.causes}" for one in results if not one.passed]
    assert not failed, "\n".join(failed)
    assert len(results) == 1 + len(QUICK) == 18
