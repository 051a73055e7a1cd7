"""The MLflow view on PostgreSQL: a real server of its own, on a free port, ended afterwards."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ablate.sweep.driver import run_plan
from ablate.sweep.fake_study import FakePlan, fake_trial
from ablate.sweep.inline import InlineExecutor
from ablate.sweep.ledger import Ledger
from ablate.track.address import public_uri
from ablate.track.tracker import TrackerError, connect
from ablate.track.view import MlflowView


def programs() -> Path | None:
    """Return the folder of PostgreSQL's server programs, which are seldom on the path."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).parent
    return max(Path("/usr/lib/postgresql").glob("*/bin"), default=None)


def reason() -> str | None:
    if programs() is None:
        return "needs PostgreSQL: no initdb"
    if importlib.util.find_spec("psycopg") is None:
        return "needs psycopg"
    if os.geteuid() == 0 and shutil.which("runuser") is None:
        return "PostgreSQL refuses to run as root, and there is no runuser"
    return None


@pytest.fixture
def server() -> Iterator[str]:
    """Yield the address of a fresh server with a user that needs a password."""
    folder = programs()
    assert folder is not None
    # Not below pytest's folder, which the server's own user may not enter.
    place = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if as_user:
        shutil.chown(place, "postgres")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    password = place / "password"
    password.write_text("secret\n")
    password.chmod(0o644)
    data = place / "data"

    def call(program: str, *arguments: str) -> None:
        command = [*as_user, str(folder / program), *arguments]
        subprocess.run(command, check=True, capture_output=True, timeout=120, cwd=place)

    try:
        call("initdb", "-D", str(data), "-U", "ann", "-A", "scram-sha-256", f"--pwfile={password}")
        options = f"-p {port} -k {place} -c listen_addresses=127.0.0.1 -c fsync=off"
        call("pg_ctl", "-D", str(data), "-w", "-l", str(place / "log"), "-o", options, "start")
        try:
            yield f"postgresql+psycopg://ann:secret@127.0.0.1:{port}/postgres"
        finally:
            call("pg_ctl", "-D", str(data), "-m", "immediate", "stop")
    finally:
        shutil.rmtree(place)


@pytest.mark.slow
@pytest.mark.skipif(reason() is not None, reason=str(reason()))
def test_a_study_goes_into_postgresql_once_and_names_no_password(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ABLATE_HOME", str(tmp_path))
    with Ledger.open(tmp_path / "fake" / "ledger.sqlite") as ledger:
        run_plan(FakePlan(cells=2, seeds=2), ledger, executor=InlineExecutor(fake_trial))
        view = MlflowView(server)
        assert view.push(ledger) == 4
        assert MlflowView(server).push(ledger) == 0
        assert list(ledger.get("tracker_state")) == [public_uri(server)]
        assert "secret" not in view.public_uri
    client = connect(server)
    runs = client.search_runs([view.experiment_id])
    assert len(runs) == 5
    child = next(run for run in runs if run.info.run_name == "memory=level1 seed 0")
    history = client.get_metric_history(child.info.run_id, "val/loss")
    assert [point.step for point in history][:2] == [10, 20]
    wrong = server.replace("secret", "guess")
    began = time.monotonic()
    with pytest.raises(TrackerError, match="not usable") as caught:
        MlflowView(wrong).prepare(FakePlan().to_json())
    assert "guess" not in str(caught.value)
    assert time.monotonic() - began < 20
