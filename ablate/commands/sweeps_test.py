from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ablate.cli import app
from ablate.home import ledger_path
from ablate.sweep.ledger import Ledger

SLOW = """
question: Does momentum help?
model: transformer
model_args: {backbone: {dim: 16, layers: 1, heads: 1}}
task: mqar
task_args: {tokens: 2048, train_rows: 32, test_rows: 16, batch: 16, length: 16, pairs: 2}
train: {evaluations: 2}
seeds: 2
design: {kind: one_factor, factors: {train.lr: [0.001, 0.002]}}
checkpoint: {every: 0s, keep: 1MB}
"""


def call(*args: str) -> Result:
    return CliRunner().invoke(app, list(args))


@pytest.fixture
def study(home: Path, tmp_path: Path) -> str:
    """A study of two cells, two seeds and a few steps."""
    file = tmp_path / "small.yaml"
    file.write_text(SLOW)
    return str(file)


def counts(study: str) -> dict[str, int]:
    found = json.loads(call("status", study, "--json").stdout)["counts"]
    return {state: n for state, n in found.items() if n}


def stop_at(monkeypatch: pytest.MonkeyPatch, error: BaseException, trial: int, step: int) -> None:
    """Have the trial of that number raise after so many steps."""
    from ablate.trial.train import Loop

    real, seen = Loop.step, [0]

    def broken(self: Loop, number: int) -> float:
        seen[0] += number == 0
        if seen[0] == trial and number == step:
            print("about to fail")
            raise error
        return real(self, number)

    monkeypatch.setattr(Loop, "step", broken)


def test_a_broken_trial_shows_its_log_and_goes_on_from_its_checkpoint(
    study: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(monkeypatch, RuntimeError("the fake disk broke"), trial=2, step=3)
    result = call("run", study, "--no-packing", "--executor", "inline")
    assert result.exit_code == 1, result.output
    assert counts(study) == {"done": 3, "failed": 1}
    shown = call("status", study)
    assert "RuntimeError: the fake disk broke" in shown.stdout
    failure = json.loads(call("status", study, "--json").stdout)["failures"][0]
    assert "about to fail" in failure["log"]
    log = call("status", study, "--trial", failure["trial"], "--log").stdout
    assert log.startswith("20")
    assert "started on " in log
    named = f"{failure['cell']} seed {failure['seed']}"
    one = json.loads(call("status", study, "--trial", named, "--json").stdout)
    assert (one["trial_id"], one["state"]) == (failure["trial"], "failed")

    from ablate.trial.train import Loop

    monkeypatch.setattr(Loop, "step", real_step)
    again = call("retry", study, "--executor", "inline")
    assert again.exit_code == 0, again.output
    assert "[1/1]  done" in again.stdout
    assert counts(study) == {"done": 4}
    one = json.loads(call("status", study, "--trial", failure["trial"], "--json").stdout)
    assert one["info"]["resumed"] == "from step 3 of attempt 1"
    plain = call("status", study, "--trial", failure["trial"]).stdout
    longest = max(one["summary"], key=len)
    assert f"{longest}  {one['summary'][longest]:.6g}\n" in plain
    assert (
        "from step 3 of attempt 1"
        in call("report", study, "--format", "html").output
        + (ledger_path("small").parent / "report.html").read_text()
    )
    none = call("retry", study, "--state", "failed,diverged")
    assert none.exit_code == 2
    assert "nothing to retry for diverged, failed; it has 4 done" in none.stderr
    done = call("retry", study, "--trial", failure["trial"], "--executor", "inline", "--fresh")
    assert "[1/1]  done" in done.stdout
    assert not (ledger_path("small").parent / "checkpoints").exists()


def test_a_run_with_overrides_keeps_the_page_of_the_run_before(
    study: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ("run", study, "--no-packing", "--executor", "inline")
    assert "note: report.html" not in call(*run).stdout
    page = home / "small" / "report.html"
    whole, table = page.read_bytes(), call("report", study, "--format", "csv").stdout
    stop_at(monkeypatch, KeyboardInterrupt(), trial=1, step=3)
    other = call(*run, "seeds=3")
    assert other.exit_code == 130
    kept = home / "small" / "report_as_declared.html"
    assert f"the page of `ablate run {study}` is kept as {kept}" in other.stdout
    assert kept.read_bytes() == whole
    assert page.read_bytes() != whole
    interrupted = page.read_bytes()
    kept.unlink()
    again = call(*run, "--max-trials", "0", "seeds=3")
    assert "note: report.html" not in again.stdout
    assert not kept.exists()
    back = call(*run)
    assert "[1/" not in back.stdout
    assert "seeds=3` is kept as " in back.stdout
    (of_three,) = (home / "small").glob("report_*.html")
    assert of_three.read_bytes() == interrupted
    assert page.read_bytes() != interrupted
    assert call("report", study, "--format", "csv").stdout == table


def test_what_cannot_be_retried_cancelled_or_shown_is_refused(study: str) -> None:
    call("run", study, "--no-packing", "--executor", "inline", "--max-trials", "1")
    refused = {
        ("retry", study, "--state", "faild"): "Did you mean 'failed'?",
        ("retry", study, "--state", "running"): "'running' is no state to retry",
        ("retry", study, "--trial", "x"): "'x' is no trial",
        ("cancel", study): "no process runs study 'small' now",
        ("status", study, "--log"): "--log needs --trial",
        ("run", study, "--max-disk", "much"): "--max-disk is 'much': it must be a number and a",
        ("run", study, "--trial-timeout", "5"): "--trial-timeout is '5'",
        ("plan", study, "limits.max_hour=3"): "Did you mean 'max_hours'?",
        ("plan", study, "checkpoint.every=soon"): "checkpoint.every is 'soon': must be a number",
    }
    for command, said in refused.items():
        result = call(*command)
        assert (result.exit_code, said in result.stderr) == (2, True), (command, result.output)


def test_a_trial_over_its_time_is_timed_out_and_the_next_run_goes_on(
    study: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ablate.trial.train import Loop

    def slow(self: Loop, number: int) -> float:
        time.sleep(0.02)
        return real_step(self, number)

    monkeypatch.setattr(Loop, "step", slow)
    limits = ["--trial-timeout", "0.05s", "--max-failures", "2"]
    result = call("run", study, "--no-packing", "--executor", "inline", *limits)
    assert result.exit_code == 1, result.output
    assert "stopped: 2 trials failed, the most is 2 (max-failures)" in result.stderr
    assert counts(study) == {"timed_out": 2, "missing": 2}
    monkeypatch.setattr(Loop, "step", real_step)
    result = call("run", study, "--no-packing", "--executor", "inline")
    assert result.exit_code == 0, result.output
    assert counts(study) == {"done": 4}
    with Ledger.open(ledger_path("small"), read_only=True) as ledger:
        resumed = [r.info.get("resumed", "") for r in ledger.trials()]
    assert sum(text.startswith("from step ") for text in resumed) == 2


def test_hours_that_are_over_exit_with_3(study: str) -> None:
    result = call("run", study, "--no-packing", "--executor", "inline", "--max-hours", "0")
    assert result.exit_code == 3, result.output
    assert "hours are over (max-hours)" in result.stderr
    assert "the same command again runs what is missing" in result.stdout


def test_a_run_in_another_process_is_cancelled(study: str, home: Path) -> None:
    command = [
        sys.executable,
        "-c",
        CANCELLED,
        "run",
        study,
        "--no-packing",
        "--executor",
        "inline",
    ]
    env = {**os.environ, "ABLATE_HOME": str(home)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as driver:
        assert driver.stdout is not None
        for line in driver.stdout:
            if "step 3" in line:
                break
        result = call("cancel", study)
        driver.stdout.read()
        assert driver.wait(timeout=120) == 130
    assert result.exit_code == 0, result.output
    assert "asked ablate run (pid " in result.stdout
    assert counts(study) == {"cancelled": 1, "missing": 3}
    assert (home / "small" / "report.html").is_file()


CANCELLED = """
import sys, time
from ablate.trial.train import Loop
real = Loop.step
def step(self, number):
    print("step", number, flush=True)
    if number == 3:
        time.sleep(100)
    return real(self, number)
Loop.step = step
from ablate.cli import main
main(sys.argv[1:])
"""


def _step() -> Any:
    from ablate.trial.train import Loop

    return Loop.step


real_step = _step()
