"""`ablate run` of a search, from the file to the report, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ablate.cli import app

STUDY = """
model: deltanet
model_args: {backbone: {dim: 16, layers: 1, heads: 1}}
task: mqar
task_args: {tokens: 1024, train_rows: 16, test_rows: 16, batch: 16}
train: {evaluations: 1}
seeds: 2
measure: {primary: val/loss, goal: min}
design:
  kind: search
  trials: 3
  factors:
    train.lr: {low: 1.0e-4, high: 1.0e-1, log: true}
    inner_optimizer: [gd, momentum]
"""


def call(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ABLATE_HOME", str(tmp_path / "home"))
    (tmp_path / "find.yaml").write_text(STUDY)
    return "find.yaml"


def test_a_search_runs_is_taken_up_again_and_reported(study: str) -> None:
    first = call("run", study, "--executor", "inline", "--max-trials", "3")
    assert first.exit_code == 0, first.output
    assert "find: 4 cells x 2 seeds = 8 trials" in first.stdout
    assert "search #1 seed 0" in first.stdout
    counts = json.loads(call("status", study, "--json").stdout)["counts"]
    assert (counts["done"], counts["missing"]) == (3, 1)
    second = call("run", study, "--executor", "inline")
    assert second.exit_code == 0, second.output
    assert "running 5 trials" in second.stdout
    assert "search #1 seed 1" in second.stdout
    counts = json.loads(call("status", study, "--json").stdout)["counts"]
    assert (counts["done"], counts["missing"]) == (8, 0)
    third = call("run", study, "--executor", "inline")
    assert "8 done" in third.stdout
    assert "[1/" not in third.stdout, "nothing is left to run"
    assert "8 trials, 8 finished, 0 to run" in call("plan", study).stdout.replace("\n", " ")
    report = call("report", study, "--format", "md")
    assert report.exit_code == 0, report.output
    for number in (1, 2, 3):
        assert f"search #{number}" in report.stdout


def test_pruning_is_planned_with_a_warning_and_needs_trials_side_by_side(study: str) -> None:
    plain = ["design={factors: {train.lr: [3e-3, 1e-3]}}", "pruning={grace: 256}"]
    shown = json.loads(call("plan", study, *plain, "--json").stdout)
    assert shown["pruning"] == {"kind": "asha", "grace": 256, "reduction": 4.0, "tokens": 1024}
    assert any("not comparable" in text for text in shown["warnings"])
    refused = call("run", study, *plain, "--executor", "inline")
    assert refused.exit_code == 2
    assert "--executor inline runs them one by one" in refused.stderr
    late = call("plan", study, "pruning={grace: 1024}")
    assert late.exit_code == 2
    assert "pruning.grace is 1,024 tokens, but a trial reads 1,024" in late.stderr


def test_a_narrow_plan_has_no_line_that_is_too_long(
    study: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = "design={factors: {train.lr: [3e-3, 1e-3], inner_optimizer: [gd, momentum]}}"
    for columns in ("40", "60"):
        monkeypatch.setenv("COLUMNS", columns)
        lines = call("plan", study, plain).stdout.splitlines()
        assert max(map(len, lines)) <= int(columns)
        place = lines.index("inner_optimizer=momentum")
        assert lines[place + 1].startswith("  inner_optimizer: gd -> momentum")
        assert "parameters" in " ".join(lines[place + 2 : place + 5])
    monkeypatch.delenv("COLUMNS")
    wide = call("plan", study, plain).stdout
    assert "compared with" in wide.splitlines()[2]
