from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ablate.cli import app
from ablate.commands import evaluate

ASKED = "--tasks=commonsense_sample"


def call(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Texts that are packed here are no others'."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ABLATE_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("saved")
    (place / "text").write_text("the cat sat on the mat and the dog sat on the log. " * 100)
    small = ("backbone.dim=16", "backbone.layers=1", "backbone.heads=2", "train.evaluations=1")
    sizes = ("context=16", "batch=4", "validation_bytes=64", "tokens=64", "tokenizer=bpe:270")
    args = [f"task_args.{one}" for one in (*sizes, f"corpus={place / 'text'}")]
    folder = place / "model"
    result = call("train", "gated_deltanet", "task=language", *small, *args, "--save", str(folder))
    assert result.exit_code == 0, result.output
    return folder


def test_questions_are_asked_in_the_tokens_of_the_model_and_kept(saved: Path) -> None:
    few = ("task_args.limit=2", "task_args.sets=[piqa,lambada_openai]")
    result = call("eval", str(saved), ASKED, *few, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)["tasks"]["commonsense_sample"]
    assert found["args"]["tokenizer"] == f"hf:{saved}"
    assert found["metrics"]["val/acc@sample_piqa"] in (0, 0.5, 1)
    assert found["metrics"]["val/acc_stderr@sample_piqa"] in (0, 0.5)
    lines = (saved / "evaluations.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["tasks"]["commonsense_sample"] == found
    said = call("eval", str(saved), ASKED, *few).stdout
    assert "NOT the published sets" in said
    value, error = (found["metrics"][f"val/{one}@sample_piqa"] for one in ("acc", "acc_stderr"))
    assert f"{value:.4f} ± {error:.4f}   chance 0.5000, majority 0.5000" in said
    assert "acc_stderr" not in said
    assert len((saved / "evaluations.jsonl").read_text().splitlines()) == len(lines) + 1


def test_data_of_all_tasks_are_looked_for_before_any_is_scored(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[object] = []

    def score(*given: object) -> tuple[dict[str, float], list[str]]:
        scored.append(given)
        return {}, []

    monkeypatch.setattr(evaluate, "_score", score)
    both = call("eval", str(saved), "--tasks", "language,commonsense")
    assert (both.exit_code, scored) == (2, [])
    assert call("eval", str(saved), "--tasks", "language").exit_code == 0
    assert len(scored) == 1


def test_what_is_kept_is_strict_json_and_what_cannot_be_kept_is_said(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "_score", lambda *_: ({"val/loss": float("nan")}, []))
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    assert call("eval", str(folder)).exit_code == 0
    kept = folder / evaluate.EVALUATIONS
    last = kept.read_text().splitlines()[-1]
    assert json.loads(last)["tasks"]["language"]["metrics"] == {"val/loss": None}
    kept.unlink()
    kept.mkdir()
    said = call("eval", str(folder), "--json")
    assert json.loads(said.stdout)["notes"][-1] == (
        "evaluations.jsonl could not be written: Is a directory"
    )


def test_the_real_sets_are_never_replaced(saved: Path) -> None:
    result = call("eval", str(saved), "--tasks", "commonsense")
    assert result.exit_code == 2
    assert "--tasks commonsense_sample" in result.stderr
    assert result.stderr.strip().count("\n") == 0
