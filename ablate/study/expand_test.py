from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from ablate.errors import UserError
from ablate.study.configure import Workshop
from ablate.study.plan import Plan, make_plan
from ablate.study.plan_test import SMALL, labels
from ablate.study.schema import validate
from ablate.trial.cost import count_parameters

NARROW = {"backbone.dim": 16, "backbone.heads": 2, "backbone.layers": 1}


def plan(tmp_path: Path, **changes: Any) -> Plan:
    """Plan the small study; None takes a key out."""
    content = {key: value for key, value in {**SMALL, **changes}.items() if value is not None}
    file = tmp_path / "s.yaml"
    file.write_text(json.dumps(content))
    return make_plan(file, ["seeds=2"])


PARTS = {"retention": "none", "window.length": 1, "inner_optimizer": ["muon", "gd"]}


def test_leave_one_out_takes_each_part_out_of_the_whole(tmp_path: Path) -> None:
    made = plan(tmp_path, design={"kind": "leave_one_out", "factors": PARTS})
    assert labels(made) == [
        "baseline",
        "retention=none",
        "window.length=1",
        "inner_optimizer=gd",
    ]
    assert made.cells[0].axes == {
        "retention": "scalar",
        "window.length": 4,
        "inner_optimizer": "muon",
    }
    assert made.cells[1].changed == {"retention": ["scalar", "none"]}


def test_add_one_in_starts_from_none_of_the_parts(tmp_path: Path) -> None:
    made = plan(tmp_path, design={"kind": "add_one_in", "factors": PARTS})
    assert labels(made) == [
        "baseline",
        "retention=scalar",
        "window.length=4",
        "inner_optimizer=muon",
    ]
    assert made.cells[0].config["model"]["retention"]["_target_"].endswith("NoRetention")
    assert made.cells[3].axes == {
        "retention": "none",
        "window.length": 1,
        "inner_optimizer": "muon",
    }


@pytest.mark.parametrize(
    ("factors", "model", "message"),
    [
        (
            {"retention": "none"},
            "deltanet",
            "s.yaml: design.factors.retention: retention is none already in deltanet: there is not",
        ),
        (
            {"newton_schulz.steps": 1},
            "omeganet",
            "s.yaml: design.factors.newton_schulz.steps: newton_schulz is not active in omeganet: ",
        ),
        (
            {"retension": "none"},
            "atlas",
            "s.yaml: design.factors: 'retension' is no factor. Did you mean 'retention'?",
        ),
        (
            {"retention": "nome"},
            "atlas",
            "s.yaml: design.factors.retention: 'nome' is no choice of retention. Did you mean",
        ),
        (
            {"window.lenght": 1},
            "atlas",
            "s.yaml: design.factors.window.lenght: 'lenght' is no key of window (OmegaWindow). Did",
        ),
        (
            {"window": [4, 1, 2]},
            "atlas",
            "s.yaml: design.factors.window has 3 levels; leave_one_out takes [with, without], or",
        ),
    ],
)
def test_a_part_that_is_misspelt_or_out_already_is_refused(
    factors: dict[str, Any], model: str, message: str, tmp_path: Path
) -> None:
    design = {"kind": "leave_one_out", "factors": factors}
    with pytest.raises(UserError) as caught:
        plan(tmp_path, design=design, model=model, model_args=NARROW)
    assert str(caught.value).startswith(message)


def test_a_path_changes_one_component_at_a_time_until_it_arrives(tmp_path: Path) -> None:
    design = {"kind": "path", "from": "titans_lmm", "to": "atlas"}
    made = plan(tmp_path, design=design, model=None, model_args=NARROW)
    assert [list(cell.changed) for cell in made.cells] == [
        [],
        ["feature_map"],
        ["window"],
        ["inner_optimizer"],
    ]
    assert [cell.compared_with for cell in made.cells[1:]] == [c.id for c in made.cells[:-1]]
    assert made.cells[1].changed == {"feature_map": ["identity", "polynomial"]}
    assert made.cells[2].axes["window"].startswith("omega(length=4")  # type: ignore[union-attr]
    content = {**SMALL, "model": "atlas", "model_args": NARROW}
    arrived = Workshop(validate(content, Path("s.yaml")), "s.yaml").configure({})
    assert made.cells[-1].id == arrived.id, "the last cell is the other model"
    start = Workshop(validate({**content, "model": "titans_lmm"}, Path("s.yaml")), "s.yaml")
    assert made.baseline == start.configure({}).id


def test_all_orders_of_a_path_share_the_cells_of_the_product(tmp_path: Path) -> None:
    design = {"kind": "path", "from": "titans_lmm", "to": "atlas", "orders": "all"}
    made = plan(tmp_path, design=design, model=None, model_args=NARROW)
    assert len(made.cells) == 2**3
    assert all(len(cell.changed) == 1 for cell in made.cells[1:])


@pytest.mark.parametrize(
    ("design", "message"),
    [
        ({"kind": "path", "from": "atlas"}, "s.yaml: design: a path needs from: MODEL and to: MO"),
        ({"kind": "path", "from": "atlas", "to": "atlas"}, "s.yaml: design: atlas and atlas do n"),
        ({"kind": "path", "from": "atlas", "to": "atlsa"}, "s.yaml: model: 'atlsa' is no preset."),
        ({"kind": "full", "to": "atlas"}, "s.yaml: design: to belongs to kind: path."),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(
    design: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        plan(tmp_path, design=design, model=None, model_args=NARROW)
    assert str(caught.value).startswith(message)


def test_several_tasks_repeat_the_design_on_each(tmp_path: Path) -> None:
    tasks = {"mqar": SMALL["task_args"], "language": {"context": 16, "batch": 2, "tokens": 64}}
    made = plan(
        tmp_path, task=None, task_args=None, tasks=tasks, design={"factors": {"window": [2, 1]}}
    )
    assert labels(made) == ["baseline", "window=1", "task=language", "task=language, window=1"]
    assert [cell.config["task"]["name"] for cell in made.cells] == ["mqar"] * 2 + ["language"] * 2
    assert made.task == "mqar, language"
    assert made.cells[3].compared_with == made.cells[2].id
    assert made.cells[2].compared_with == made.baseline


def test_a_tuned_study_repeats_its_cells_in_every_setting(tmp_path: Path) -> None:
    tune = {"train.lr": [0.001, 0.003, 0.01]}
    made = plan(tmp_path, tune=tune, design={"factors": {"window": [16, 4]}})
    assert [cell.axes["train.lr"] for cell in made.cells] == [
        0.001,
        0.001,
        0.003,
        0.003,
        0.01,
        0.01,
    ]
    assert [cell.config["train"]["lr"] for cell in made.cells] == [
        *(0.001, 0.001, 0.003, 0.003, 0.01, 0.01),
    ]
    ids = [cell.id for cell in made.cells]
    # A cell is compared with the baseline of its own setting.
    assert [cell.compared_with for cell in made.cells[1::2]] == ids[::2]
    assert made.to_json()["tune"] == ["train.lr"]
    assert made.size == 6 * len(made.seeds)


@pytest.mark.parametrize(
    ("tune", "design", "message"),
    [
        ({"train.lr": [0.1]}, {}, "s.yaml: tune.train.lr needs at least 2 entries."),
        ({"train.lrr": [0.1, 0.2]}, {}, "'lrr' is no key of train"),
        ({"window": [1, 4]}, {"factors": {"window": [16, 4]}}, "blocks.window is also a factor"),
        ({"train.lr": [0.1, 0.2]}, {"kind": "search", "trials": 4}, "kind: search tunes by itself"),
    ],
)
def test_tuning_that_cannot_be_is_refused(
    tmp_path: Path, tune: dict[str, Any], design: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        plan(tmp_path, tune=tune, design=design)


def test_several_designs_share_a_baseline_and_their_cells(tmp_path: Path) -> None:
    designs = {
        "each": {"factors": {"window": [2, 1], "retention": ["scalar", "none"]}},
        "pair": {"kind": "full", "factors": {"window": [2, 1], "bias": ["l2", "dot"]}},
    }
    made = plan(tmp_path, designs=designs)
    assert labels(made) == [
        "baseline",
        "window=1",
        "retention=none",
        "bias=dot",
        "window=1, bias=dot",
    ]
    assert made.design == "one_factor + full"
    designs["pair"]["factors"]["window"] = [1, 2]  # type: ignore[index]
    with pytest.raises(
        UserError, match=r"designs.pair.factors.window starts at 1, but another des"
    ):
        plan(tmp_path, designs=designs)


def test_a_search_is_planned_as_its_start_and_its_space(tmp_path: Path) -> None:
    factors = {
        "train.lr": {"low": 1e-4, "high": 1e-1, "log": True},
        "retention": ["scalar", "none"],
    }
    made = plan(tmp_path, design={"kind": "search", "trials": 40, "factors": factors})
    assert len(made.cells) == 1
    assert made.to_json()["trials"] == 82, "the baseline runs too"
    assert made.search["space"] == {
        "train.lr": {"low": 1e-4, "high": 1e-1, "log": True},
        "retention": {"levels": ["scalar", "none"]},
    }
    with pytest.raises(UserError, match=r"design.trials is missing"):
        plan(tmp_path, design={"kind": "search", "factors": factors})
    with pytest.raises(UserError, match=r"train.lr is a range; only kind: search takes one"):
        plan(tmp_path, design={"factors": factors})


def test_a_fraction_says_what_it_cannot_tell_apart(tmp_path: Path) -> None:
    factors = {
        "memory": ["mlp", "matrix"],
        "window": [2, 1],
        "bias": ["l2", "dot"],
        "retention": ["scalar", "none"],
    }
    made = plan(tmp_path, design={"kind": "fractional", "resolution": 4, "factors": factors})
    assert len(made.cells) == 8
    assert made.aliases == (
        "this design cannot tell window x bias from memory x retention",
        "this design cannot tell window x retention from memory x bias",
        "this design cannot tell bias x retention from memory x window",
    )
    assert set(made.aliases) < set(made.warnings)


def test_a_mixed_fraction_says_what_it_takes_for_granted(tmp_path: Path) -> None:
    factors = {"memory": ["mlp", "matrix"], "window": [2, 1, 3], "retention": ["scalar", "none"]}
    made = plan(tmp_path, design={"kind": "fractional", "runs": 6, "factors": factors})
    assert len(made.cells) == 6
    assert [text[:45] for text in made.aliases] == ["this design tells single factors apart only i"]


def test_the_six_axes_of_atlas_are_one_line_away() -> None:
    made = make_plan("atlas_axes")
    assert len(made.cells) == 1 + 3 + 3 + 5 + 2 + 2 + 4
    began = time.process_time()
    whole = make_plan("atlas_axes", ["design.kind=full"])
    assert time.process_time() - began < 15, "alone it takes four seconds"
    assert len(whole.cells) == 4 * 4 * 6 * 3 * (5 + 1 + 1)
    assert len({cell.id for cell in whole.cells}) == len(whole.cells)
    assert {cell.id for cell in made.cells} < {cell.id for cell in whole.cells}
    guessed = next(cell for cell in reversed(whole.cells) if not cell.counted)
    assert all(cell.built for cell in whole.cells)
    exact = count_parameters(guessed.config["model"], 256)
    assert guessed.cost.parameters == exact
    assert any(
        text.startswith("every model was built; state, FLOPs, memory and time of 1,998 cells")
        for text in whole.warnings
    )


def test_whole_models_are_levels_and_share_what_all_of_them_have(tmp_path: Path) -> None:
    levels = ["omeganet", "deltanet", "transformer"]
    design = {"factors": {"model": levels}, "blocks": {"backbone.conv_width": [4, 1]}}
    made = plan(tmp_path, model=None, model_args=NARROW, design=design)
    assert labels(made)[:3] == ["baseline", "model=deltanet", "model=transformer"]
    assert [cell.config["model"]["name"] for cell in made.cells] == levels * 2
    assert made.cells[1].config["model"]["memory"]["_target_"].endswith("MatrixMemory")
    assert made.cells[2].config["model"]["memory"]["_target_"].endswith("SoftmaxAttention")
    assert {cell.config["model"]["backbone"]["dim"] for cell in made.cells} == {16}
    alone = plan(tmp_path, model="deltanet", model_args=NARROW, design={"factors": {}})
    assert alone.cells[0].id == made.cells[1].id


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"design": {"factors": {"model": ["atlas", "deltanet"]}}}, "model is also set outside"),
        ({"model": None, "design": {"factors": {"model": ["atlas", "delta"]}}}, "'deltanet'"),
    ],
)
def test_models_as_levels_that_cannot_be(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        plan(tmp_path, model_args=NARROW, **changes)
