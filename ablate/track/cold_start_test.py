"""Several machines push different studies into one store that did not exist a moment ago."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ablate.sweep.driver import run_plan
from ablate.sweep.fake_study import FakePlan, fake_trial
from ablate.sweep.inline import InlineExecutor
from ablate.sweep.ledger import Ledger
from ablate.track.postgresql_test import reason, server
from ablate.track.tracker import connect

__all__ = ["server"]
MACHINES = 3


PUSH = """
import sys
from ablate.home import ledger_path
from ablate.sweep.ledger import Ledger
from ablate.track.view import MlflowView
with Ledger.open(ledger_path(sys.argv[1])) as ledger:
    print(MlflowView().push(ledger))
"""


def push_from_machines(uri: str, folder: Path) -> list[tuple[int, str]]:
    """Run one study a machine, push all at once; return exit code and output of each."""
    running = []
    for number in range(MACHINES):
        home, plan = folder / f"machine{number}", FakePlan(2, 1, study=f"study{number}")
        with Ledger.open(home / plan.study / "ledger.sqlite") as ledger:
            run_plan(plan, ledger, executor=InlineExecutor(fake_trial))
        process = subprocess.Popen(
            [sys.executable, "-c", PUSH, plan.study],
            env={**os.environ, "ABLATE_HOME": str(home), "MLFLOW_TRACKING_URI": uri},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        running.append(process)
    said = [process.communicate()[0] for process in running]
    return [(process.returncode, text) for process, text in zip(running, said, strict=True)]


def check(uri: str) -> None:
    client = connect(uri)
    experiments = client.search_experiments(filter_string="name LIKE 'study%'")
    assert sorted(found.name for found in experiments) == [f"study{n}" for n in range(MACHINES)]
    for found in experiments:
        runs = client.search_runs([found.experiment_id])
        assert sorted(run.info.run_name for run in runs) == sorted(
            [found.name, "baseline seed 0", "memory=level1 seed 0"]
        )
        assert {run.info.status for run in runs} == {"FINISHED"}


@pytest.mark.slow
def test_machines_that_meet_at_a_fresh_sqlite_file(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/shared.db"
    assert push_from_machines(uri, tmp_path) == [(0, "2\n")] * MACHINES
    check(uri)


@pytest.mark.slow
@pytest.mark.skipif(reason() is not None, reason=str(reason()))
def test_machines_that_meet_at_a_fresh_postgresql(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert push_from_machines(server, tmp_path) == [(0, "2\n")] * MACHINES
    monkeypatch.setenv("ABLATE_HOME", str(tmp_path))
    check(server)
