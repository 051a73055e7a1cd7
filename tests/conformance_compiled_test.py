"""torch.compile gives what the plain model gives, for presets that have every component.

Capturing a preset takes seconds, and the whole catalogue minutes, so presets that only combine the
same classes anew are left to `ablate check`.
"""

from __future__ import annotations

from typing import Any

import pytest

from ablate.conformance.running import check_compiled
from ablate.conformance.subject import Subject
from ablate.conformance.suite import shrink
from ablate.trial.space import choices, compose_model

COMPILED = (
    "atlas_plus",
    "deltaproduct",
    "dot",
    "gated_deltanet_h1",
    "gla",
    "gsa",
    "hgrn2",
    "longhorn",
    "lru",
    "lstm",
    "memora",
    "mesa",
    "moneta",
    "polysketch",
    "retnet",
    "titans_mac",
    "titans_mag",
    "titans_mal",
    "transformer",
    "vector",
    "yaad",
)


def classes(name: str) -> set[str]:
    model: Any = compose_model(name)
    parts = [part for part in model.values() if isinstance(part, dict)]
    return {part["_target_"] for part in parts if "_target_" in part}


def test_presets_that_are_compiled_have_every_component_of_the_catalogue() -> None:
    every = set().union(*map(classes, choices("model")))
    assert every - set().union(*map(classes, COMPILED)) == set()


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_is_eager(name: str) -> None:
    result = check_compiled(Subject(shrink(compose_model(name))))
    assert result.passed, result.measured


def test_a_matrix_whose_writes_are_orthogonalised_is_too() -> None:
    model = compose_model("atlas")
    model["memory"] = compose_model("deltanet")["memory"]
    result = check_compiled(Subject(shrink(model)))
    assert result.passed, result.measured
