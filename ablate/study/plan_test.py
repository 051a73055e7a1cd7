from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.errors import UserError
from ablate.study.configure import Configured, Workshop
from ablate.study.plan import Plan, make_plan
from ablate.study.rates import GPU_FLOPS
from ablate.study.schema import validate
from ablate.trial.run import run_trial

SMALL: dict[str, Any] = {
    "model": "atlas",
    "model_args": {
        "backbone.dim": 16,
        "backbone.heads": 2,
        "backbone.layers": 1,
        "memory.expansion": 1,
        "chunk": 4,
    },
    "task": "mqar",
    "task_args": {
        "vocab": 32,
        "length": 16,
        "pairs": 2,
        "train_rows": 32,
        "test_rows": 8,
        "batch": 4,
        "tokens": 256,
    },
    "train": {"evaluations": 2},
}


def plan(tmp_path: Path, factors: dict[str, Any], *overrides: str, **changes: Any) -> Plan:
    design = {"factors": factors, "kind": changes.pop("kind", "one_factor")}
    content = {**SMALL, "design": design, **changes}
    file = tmp_path / "s.yaml"
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))
    return make_plan(file, list(overrides))


def labels(made: Plan) -> list[str]:
    return [cell.label for cell in made.cells]


def test_the_quickstart_ablates_six_axes_one_at_a_time() -> None:
    made = make_plan("quickstart")
    assert labels(made) == [
        "baseline",
        "memory=matrix",
        "feature_map.degree=1",
        "window=1",
        "window=16",
        "retention=none",
        "inner_optimizer=momentum",
        "inner_optimizer=gd",
        "newton_schulz.steps=1",
    ]
    assert len(made.trials()) == 27
    assert made.baseline == made.cells[0].id
    assert {cell.compared_with for cell in made.cells} == {None, made.baseline}
    gd = made.cells[7]
    assert gd.axes["newton_schulz.steps"] is None
    assert gd.changed == {"inner_optimizer": ["muon", "gd"]}
    assert gd.config["model"]["newton_schulz"] is None
    assert made.cells[3].config["model"]["window"]["length"] == 1
    assert made.measure == {"primary": "val/bits_per_byte", "goal": "min"}
    assert made.cells[0].cost.parameters is not None
    assert any(text.startswith("3 seeds: the smallest p-value") for text in made.warnings)


def test_figure_6_is_a_full_grid_without_a_model() -> None:
    made = make_plan("atlas_figure6")
    assert len(made.cells) == 5 * 3 * 2 * 2
    assert len(made.trials()) == 8 * 60
    assert all(cell.config["model"] is None for cell in made.cells)
    assert made.cells[0].config["task"]["args"]["target"] == "low_rank"


def test_three_factors_of_two_levels_and_three_seeds_are_24_trials(tmp_path: Path) -> None:
    factors = {"memory": ["mlp", "matrix"], "window": [2, 1], "retention": ["scalar", "none"]}
    made = plan(tmp_path, factors, kind="full")
    trials = made.trials()
    assert len(made.cells) == 8
    assert len(trials) == len({trial["id"] for trial in trials}) == 24
    assert [trial["seed"] for trial in trials[:9]] == [0] * 8 + [1]
    assert labels(made)[-1] == "memory=matrix, window=1, retention=none"


def test_the_plan_is_plain_and_its_trials_run(tmp_path: Path) -> None:
    made = plan(tmp_path, {"memory": ["mlp", "matrix"]}, "seeds=1")
    shown = made.to_json()
    assert json.loads(json.dumps(shown)) == shown
    assert shown["schema"] == 1
    assert shown["trials"] == 2
    assert {"id", "axes", "compared_with", "parameters", "state_bytes", "flops_per_token"} < set(
        shown["cells"][0]
    )
    assert plan(tmp_path, {"memory": ["mlp", "matrix"]}, "seeds=1").to_json() == shown
    messages: list[dict[str, Any]] = []
    run_trial(json.loads(json.dumps(made.trials()[1])), messages.append)
    assert messages[-1]["state"] == "done"
    assert messages[0]["fingerprint"] == made.cells[1].fingerprint
    assert messages[0]["info"]["parameters"] == made.cells[1].cost.parameters


def test_levels_that_do_not_apply_make_no_cells(tmp_path: Path) -> None:
    factors = {"inner_optimizer": ["muon", "gd"], "newton_schulz.steps": [5, 1, 3]}
    made = plan(tmp_path, factors, kind="full")
    assert labels(made) == [
        "baseline",
        "newton_schulz.steps=1",
        "newton_schulz.steps=3",
        "inner_optimizer=gd",
    ]
    assert made.warnings[0] == (
        "n/a: newton_schulz.steps does not apply with inner_optimizer=gd, newton_schulz.steps=1: "
        "not a cell"
    )
    assert "n/a: newton_schulz.steps does not apply here" in made.cells[3].warnings
    conditional = {
        "inner_optimizer": ["muon", "gd"],
        "newton_schulz.steps": {"levels": [5, 1, 3], "when": {"inner_optimizer": "muon"}},
    }
    for kind in ("full", "one_factor"):
        same = plan(tmp_path, conditional, kind=kind)
        assert {cell.id for cell in same.cells} == {cell.id for cell in made.cells}
        assert not any(text.startswith("n/a") for text in same.warnings)


def test_a_factor_below_attention_is_not_applicable(tmp_path: Path) -> None:
    made = plan(tmp_path, {"memory": ["mlp", "attention"], "window": [2, 1]})
    attention = made.cells[1]
    assert attention.axes == {"memory": "attention", "window": None}
    assert attention.changed == {"memory": ["mlp", "attention"]}
    assert attention.config["model"]["chunk"] is None


def test_a_baseline_without_the_condition_still_has_the_conditional_cells(tmp_path: Path) -> None:
    conditional = {"levels": [5, 1], "when": {"inner_optimizer": "muon"}}
    made = plan(tmp_path, {"inner_optimizer": ["gd", "muon"], "newton_schulz.steps": conditional})
    assert labels(made) == [
        "baseline",
        "inner_optimizer=muon",
        "inner_optimizer=muon, newton_schulz.steps=1",
    ]
    assert made.cells[2].compared_with == made.cells[1].id
    assert made.cells[2].changed == {"newton_schulz.steps": [5, 1]}


def test_a_level_that_changes_nothing_is_reported(tmp_path: Path) -> None:
    (tmp_path / "bias").mkdir()
    (tmp_path / "bias" / "squares.yaml").write_text("_target_: ablate.components.bias.L2\n")
    content = {**SMALL, "design": {"factors": {"bias": ["l2", "squares", "dot"]}}}
    (tmp_path / "s.yaml").write_text(json.dumps(content))
    made = make_plan(tmp_path / "s.yaml", [], config_dirs=[tmp_path])
    assert labels(made) == ["baseline", "bias=dot"]
    assert made.warnings[0] == (
        "NO-OP: bias=squares changes nothing: the same cell as baseline, run once"
    )


def equal_writes(tmp_path: Path, *, probe: bool, gpus: int = 0) -> Plan:
    """A window of one token is normalised or not: the same computation."""
    content = {
        **SMALL,
        "design": {
            "factors": {"window.normalised": [False, True], "retention": ["scalar", "none"]}
        },
    }
    content["model_args"] = {**SMALL["model_args"], "window.length": 1}
    (tmp_path / "s.yaml").write_text(json.dumps(content))
    return make_plan(tmp_path / "s.yaml", ["seeds=2", f"resources.gpus={gpus}"], probe=probe)


def test_what_only_looks_different_is_found_without_a_probe(tmp_path: Path) -> None:
    made = equal_writes(tmp_path, probe=False)
    assert made.cells[1].warnings == (
        "NO-OP: on sample tokens its loss and gradient equal those of baseline bit for bit",
    )
    assert made.cells[2].warnings == ()
    assert made.cost()["time_from"] == "estimate"
    assert made.cost()["hours"] == pytest.approx(made.cost()["trial_seconds"] / 3600)


def test_a_gpu_that_is_not_here_is_reckoned_at_a_named_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    made = {gpus: equal_writes(tmp_path, probe=False, gpus=gpus) for gpus in (1, 2)}
    cost = made[1].cells[0].cost
    assert (cost.time_from, made[1].cost()["time_from"]) == ("gpu_rate", "gpu_rate")
    trained = (cost.flops_per_token or 0) * SMALL["task_args"]["tokens"] / GPU_FLOPS
    # The rest is scoring, forward alone.
    assert (cost.seconds_per_trial or 0) / trained == pytest.approx(4 / 3, rel=0.01)
    assert made[2].cells[0].cost.seconds_per_trial == (cost.seconds_per_trial or 0) / 2


def test_a_probe_times_each_cell_and_compares_its_first_losses(tmp_path: Path) -> None:
    made = equal_writes(tmp_path, probe=True)
    assert made.cells[1].warnings[1] == (
        "NO-OP on a probe: its first losses equal those of baseline bit for bit"
    )
    assert made.cells[2].warnings == ()
    each = [cell.cost.seconds_per_trial or 0.0 for cell in made.cells]
    assert min(each) > 0
    assert {cell.cost.time_from for cell in made.cells} == {"probe"}
    assert made.to_json()["cost"]["trial_seconds"] == pytest.approx(2 * sum(each))


def test_unequal_parameters_are_said(tmp_path: Path) -> None:
    made = plan(tmp_path, {"backbone.dim": [16, 32]}, model_args=None, chunk=None)
    first, second = (cell.cost.parameters or 0 for cell in made.cells)
    share = second / first - 1
    assert made.cells[1].warnings == (
        f"{second:,} parameters against {first:,} of baseline ({share:+.1%}): the effect is not of "
        "backbone.dim alone",
    )


@pytest.mark.parametrize(
    ("seeds", "start"),
    [
        (1, ["1 seed: no interval and no test"]),
        (
            3,
            [
                "3 seeds: the smallest p-value that the exact paired test can give is 0.25. To "
                "reach 0.05, one comparison alone needs 6 seeds; all 5 comparisons of this plan, "
                "with Holm's correction for testing so many, need 8."
            ],
        ),
        (
            6,
            ["6 seeds: the smallest p-value that the exact paired test can give is 0.03125. To"],
        ),
        (8, []),
    ],
)
def test_the_plan_says_what_so_few_seeds_cannot_show(
    seeds: int, start: list[str], tmp_path: Path
) -> None:
    factors = {"window": [2, 1, 3, 4], "retention": ["scalar", "none"], "memory": ["mlp", "matrix"]}
    made = plan(tmp_path, factors, f"seeds={seeds}")
    assert [text[: len(s)] for text, s in zip(made.warnings, start, strict=True)] == start
    assert made.power.seeds_for_all == 8


def configured(content: dict[str, Any], levels: dict[str, Any]) -> Configured:
    return Workshop(validate(content, Path("s.yaml")), "s.yaml").configure(levels)


SPELLINGS = [1e-3, 0.001, float("1.0e-3")]


@settings(max_examples=25, deadline=None)
@given(st.permutations(list(SMALL)), st.sampled_from(SPELLINGS), st.booleans(), st.randoms())
def test_identity_depends_on_neither_order_nor_spelling(
    order: list[str], lr: float, spelt_out: bool, random: Any
) -> None:
    content = {key: SMALL[key] for key in order}
    arguments = list(SMALL["model_args"].items())
    random.shuffle(arguments)
    content["model_args"] = dict(arguments) | ({"window.length": 4.0} if spelt_out else {})
    content["train"] = {"lr": lr, **SMALL["train"]}
    plain = {
        **SMALL,
        "train": {"evaluations": 2, "lr": 0.001, **({"clip": 1} if spelt_out else {})},
    }
    assert configured(content, {}).id == configured(plain, {}).id
    assert configured(content, {"window": 4}).id == configured(plain, {}).id
    assert configured(content, {"window": 3}).id != configured(plain, {}).id


def test_every_setting_that_matters_changes_the_identity() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"train.lr": 0.5},
        {"task_args.pairs": 3},
        {"memory": "matrix"},
        {"chunk": 2},
        {"newton_schulz": "cubic"},
    ]
    ids = [configured(SMALL, levels).id for levels in changes]
    assert len(set(ids)) == len(ids)
    renamed = configured({**SMALL, "model": "omeganet"}, {}).id
    assert renamed == configured(SMALL, {"inner_optimizer": "gd"}).id, "a name is no identity"


def test_options_of_a_swapped_choice_go_with_it_and_shared_ones_stay() -> None:
    matrix = configured(SMALL, {"memory": "matrix"})
    assert "expansion" not in matrix.config["model"]["memory"]
    assert list(matrix.unused) == ["memory.expansion"]
    mlp = configured(SMALL, {"memory": "mlp"})
    assert mlp.config["model"]["memory"]["expansion"] == 1
    assert mlp.unused == {}


def test_the_first_level_is_set_on_the_baseline(tmp_path: Path) -> None:
    made = plan(tmp_path, {"window": [2, 4]})
    assert [cell.config["model"]["window"]["length"] for cell in made.cells] == [2, 4]
    pairs = itertools.pairwise(made.cells)
    assert all(second.compared_with == first.id for first, second in pairs)


def test_claims_are_read_before_anything_runs(tmp_path: Path) -> None:
    window = {"window": [4, 1]}
    claim = "effect(window: 4 -> 1) on val/accuracy < 0"
    made = plan(tmp_path, window, claims=[claim])
    assert made.to_json()["claims"] == [claim]
    assert made.to_json()["design"] == "one_factor"
    for wrong, part in (
        ("effect(windw: 4 -> 1) on val/accuracy < 0", "Did you mean 'window'"),
        ("effect(window: 4 -> 2) on val/accuracy < 0", "level of 'window'"),
        ("window helps", "is no claim"),
    ):
        with pytest.raises(UserError, match=f"s.yaml: claims.0.*{part}"):
            plan(tmp_path, window, claims=[wrong])
