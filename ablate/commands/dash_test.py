"""`ablate dash` as a program: prints its address, serves the study, ends when it is told to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from ablate.commands.dash import dash_command
from ablate.errors import UserError
from ablate.sweep.driver import run_plan
from ablate.sweep.fake_study import FakePlan, fake_trial
from ablate.sweep.inline import InlineExecutor
from ablate.sweep.ledger import Ledger


@pytest.fixture(autouse=True)
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABLATE_HOME", str(tmp_path))
    with Ledger.open(tmp_path / "fake" / "ledger.sqlite") as ledger:
        run_plan(FakePlan(cells=2, seeds=2), ledger, executor=InlineExecutor(fake_trial))


def test_the_program_serves_until_it_is_ended() -> None:
    command = [sys.executable, "-m", "ablate", "dash", "fake"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert "4 done" in answer.read().decode()
        server.terminate()
        assert server.wait(30) == 0


def test_what_cannot_be_served_is_said_before_a_server_starts() -> None:
    with pytest.raises(UserError, match="published table"):
        dash_command("fake", paper="atlas/tabel6")
    with pytest.raises(UserError, match="no study"):
        dash_command("fakes")
    with pytest.raises(UserError, match="port 70000 cannot be used"):
        dash_command("fake", port=70000)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} cannot be used: Address already in use"):
            dash_command("fake", port=port)
