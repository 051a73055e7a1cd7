from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from ablate.errors import UserError
from ablate.sweep.driver import run_plan
from ablate.sweep.execution import Event, Job, Recorder, Spec
from ablate.sweep.fake_study import (
    FAKE_ENV,
    FakePlan,
    end_message,
    fake_trial,
    scripted_pack,
    scripted_trial,
    start_message,
)
from ablate.sweep.inline import InlineExecutor
from ablate.sweep.ledger import Ledger

PLAN = FakePlan(cells=4, seeds=5)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.sqlite") as opened:
        yield opened


def drive(ledger: Ledger, run=fake_trial, plan=PLAN, **settings) -> tuple[dict[str, int], list]:
    """Run the plan; return the counts above zero and the ids of the trials that began."""
    begun: list[str] = []

    def note(event: Event) -> None:
        if event.kind == "begin":
            begun.append(event.trial_id)

    executor = InlineExecutor(run)
    counts = run_plan(plan, ledger, executor=executor, on_event=note, **settings)
    return {state: n for state, n in counts.items() if n}, begun


def test_one_bad_trial_of_twenty_never_ends_the_sweep_and_is_the_only_one_run_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAKE_ENV, "c1-s1:raise,c2-s0:diverge,c3-s4:nan")
    counts, begun = drive(ledger, scripted_trial)
    assert counts == {"done": 18, "failed": 1, "diverged": 1}
    assert begun == [spec["id"] for spec in PLAN.trials()]
    failed = ledger.trial("c1-s1")
    assert failed.error == "RuntimeError: the fake trial raises"
    assert "in scripted_trial" in (failed.traceback or "")
    assert math.isnan(ledger.rows("c3-s4")[0].value)
    assert ledger.trial("c2-s0").error == "loss is inf at step 10"

    monkeypatch.delenv(FAKE_ENV)
    counts, begun = drive(ledger, scripted_trial)
    assert (counts, begun) == ({"done": 19, "diverged": 1}, ["c1-s1"])
    assert ledger.trial("c1-s1").attempt == 2
    assert drive(ledger, scripted_trial)[1] == []


def test_max_trials_takes_a_bite_and_the_next_run_goes_on(ledger: Ledger) -> None:
    assert drive(ledger, max_trials=7)[0] == {"done": 7, "missing": 13}
    counts, begun = drive(ledger)
    assert counts == {"done": 20}
    assert len(begun) == 13


def test_a_plan_that_grew_runs_only_what_is_new(ledger: Ledger) -> None:
    drive(ledger, plan=FakePlan(cells=2, seeds=2))
    counts, begun = drive(ledger, plan=FakePlan(cells=3, seeds=2))
    assert (counts, begun) == ({"done": 6}, ["c2-s0", "c2-s1"])
    assert drive(ledger, plan=FakePlan(cells=1, seeds=2))[0] == {"done": 2}


def test_a_message_that_cannot_be_read_fails_its_trial_only(ledger: Ledger) -> None:
    def odd(spec: Spec, report) -> None:
        report(start_message())
        if spec["id"] == "c0-s0":
            report({"kind": "row", "step": 1, "metrics": {"val/loss": "low"}})
        if spec["id"] == "c0-s1":
            return
        report(end_message("done", {}))

    counts, _ = drive(ledger, odd, plan=FakePlan(cells=1, seeds=3))
    assert counts == {"done": 1, "failed": 2}
    assert "unreadable message" in (ledger.trial("c0-s0").error or "")
    assert ledger.trial("c0-s1").error == "the trial returned without an end message"


def test_interrupted_means_resumable(ledger: Ledger) -> None:
    def stop(spec: Spec, report) -> None:
        if spec["id"] == "c0-s2":
            report(start_message())
            raise KeyboardInterrupt
        fake_trial(spec, report)

    with pytest.raises(KeyboardInterrupt):
        drive(ledger, stop, plan=FakePlan(cells=1, seeds=4))
    assert ledger.trial("c0-s2").state == "lost"
    assert ledger.lock_holder() is None
    counts, begun = drive(ledger, plan=FakePlan(cells=1, seeds=4))
    assert (counts, begun) == ({"done": 4}, ["c0-s2", "c0-s3"])


def test_results_of_other_code_are_run_again_kept_or_refused(ledger: Ledger) -> None:
    plan = FakePlan(cells=2, seeds=2)
    edited = FakePlan(cells=2, seeds=2, code=("f0", "f1"))
    drive(ledger, plan=plan)
    with pytest.raises(UserError, match="2 finished trials were made by other code"):
        drive(ledger, plan=edited, stale="abort")
    counts, begun = drive(ledger, plan=edited, stale="keep")
    assert (counts, begun) == ({"done": 4}, [])
    assert ledger.get("kept_stale") == ["c1-s0", "c1-s1"]
    counts, begun = drive(ledger, plan=edited, max_trials=1)
    assert (counts, begun) == ({"done": 3, "stale": 1}, ["c1-s0"])
    assert ledger.get("kept_stale") == []
    assert drive(ledger, plan=plan, max_trials=0)[0] == {"done": 4}


def test_events_come_after_the_ledger_knows(ledger: Ledger) -> None:
    seen: list[tuple[str, str]] = []

    def note(event: Event) -> None:
        seen.append((event.kind, ledger.trial(event.trial_id).state))

    plan = FakePlan(cells=1, seeds=1)
    run_plan(plan, ledger, executor=InlineExecutor(fake_trial), on_event=note)
    kinds = ["begin", "start", "row", "row"]
    assert seen == [*((kind, "running") for kind in kinds), ("end", "done")]


DRIVER = """
import sys, time
from ablate.sweep.driver import run_plan
from ablate.sweep.fake_study import FakePlan, fake_trial
from ablate.sweep.inline import InlineExecutor
from ablate.sweep.ledger import Ledger

def slow(spec, report):
    def tell(message):
        report(message)
        print(spec["id"], message["kind"], flush=True)
        if spec["id"] == "c1-s2" and message["kind"] == "row":
            time.sleep(60)  # until it is killed
    fake_trial(spec, tell)

with Ledger.open(sys.argv[1]) as ledger:
    run_plan(FakePlan(), ledger, executor=InlineExecutor(slow))
"""


def test_after_a_killed_driver_only_the_missing_trials_run(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    command = [sys.executable, "-c", DRIVER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        for line in driver.stdout:
            if line == "c1-s2 row\n":
                os.kill(driver.pid, signal.SIGKILL)
                break
    with Ledger.open(path) as ledger:
        assert ledger.counts()["running"] == 1
        counts, begun = drive(ledger)
        assert counts == {"done": 20}
        assert begun == [spec["id"] for spec in PLAN.trials()][7:]
        assert ledger.trial("c1-s2").attempt == 2


def in_threes(specs: list[Spec]) -> list[Job]:
    return [specs[first : first + 3] for first in range(0, len(specs), 3)]


def test_each_trial_of_a_pack_has_its_own_begin_start_rows_and_end(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAKE_ENV, "c0-s1:diverge")
    events: list[Event] = []
    counts = run_plan(
        FakePlan(cells=1, seeds=4),
        ledger,
        executor=InlineExecutor(scripted_trial, pack=scripted_pack),
        on_event=events.append,
        jobs_of=in_threes,
    )
    assert {state: n for state, n in counts.items() if n} == {"done": 3, "diverged": 1}
    kinds = [event.kind for event in events[:6]]
    assert kinds == ["begin"] * 3 + ["start"] * 3
    for seed in (0, 2, 3):
        mine = [event.kind for event in events if event.trial_id == f"c0-s{seed}"]
        assert mine == ["begin", "start", "row", "row", "end"]
        assert ledger.rows(f"c0-s{seed}")[1].value == pytest.approx(2.05 + 0.01 * seed)
    assert [row.value for row in ledger.rows("c0-s1")] == [math.inf]


def test_a_pack_that_raises_fails_only_those_that_had_not_ended(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAKE_ENV, "c0-s1:raise")
    run_plan(
        FakePlan(cells=1, seeds=4),
        ledger,
        executor=InlineExecutor(scripted_trial, pack=scripted_pack),
        jobs_of=in_threes,
    )
    assert [record.state for record in ledger.trials()] == ["done", "failed", "failed", "done"]
    assert ledger.trial("c0-s2").error == "RuntimeError: the fake trial raises"


def test_without_a_pack_the_trials_of_a_job_run_in_turn(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FAKE_ENV, "c0-s1:raise")
    counts, begun = drive(ledger, scripted_trial, FakePlan(cells=1, seeds=4), jobs_of=in_threes)
    assert counts == {"done": 3, "failed": 1}
    assert begun == ["c0-s0", "c0-s1", "c0-s2", "c0-s3"]


class Interrupted:
    """An executor in which Ctrl-C strikes before the recorder has noted what began."""

    def run(self, jobs: Iterable[Job], recorder: Recorder) -> None:
        recorder._ledger.begin("c0-s0")
        raise KeyboardInterrupt


def test_an_interrupt_between_two_lines_leaves_no_trial_running(ledger: Ledger) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_plan(PLAN, ledger, executor=Interrupted())
    assert (ledger.trial("c0-s0").state, ledger.trial("c0-s0").error) == ("lost", "interrupted")
    assert ledger.counts()["running"] == 0
