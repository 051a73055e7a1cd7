"""An MLflow server that is killed in the middle of a study: training goes on, nothing is lost."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ablate.sweep.driver import run_plan
from ablate.sweep.execution import Event
from ablate.sweep.fake_study import FakePlan, fake_trial
from ablate.sweep.inline import InlineExecutor
from ablate.sweep.ledger import Ledger
from ablate.telemetry import set_defaults
from ablate.track.background import BackgroundView
from ablate.track.tracker import connect
from ablate.track.view import MlflowView

pytestmark = pytest.mark.slow


@contextmanager
def server(place: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a real server on the store in `place`, with its workers in a group of its own."""
    set_defaults()
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
        *("--workers", "1", "--backend-store-uri", f"sqlite:///{place}/mlflow.db"),
        *("--artifacts-destination", (place / "artifacts").as_uri()),
    ]
    with open(place / "server.log", "a") as log:
        running = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        end = time.monotonic() + 120
        while True:
            assert running.poll() is None, (place / "server.log").read_text()[-2000:]
            assert time.monotonic() < end
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
                break
            except (OSError, urllib.error.URLError):
                time.sleep(0.2)
        yield running
    finally:
        kill(running)


def kill(running: subprocess.Popen[bytes]) -> None:
    """Kill the server and its workers at once."""
    if running.poll() is None:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def test_a_server_that_dies_in_the_middle_costs_no_trial_and_makes_no_duplicate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ABLATE_HOME", str(tmp_path))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    uri = f"http://127.0.0.1:{port}"
    told: list[str] = []
    plan = FakePlan(cells=3, seeds=2)
    with Ledger.open(tmp_path / "fake" / "ledger.sqlite") as ledger:
        ledger.save_plan(plan.to_json())
        with server(tmp_path, port) as running:
            background = BackgroundView(MlflowView(uri), ledger.path, told.append)

            def note(event: Event) -> None:
                if event.kind != "end":
                    return
                background.trial_ended(event.trial_id)
                if event.trial_id == "c1-s0":
                    until = time.monotonic() + 60
                    while not there(tmp_path, 1):
                        assert time.monotonic() < until
                        time.sleep(0.05)
                    kill(running)

            counts = run_plan(plan, ledger, executor=InlineExecutor(fake_trial), on_event=note)
            background.close()
        assert counts["done"] == 6
        assert len(told) == 1
        assert told[0].startswith(f"the tracker {uri} is not usable: ")
        with server(tmp_path, port):
            written = MlflowView(uri).push(ledger)
            assert 1 <= written <= 5
            assert MlflowView(uri).push(ledger) == 0
            client = connect(uri)
            runs = client.search_runs([client.get_experiment_by_name("fake").experiment_id])
    trials = [run.data.tags.get("ablate.trial") for run in runs]
    assert sorted(filter(None, trials)) == sorted(spec["id"] for spec in plan.trials())
    assert len(trials) == 7
    assert {run.info.status for run in runs} == {"FINISHED"}


def there(place: Path, count: int) -> bool:
    """Tell whether the store has at least so many trials that are whole."""
    with sqlite3.connect(f"file:{place}/mlflow.db?mode=ro", uri=True) as database:
        query = "SELECT count(*) FROM runs WHERE status = 'FINISHED'"
        return int(database.execute(query).fetchone()[0]) >= count
