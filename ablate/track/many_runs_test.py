"""A study of more trials than MLflow gives back in one answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ablate.home import ledger_path
from ablate.sweep.driver import run_plan
from ablate.sweep.fake_study import FakePlan, end_message, row_message, start_message
from ablate.sweep.inline import InlineExecutor
from ablate.sweep.ledger import Ledger
from ablate.track.tracker import connect
from ablate.track.view import MlflowView

PLAN = FakePlan(cells=220, seeds=5)
TRIALS = 1100


def short_trial(spec: dict[str, Any], report: Any) -> None:
    report(start_message())
    report(row_message(10, 2.0))
    report(end_message("done", {"val/loss": 2.0}))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_eleven_hundred_trials_arrive_once(home: Path) -> None:
    with Ledger.open(ledger_path(PLAN.study)) as ledger:
        # This ledger need not survive a power cut.
        ledger._db.execute("PRAGMA synchronous = OFF")
        run_plan(PLAN, ledger, executor=InlineExecutor(short_trial))
        view = MlflowView()
        assert view.push(ledger) == TRIALS
        assert MlflowView().push(ledger) == 0
        wanted = {record.trial_id for record in ledger.trials()}
    client = connect(view.uri)
    runs: list[Any] = []
    token = None
    while token or not runs:
        page = client.search_runs(
            [view.experiment_id], "tags.`ablate.role` = 'trial'", max_results=1000, page_token=token
        )
        runs, token = runs + page, page.token
    assert len(wanted) == len(runs) == TRIALS
    assert {run.data.tags["ablate.trial"] for run in runs} == wanted
    assert {run.info.status for run in runs} == {"FINISHED"}
    (parent,) = client.search_runs([view.experiment_id], "tags.`ablate.role` = 'study'")
    assert parent.data.tags["ablate.trials.done"] == str(TRIALS)
    assert parent.data.metrics["val/loss/memory: level219"] == 2.0
