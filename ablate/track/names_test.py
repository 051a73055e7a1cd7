from __future__ import annotations

import posixpath
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.track.names import NAME_LIMIT, cut, flat, legal_name, renamed


@pytest.mark.parametrize("name", ["val/loss", "recall/accuracy:64", "a b.c-d_e", "val/λ"])
def test_a_name_that_mlflow_takes_is_left_alone(name: str) -> None:
    assert legal_name(name) == name


@pytest.mark.parametrize(
    "name", ["acc@5", "loss[0]", "a=b", "50%", "/a", "../a", "a//b", "a/", ".", "x" * 251, "@", ""]
)
def test_a_name_that_mlflow_refuses_gets_a_legal_twin(name: str) -> None:
    legal = legal_name(name)
    assert legal != name
    assert re.fullmatch(r"[/\w.\- :]+--[0-9a-f]{10}", legal)
    assert posixpath.normpath(legal) == legal
    assert not legal.startswith(("/", ".."))
    assert len(legal) <= NAME_LIMIT


@given(st.lists(st.text(max_size=12), unique=True, max_size=20))
def test_different_names_stay_different(names: list[str]) -> None:
    legal = [legal_name(name) for name in names]
    assert len(set(legal)) == len(names)
    assert renamed(set(names)) == {
        new: old for new, old in zip(legal, names, strict=True) if new != old
    }


def test_a_cut_value_says_so() -> None:
    assert cut("x" * 10, 100) == "x" * 10
    assert cut("x" * 200, 100).endswith("(cut; whole in config.json)")
    assert len(cut("x" * 200, 100)) == 100


def test_a_component_is_named_by_its_axis_and_class() -> None:
    config = {
        "model": {"memory": {"_target_": "ablate.components.memory.MLPMemory", "expansion": 4}},
        "task": {"args": {}},
    }
    assert dict(flat(config)) == {
        "model.memory": "MLPMemory",
        "model.memory.expansion": 4,
        "task.args": {},
    }
