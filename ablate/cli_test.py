from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ablate.cli import app
from ablate.commands import complete
from ablate.home import ledger_path
from ablate.study.pilot import Pilot
from ablate.study.plan import Cell, Cost, Plan
from ablate.study.power import power_of
from ablate.sweep.fake_study import FAKE_ENV, FakePlan, scripted_trial
from ablate.sweep.ledger import Ledger

TINY = """
question: Does momentum help?
model: deltanet
model_args: {backbone: {dim: 16, layers: 1, heads: 1}}
task: mqar
task_args: {tokens: 2048, train_rows: 32, test_rows: 16, batch: 16}
seeds: 2
design: {kind: one_factor, factors: {inner_optimizer: [gd, momentum]}}
"""


def call(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


def as_plan(fake: FakePlan) -> Plan:
    """The fake study as the real `Plan`."""
    content = fake.to_json()
    cells = tuple(
        Cell(
            cost=Cost(cell["parameters"], cell["state_bytes"], cell["flops_per_token"]),
            **{
                key: cell[key]
                for key in ("id", "label", "axes", "changed", "compared_with", "config")
            },
            fingerprint=cell["fingerprint"],
        )
        for cell in content["cells"]
    )
    known = {key: content[key] for key in ("study", "file", "question", "baseline", "task")}
    return Plan(
        **known,
        measure=content["measure"],
        seeds=tuple(content["seeds"]),
        cells=cells,
        resources=fake.resources,
        power=power_of(len(content["seeds"]), len(cells) - 1, Pilot(), content["baseline"]),
    )


@pytest.fixture
def fake(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The study ``fake`` of 2 cells and 3 seeds, whose trials do as `FAKE_ENV` says."""
    plan = as_plan(FakePlan(cells=2, seeds=3))
    read = (None, Path(plan.file))
    monkeypatch.setattr("ablate.study.load.load_study", lambda *args, **kwargs: read)
    monkeypatch.setattr("ablate.study.plan.plan_study", lambda *args, **kwargs: plan)
    monkeypatch.setattr("ablate.trial.run.run_trial", scripted_trial)
    monkeypatch.delenv(FAKE_ENV, raising=False)
    return home


def run_fake(*options: str) -> Result:
    return call("run", "fake", "--executor", "inline", "--no-packing", *options)


def test_a_study_with_a_failure_exits_1_and_the_next_run_takes_exactly_that_trial(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAKE_ENV, "c1-s1:raise,c0-s2:diverge")
    first = run_fake()
    assert first.exit_code == 1
    assert "[6/6]" in first.stdout
    assert "failed    memory=level1 seed 1  RuntimeError: the fake trial raises" in first.stdout
    assert "4 done, 1 failed, 1 diverged" in first.stdout
    assert f"report:    {fake}/fake/report.html" in first.stdout
    assert "MLflow UI: ablate ui fake" in first.stdout
    assert "Traceback" not in first.output
    status = call("status", "fake")
    assert "fake: 4 done, 1 failed, 1 diverged of 6" in status.stdout
    assert "failed: memory=level1 seed 1: RuntimeError: the fake trial raises" in status.stdout

    monkeypatch.delenv(FAKE_ENV)
    second = run_fake()
    assert second.exit_code == 0
    assert "5 finished, 1 to run" in second.stdout
    assert "[1/1]  done      memory=level1 seed 1" in second.stdout
    counts = json.loads(call("status", "fake", "--json").stdout)["counts"]
    assert counts["done"] == 5
    assert counts["diverged"] == 1
    assert set(counts) == {
        *("done", "running", "missing", "failed", "diverged", "oom", "timed_out", "lost"),
        *("cancelled", "pruned", "stale"),
    }
    pushed = call("track", "push", "fake")
    assert (pushed.exit_code, pushed.stdout.split()[0]) == (0, "0")


def test_reports_come_from_the_ledger(fake: Path, tmp_path: Path) -> None:
    run_fake()
    page = call("report", "fake")
    assert page.stdout.strip() == f"{fake}/fake/report.html"
    first = Path(page.stdout.strip()).read_bytes()
    call("report", "fake")
    assert Path(page.stdout.strip()).read_bytes() == first
    assert "memory=level1" in call("report", "fake", "--format", "md").stdout
    assert call("report", "fake", "--format", "csv", "-o", str(tmp_path / "t.csv")).exit_code == 0
    assert "memory=level1" in (tmp_path / "t.csv").read_text()
    assert call("report", "fake", "--format", "pdf").exit_code == 2


def test_quiet_says_only_what_went_wrong(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_fake("--quiet").output == ""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert "push later" in run_fake("--quiet").stderr


def test_max_trials_leaves_the_rest_missing(fake: Path) -> None:
    result = run_fake("--max-trials", "2")
    assert result.exit_code == 0
    assert "2 done, 4 missing" in result.stdout


def test_a_dry_run_writes_nothing(fake: Path) -> None:
    result = run_fake("--dry-run")
    assert result.exit_code == 0
    assert "memory: level0 -> level1" in result.stdout
    assert not ledger_path("fake").exists()


def test_a_tracker_that_is_down_costs_no_trial(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    result = run_fake()
    assert result.exit_code == 1
    assert result.stdout.count("the tracker http://127.0.0.1:9 is not usable") == 1
    assert "6 done" in result.stdout
    assert "Nothing is lost; push later: ablate track push fake" in result.stderr
    assert call("track", "push", "fake").exit_code == 1
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert call("track", "push", "fake").stdout.startswith("6 runs written to sqlite:///")


def test_a_malformed_tracker_is_bad_input_before_anything_starts(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "htp://here")
    result = run_fake()
    assert result.exit_code == 2
    assert "'htp' is no kind of tracking address. Did you mean 'http'?" in result.stderr
    assert not ledger_path("fake").exists()


def test_ctrl_c_leaves_a_resumable_study_and_exits_130(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(spec: dict[str, Any], report: Any) -> None:
        if spec["id"] == "c1-s0":
            raise KeyboardInterrupt
        scripted_trial(spec, report)

    monkeypatch.setattr("ablate.trial.run.run_trial", stop)
    result = run_fake()
    assert result.exit_code == 130
    assert "interrupted: 1 done, 4 missing, 1 lost" in result.stdout
    assert "the same command again runs what is missing" in result.stdout
    monkeypatch.setattr("ablate.trial.run.run_trial", scripted_trial)
    assert "6 done" in run_fake().stdout


def test_a_living_owner_is_respected(fake: Path) -> None:
    with Ledger.open(ledger_path("fake")) as ledger:
        ledger.acquire_lock("ablate run")
        result = run_fake()
        assert result.exit_code == 2
        assert f"is being run by ablate run (pid {os.getpid()}" in result.stderr
    assert run_fake("--take-over").exit_code == 0


def test_our_own_faults_exit_1_without_a_traceback(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr("ablate.study.plan.plan_study", broken)
    result = run_fake()
    assert (result.exit_code, result.stderr) == (1, "error: ZeroDivisionError: on purpose\n")
    monkeypatch.setenv("ABLATE_DEBUG", "1")
    assert "Traceback" in run_fake().stderr


def test_what_failed_outside_exits_1_and_is_said_in_plain_words(
    fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    result = call("ui", "fake")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "error: the tracker http://127.0.0.1:9 is not usable: connection refused\n"
    )


def test_the_status_of_a_dead_driver_is_not_running(fake: Path) -> None:
    run_fake("--max-trials", "0")
    with Ledger.open(ledger_path("fake")) as ledger:
        ledger.begin("c0-s0")
        dead = {"owner": "ablate run", "pid": 1, "host": os.uname().nodename}
        ledger.set("lock", {**dead, "born": "another boot:1", "since": 0.0})
    counts = json.loads(call("status", "fake", "--json").stdout)["counts"]
    assert (counts["running"], counts["lost"]) == (0, 1)


def test_an_error_of_many_lines_takes_one_in_the_status(fake: Path) -> None:
    run_fake()
    with Ledger.open(fake / "fake" / "ledger.sqlite") as ledger:
        ledger.mark("c1-s1", "failed", "ValueError: shapes\n[4] and [5]")
    shown = call("status", "fake").stdout
    assert "failed: memory=level1 seed 1: ValueError: shapes\n" in shown
    assert "[4] and [5]" not in shown
    assert json.loads(call("status", "fake", "--json").stdout)["failures"][0]["error"].endswith(
        "[5]"
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["plan", "quickstrat"], "Did you mean 'quickstart'?"),
        (["run", "no-such-study"], "'no-such-study' is no study"),
        (["plan", "quickstart", "--config-dir", "nowhere"], "'--config-dir'"),
        (["status", "quickstart"], "has not been run yet"),
        (["ui", "--port", "99999"], "'--port'"),
        (["status", "quickstrat"], "Did you mean 'quickstart'?"),
        (["report", "quickstart"], "has not been run yet"),
        (["track", "push", "quickstart"], "has not been run yet"),
        (["show", "atlsa"], "Did you mean 'atlas'?"),
        (["show", "atlas", "retention"], "write key=value"),
        (["components", "retentoin"], "Did you mean 'retention'?"),
        (["train", "deltanet"], "add task=NAME"),
        (["train", "deltanet", "task=mqra"], "Did you mean 'mqar'?"),
        (["train", "deltanet", "task=mqar", "sede=1"], "Did you mean 'seed'?"),
        (["train", "deltanet", "task=mqar", "seed=1", "seed=2"], "seed is given twice"),
        (["train", "deltanet", "task=mqar", "seed=one"], "seed is 'one'"),
    ],
)
def test_bad_input_exits_2_and_says_what_would_be_right(
    home: Path, args: list[str], message: str
) -> None:
    result = call(*args)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_the_ui_needs_a_store(home: Path) -> None:
    (home / "mlflow.db").unlink()
    result = call("ui")
    assert result.exit_code == 2
    assert "no MLflow store" in result.stderr


def test_plan_show_and_components_speak_json(home: Path, tmp_path: Path) -> None:
    study = tmp_path / "tiny.yaml"
    study.write_text(TINY)
    plan = json.loads(call("plan", str(study), "seeds=3", "--json").stdout)
    assert [cell["label"] for cell in plan["cells"]] == ["baseline", "inner_optimizer=momentum"]
    assert (plan["trials"], plan["seeds"]) == (6, [0, 1, 2])
    assert plan["cells"][1]["compared_with"] == plan["cells"][0]["id"]
    assert "2 cells x 2 seeds = 4 trials" in call("plan", str(study)).stdout
    shown = json.loads(call("show", "deltanet", "backbone.dim=32", "--json").stdout)
    assert shown["axes"]["backbone"]["options"]["dim"] == 32
    assert shown["parameters"] > 1000
    assert shown["axes"]["inner_optimizer"]["choice"] == "gd"
    catalogue = json.loads(call("components", "retention", "--json").stdout)["axes"]
    assert set(catalogue["retention"]) >= {"none", "scalar"}
    assert "DeltaNet" in catalogue["retention"]["none"]["source"]


def test_a_real_study_runs_and_one_trial_trains(home: Path, tmp_path: Path) -> None:
    study = tmp_path / "tiny.yaml"
    study.write_text(TINY)
    result = call("run", str(study), "--executor", "inline")
    assert result.exit_code == 0, result.output
    assert "4 done" in result.stdout
    again = call("run", str(study), "--executor", "inline")
    assert "4 finished, 0 to run" in again.stdout
    assert "[1/" not in again.stdout
    small = ["task_args.tokens=1024", "task_args.train_rows=32", "task_args.test_rows=16"]
    model = ["backbone.dim=16", "backbone.layers=1", "backbone.heads=1", "seed=3"]
    trained = call("train", "deltanet", "task=mqar", *small, *model, "task_args.batch=16")
    assert trained.exit_code == 0, trained.output
    assert "on cpu" in trained.stdout
    assert "\nval/loss           " in trained.stdout
    summary = trained.stdout[trained.stdout.index("\nval/loss   ") :].strip().splitlines()
    assert all("  " in line for line in summary)
    assert "peak_memory_bytes" in trained.stdout


def test_data_that_a_trial_misses_is_a_mistake_of_the_input(home: Path) -> None:
    model = ["backbone.dim=16", "backbone.layers=1", "backbone.heads=1"]
    missed = call("train", "deltanet", "task=recall", *model, "task_args.data=real")
    assert missed.exit_code == 2
    assert missed.stderr.startswith("error: recall, set swde: hazyresearch/based-swde-v2 (val")
    assert missed.stderr.count("\n") == 1
    assert "Traceback" not in missed.stdout


def test_the_doctor_proves_the_tracker(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = json.loads(call("doctor", "--json").stdout)
    checks = {check["name"]: check for check in found["checks"]}
    assert found["ok"] is True
    assert "wrote, read and deleted" in checks["tracker"]["text"]
    assert checks["torch"]["state"] == "ok"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    broken = call("doctor")
    assert broken.exit_code == 1
    assert "broken    tracker" in broken.stdout


def test_names_complete() -> None:
    assert "quickstart" in complete.studies("quick")
    assert "atlas" in complete.models("atl")
    assert complete.axes("ret") == ["retention"]
    assert complete.train_settings("retention=sca") == ["retention=scalar"]
    assert complete.train_settings("task=mq") == ["task=mqar"]
    assert complete.train_settings("inner") == ["inner_optimizer="]


def test_help_and_completion_load_nothing_heavy() -> None:
    code = (
        "import sys; from ablate.cli import app; from ablate.commands import complete;"
        "complete.studies(''), complete.train_settings('task=');"
        "heavy = {'torch', 'ray', 'mlflow', 'hydra', 'pandas', 'numpy', 'plotly', 'pydantic'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_version_and_help() -> None:
    assert call("--version").stdout == "ablate 0.1.0\n"
    assert "KEY=VALUE" in call("run", "--help").stdout
