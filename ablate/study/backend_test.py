"""Studies that ask for kernels, and single trials; in Triton's interpreter, as all tests are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ablate.commands.train import make_spec
from ablate.errors import UserError
from ablate.study.plan import make_plan
from ablate.trial.backend import choose
from ablate.trial.build import build_model
from ablate.trial.run import run_trial

STUDY = """
task: mqar
task_args: {tokens: 64, batch: 2, length: 16, pairs: 2, train_rows: 4, test_rows: 2, vocab: 32}
model: atlas
model_args: {chunk: 4, backbone: {dim: 8, heads: 2, layers: 1}}
design: {factors: {newton_schulz.steps: [1, 0]}}
measure: {primary: val/loss}
"""
SMALL = (
    "task=mqar", "task_args.tokens=8", "task_args.batch=1", "task_args.length=8",
    "task_args.pairs=1", "task_args.train_rows=1", "task_args.test_rows=1", "task_args.vocab=16",
    "chunk=8", "newton_schulz.granularity=chunk", "newton_schulz.steps=1", "feature_map=identity",
    "backbone.dim=8", "backbone.heads=1", "backbone.layers=1", "memory=matrix",
    "train.evaluations=1",
)  # fmt: skip


def planned(folder: Path, *overrides: str) -> Any:
    file = folder / "kernels.yaml"
    file.write_text(STUDY)
    return make_plan(file, [*overrides])


def run(*settings: str) -> tuple[dict[str, Any], dict[str, Any]]:
    messages: dict[str, Any] = {}
    spec = make_spec("atlas", [*SMALL, *settings], config_dirs=(), allow=())
    run_trial(spec, lambda message: messages.update({message["kind"]: message}))
    return messages["start"], messages["end"]


def test_a_backend_is_no_part_of_a_cell(tmp_path: Path) -> None:
    plain, kernels = planned(tmp_path), planned(tmp_path, "resources.backend=triton")
    assert [cell.id for cell in plain.cells] == [cell.id for cell in kernels.cells]
    assert plain.resources["backend"] == "auto"
    assert kernels.trials()[0]["resources"]["backend"] == "triton"
    said = "is triton, but 1 cell uses no kernel and runs in torch: newton_schulz.steps=0"
    assert any(said in warning for warning in kernels.warnings)
    assert not any("kernel" in warning for warning in plain.warnings)


def test_kernels_that_no_cell_can_use_are_refused_by_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"kernels\.yaml: resources\.backend is triton, but no cel"):
        planned(
            tmp_path,
            "resources.backend=triton",
            "model_args.newton_schulz.steps=0",
            "design.factors={window: [1, 2]}",
        )
    with pytest.raises(UserError, match=r"no operation has one \(there are: newton_sch"):
        make_spec("transformer", ["task=mqar", "backend=triton"], config_dirs=(), allow=())
    alone = ["task=online_memory", "backbone.heads=1", "backend=triton"]
    with pytest.raises(UserError, match="a memory that learns alone runs in torch"):
        make_spec("atlas", alone, config_dirs=(), allow=())
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(UserError, match=r"a trial has no GPU \(resources\.gpus is 0\)"):
        planned(tmp_path, "resources.backend=triton")
    with pytest.raises(UserError, match="'cuda'"):
        planned(tmp_path, "resources.backend=cuda")


def test_a_trial_runs_by_kernels_as_by_torch_and_says_so() -> None:
    start, end = run("backend=triton")
    true_start, true_end = run()
    assert start["info"]["backend"] == "triton"
    assert start["info"]["backend_newton_schulz"] == "triton: 8x8"
    assert true_start["info"]["backend"] == "torch"
    assert "auto does not take Triton's inter" in true_start["info"]["backend_newton_schulz"]
    assert (end["state"], end["warnings"]) == ("done", [])
    assert end["summary"]["train/loss"] == pytest.approx(true_end["summary"]["train/loss"], 1e-5)
    assert end["summary"]["val/loss"] == pytest.approx(true_end["summary"]["val/loss"], 1e-4)


def test_a_trial_fails_where_kernels_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec("atlas", [*SMALL, "backend=triton"], config_dirs=(), allow=())
    monkeypatch.delenv("TRITON_INTERPRET")
    messages: list[dict[str, Any]] = []
    run_trial(spec, messages.append)
    assert messages[-1]["state"] == "failed"
    assert "backend=triton cannot be had here: kernels need a GPU" in messages[-1]["error"]


def test_a_loaded_model_runs_in_kernels_or_says_why_not() -> None:
    spec = make_spec("atlas", list(SMALL), config_dirs=(), allow=())
    model = build_model(spec["config"]["model"], 16, seed=0)
    assert choose(model, "triton", "cpu") == ["runs in newton_schulz 8x8: triton"]
    assert choose(model, "auto", "cpu") == []
    spec = make_spec("transformer", ["task=mqar"], config_dirs=(), allow=())
    model = build_model(spec["config"]["model"], 16, seed=0)
    with pytest.raises(UserError, match="--backend=triton: no kernel can serve this model"):
        choose(model, "triton", "cpu")
