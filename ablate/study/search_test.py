"""The space of a search, and the cells that its points become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import FixedTrial

from ablate.errors import UserError
from ablate.study.configure import Workshop
from ablate.study.load import load_study
from ablate.study.plan import plan_study
from ablate.study.search import SearchSpace

BASE: dict[str, Any] = {
    "model": "deltanet",
    "model_args": {
        **{"backbone.dim": 16, "backbone.layers": 1, "backbone.heads": 1},
        "newton_schulz": "quintic",
    },
    "task": "mqar",
    "task_args": {"tokens": 2048, "train_rows": 32, "test_rows": 16, "batch": 16},
    "seeds": 2,
}
FACTORS: dict[str, Any] = {
    "train.lr": {"low": 1e-4, "high": 1e-1, "log": True},
    "chunk": {"low": 1, "high": 16},
    "inner_optimizer": ["gd", "momentum", "muon"],
    "newton_schulz.steps": {"levels": [5, 1, 3], "when": {"inner_optimizer": "muon"}},
}


def space(folder: Path, factors: dict[str, Any] = FACTORS, **design: Any) -> SearchSpace:
    design = {"kind": "search", "trials": 8, "factors": factors, **design}
    args = {key: value for key, value in BASE["model_args"].items() if key not in factors}
    if "newton_schulz.steps" not in factors:
        del args["newton_schulz"]
    file = folder / "find.yaml"
    file.write_text(yaml.safe_dump({**BASE, "model_args": args, "design": design}))
    declared, path = load_study(file)
    return SearchSpace(Workshop(declared, path.name), plan_study(declared, path))


def test_a_point_becomes_a_cell_that_is_compared_with_the_baseline(tmp_path: Path) -> None:
    found = space(tmp_path)
    start = found.plan.cells[0]
    assert start.axes == {"train.lr": 3e-3, "chunk": 1, "inner_optimizer": "gd",
                          "newton_schulz.steps": None}  # fmt: skip
    cell = found.again(1, {"train.lr": 0.02, "chunk": 4, "inner_optimizer": "muon",
                           "newton_schulz.steps": 3})  # fmt: skip
    assert cell is not None
    assert cell.label == "search #1"
    assert cell.compared_with == start.id
    assert cell.changed == {
        "train.lr": [3e-3, 0.02],
        "chunk": [1, 4],
        "inner_optimizer": ["gd", "muon"],
        "newton_schulz.steps": [None, 3],
    }
    assert cell.config["train"]["lr"] == 0.02
    assert cell.config["model"]["newton_schulz"]["steps"] == 3
    assert [spec["id"] for spec in found.specs(cell)] == [f"{cell.id}-s0", f"{cell.id}-s1"]
    assert found.plan.cells == (start, cell)
    assert found.plan.to_json()["trials"] == (1 + 8) * 2


def test_the_id_is_that_of_an_ordinary_cell(tmp_path: Path) -> None:
    searched = space(tmp_path).again(1, {"train.lr": 0.02, "chunk": 1, "inner_optimizer": "gd"})
    file = tmp_path / "plain.yaml"
    design = {"factors": {"train.lr": [3e-3, 0.02], "inner_optimizer": ["gd", "muon"]}}
    file.write_text(yaml.safe_dump({**BASE, "design": design}))
    assert searched is not None
    assert searched.id in [cell.id for cell in plan_study(*load_study(file)).cells]


def test_what_is_there_already_or_not_allowed_is_no_cell(tmp_path: Path) -> None:
    found = space(
        tmp_path,
        constraints=["chunk >= 8 or inner_optimizer == 'gd'"],
        exclude=[{"inner_optimizer": "momentum"}],
    )
    baseline = {"train.lr": 3e-3, "chunk": 1, "inner_optimizer": "gd"}
    assert found.again(1, baseline) is None
    assert found.again(1, {**baseline, "chunk": 4, "inner_optimizer": "momentum"}) is None
    muon = {"inner_optimizer": "muon", "newton_schulz.steps": 1}
    assert found.again(1, {**baseline, **muon}) is None
    assert found.again(1, {**baseline, **muon, "chunk": 8}) is not None
    assert found.again(2, {**baseline, **muon, "chunk": 8}) is None


def test_a_configuration_that_cannot_be_built_is_no_cell(tmp_path: Path) -> None:
    found = space(tmp_path, {"backbone.heads": {"low": 1, "high": 4}})
    assert found.again(1, {"backbone.heads": 3}) is None  # 16 is no multiple of 3
    assert found.again(1, {"backbone.heads": 4}) is None  # the baseline
    assert found.again(1, {"backbone.heads": 2}) is not None


def test_zipped_factors_move_together(tmp_path: Path) -> None:
    found = space(
        tmp_path,
        {"backbone.dim": [16, 32, 48], "backbone.heads": [1, 2, 3]},
        zip=[["backbone.dim", "backbone.heads"]],
    )
    points = [found.suggest(FixedTrial({"backbone.dim + backbone.heads": n})) for n in range(3)]
    assert points == [
        {"backbone.dim": 16, "backbone.heads": 1},
        {"backbone.dim": 32, "backbone.heads": 2},
        {"backbone.dim": 48, "backbone.heads": 3},
    ]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31))
def test_points_keep_to_their_ranges_and_conditions(seed: int) -> None:
    import tempfile

    import optuna

    global _SPACE
    if _SPACE is None:
        with tempfile.TemporaryDirectory() as folder:
            _SPACE = space(Path(folder))
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    point = _SPACE.suggest(study.ask())
    assert 1e-4 <= point["train.lr"] <= 1e-1
    assert isinstance(point["chunk"], int)
    assert 1 <= point["chunk"] <= 16
    assert ("newton_schulz.steps" in point) == (point["inner_optimizer"] == "muon")


_SPACE: SearchSpace | None = None


def test_another_space_is_another_search_and_more_trials_are_the_same(tmp_path: Path) -> None:
    one = space(tmp_path).identity
    assert space(tmp_path, trials=80).identity == one
    assert space(tmp_path, {**FACTORS, "chunk": {"low": 1, "high": 8}}).identity != one
    assert space(tmp_path, exclude=[{"inner_optimizer": "momentum"}]).identity != one


def test_a_search_is_one_design_without_blocks(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a search is one design, on one task and without blocks"):
        space(tmp_path, blocks={"task_args.length": [16, 32]})


def test_a_level_that_the_model_refuses_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="newton_schulz has no choice, but inner_optimizer muon"):
        space(tmp_path, {"backbone.dim": [16, 32], "inner_optimizer": ["gd", "muon"]},
              constraints=["backbone.dim > 1"])  # fmt: skip
    with pytest.raises(UserError, match="backbone.heads=3"):
        space(tmp_path, {"backbone.heads": {"low": 1, "high": 3}})
