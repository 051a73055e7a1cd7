"""A tracker that asks for a user and a password, by MLflow's own means."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ablate.cli import app
from ablate.home import ledger_path
from ablate.sweep.driver import run_plan
from ablate.sweep.fake_study import FakePlan, fake_trial
from ablate.sweep.inline import InlineExecutor
from ablate.sweep.ledger import Ledger
from ablate.track.tracker import connect

USER, PASSWORD = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
WANTED = f"set {USER} and {PASSWORD}"
START_SECONDS = 240


@pytest.fixture
def server(home: Path, tmp_path: Path) -> Iterator[str]:
    """Yield the address of an MLflow server whose administrator has the password below."""
    pytest.importorskip("flask_wtf", reason="needs mlflow[auth]")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    settings = {
        "MLFLOW_BACKEND_STORE_URI": f"sqlite:///{home}/mlflow.db",
        "MLFLOW_AUTH_ADMIN_PASSWORD": "correct-horse-battery",
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "for tests",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    place = tmp_path / "server"
    place.mkdir()
    with (
        open(place / "log", "w") as log,
        subprocess.Popen(
            command, cwd=place, env={**os.environ, **settings}, stdout=log, stderr=log
        ) as process,
    ):
        try:
            address = f"http://127.0.0.1:{port}"
            _wait(address, process, place / "log")
            yield address
        finally:
            process.terminate()


def _wait(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"the server did not come up: {log.read_text()[-2000:]}")


def call(*args: str) -> Result:
    result = CliRunner().invoke(app, list(args))
    assert "Traceback" not in result.output
    return result


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_tracker_with_passwords_takes_the_right_one_and_says_what_is_missing(
    server: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")
    for name in (USER, PASSWORD):
        monkeypatch.delenv(name, raising=False)
    with Ledger.open(ledger_path("fake")) as ledger:
        run_plan(FakePlan(cells=2, seeds=2), ledger, executor=InlineExecutor(fake_trial))

    nobody = call("track", "push", "fake")
    assert (nobody.exit_code, nobody.stdout) == (1, "")
    assert nobody.stderr.startswith(f"error: the tracker {server} is not usable: it asks for a")
    assert nobody.stderr.endswith(f"{WANTED}\n")
    assert nobody.stderr.count("\n") == 1

    monkeypatch.setenv(USER, "admin")
    monkeypatch.setenv(PASSWORD, "a guess")
    assert call("track", "push", "fake").stderr == nobody.stderr
    doctor = call("doctor")
    assert doctor.exit_code == 1
    (line,) = (line for line in doctor.stdout.splitlines() if line.startswith("broken"))
    assert line.split()[1] == "tracker"
    assert line.endswith(WANTED)
    assert call("ui", "fake").stderr == nobody.stderr

    monkeypatch.setenv(PASSWORD, "correct-horse-battery")
    assert call("track", "push", "fake").stdout == f"4 runs written to {server}\n"
    assert call("track", "push", "fake").stdout == f"0 runs written to {server}\n"
    assert "wrote, read and deleted" in call("doctor").stdout
    client = connect(server)
    number = client.get_experiment_by_name("fake").experiment_id
    page = f"{server}/#/experiments/{number}/runs?workflowType=machine_learning"
    assert call("ui", "fake").stdout.strip() == page
    (parent,) = client.search_runs([number], "tags.`ablate.role` = 'study'")
    paths = {found.path for found in client.list_artifacts(parent.info.run_id)}
    assert paths == {"figures", "plan.json", "report.html", "table.csv", "tables.tex"}
    named = {found.path for found in client.list_artifacts(parent.info.run_id, "figures")}
    assert named == {"figures/effects.png"}
