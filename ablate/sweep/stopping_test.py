from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ablate.sweep.driver import CHOSEN, run_plan
from ablate.sweep.execution import Event, Message, Spec
from ablate.sweep.fake_study import FakePlan, end_message, fake_trial, row_message, start_message
from ablate.sweep.inline import InlineExecutor
from ablate.sweep.ledger import Ledger
from ablate.sweep.watch import Limits, Stopped, folder_bytes
from ablate.trial.guard import Guard, request_path

PLAN = FakePlan(cells=2, seeds=3)
Report = Callable[[Message], None]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "study" / "ledger.sqlite") as opened:
        yield opened


def states(ledger: Ledger) -> dict[str, int]:
    return {state: n for state, n in ledger.counts().items() if n}


def drive(ledger: Ledger, run: Any = fake_trial, **settings: Any) -> list[Event]:
    events: list[Event] = []
    run_plan(PLAN, ledger, executor=InlineExecutor(run), on_event=events.append, **settings)
    return events


def hungry(parts: int) -> Callable[[Spec, Report], None]:
    """One trial needs its batches in so many parts, or memory runs out."""

    def run(spec: Spec, report: Report) -> None:
        used = spec.get("micro_batches", 1)
        if spec["id"] != "c1-s0" or used >= parts:
            fake_trial(spec, report)
            return
        report(start_message())
        end = end_message("oom", {}, error="OutOfMemoryError: full")
        report({**end, "retry": {"micro_batches": 2 * used}})

    return run


def test_out_of_memory_is_tried_once_more_in_smaller_parts_and_both_are_on_record(
    ledger: Ledger,
) -> None:
    events = drive(ledger, hungry(2))
    assert states(ledger) == {"done": 6}
    assert ledger.trial("c1-s0").attempt == 2
    begun = [event.trial_id for event in events if event.kind == "begin"]
    assert begun == [*(spec["id"] for spec in PLAN.trials()), "c1-s0"]


def test_each_run_halves_at_most_twice_and_the_next_goes_on_from_there(ledger: Ledger) -> None:
    drive(ledger, hungry(8))
    record = ledger.trial("c1-s0")
    assert (record.state, record.attempt) == ("oom", 2)
    assert record.info["retry"] == {"micro_batches": 4}
    drive(ledger, hungry(8))
    assert states(ledger) == {"done": 6}
    assert ledger.trial("c1-s0").attempt == 4


def test_out_of_memory_that_cannot_be_split_is_not_tried_again(ledger: Ledger) -> None:
    def run(spec: Spec, report: Report) -> None:
        report(start_message())
        report(end_message("oom", {}, error="full"))

    drive(ledger, run, max_trials=1)
    assert ledger.trial("c0-s0").attempt == 1


def test_a_run_ends_at_its_most_failures(ledger: Ledger) -> None:
    def fail(spec: Spec, report: Report) -> None:
        if spec["id"] in ("c0-s0", "c0-s2"):
            raise RuntimeError("no")
        fake_trial(spec, report)

    with pytest.raises(Stopped, match="2 trials failed, the most is 2") as stopped:
        drive(ledger, fail, limits=Limits(failures=2))
    assert stopped.value.kind == "max_failures"
    assert states(ledger) == {"failed": 2, "done": 1, "missing": 3}
    assert not ledger.holds_lock


def wait(spec: Spec, report: Report) -> None:
    report(start_message())
    report(row_message(1, 2.0))
    time.sleep(60)


def test_a_run_ends_when_its_hours_are_over(ledger: Ledger) -> None:
    with pytest.raises(Stopped, match="hours are over") as stopped:
        drive(ledger, wait, limits=Limits(hours=0.1 / 3600))
    assert stopped.value.kind == "max_hours"
    assert states(ledger) == {"cancelled": 1, "missing": 5}
    assert ledger.trial("c0-s0").error == "2.77778e-05 hours are over"
    drive(ledger)
    assert states(ledger) == {"done": 6}


def test_a_run_ends_when_its_folder_is_too_large(ledger: Ledger) -> None:
    with pytest.raises(Stopped, match=r"folder takes 0\.\d{3} MB, the most is 0\.000 MB"):
        drive(ledger, wait, limits=Limits(disk=10.0))
    assert folder_bytes(ledger.path.parent) > 10


def test_a_cancelled_run_stops_within_seconds_and_the_next_one_goes_on(ledger: Ledger) -> None:
    def cancel(spec: Spec, report: Report) -> None:
        if spec["id"] == "c0-s1":
            with Ledger.open(ledger.path) as other:
                other.request_cancel(by="somebody")
            wait(spec, report)
        fake_trial(spec, report)

    began = time.monotonic()
    with pytest.raises(Stopped, match="cancelled by somebody"):
        drive(ledger, cancel)
    assert time.monotonic() - began < 30
    assert states(ledger) == {"done": 1, "cancelled": 1, "missing": 4}
    assert len(ledger.rows("c0-s1")) == 1
    drive(ledger)
    assert states(ledger) == {"done": 6}


def test_a_request_for_an_earlier_run_is_not_heard(ledger: Ledger) -> None:
    ledger.acquire_lock("another")
    ledger.request_cancel(by="somebody")
    ledger.release_lock()
    time.sleep(0.01)

    def slow(spec: Spec, report: Report) -> None:
        time.sleep(0.4)
        fake_trial(spec, report)

    drive(ledger, slow)
    assert states(ledger) == {"done": 6}


def test_one_trial_is_cancelled_and_the_others_go_on(ledger: Ledger) -> None:
    def run(spec: Spec, report: Report) -> None:
        if spec["id"] != "c0-s1":
            fake_trial(spec, report)
            return
        with Ledger.open(ledger.path) as other:
            other.request_cancel(["c0-s1"], by="somebody")
        report(start_message())
        guard = Guard(request_path(Path(spec["files"]["study"]), spec["id"]))
        while (stop := guard.wanted()) is None:
            time.sleep(0.05)
        report(end_message(stop.state, {}, error=str(stop)))

    drive(ledger, run)
    assert states(ledger) == {"done": 5, "cancelled": 1}
    assert ledger.trial("c0-s1").error == "cancelled by somebody"
    drive(ledger)
    assert states(ledger) == {"done": 6}


def test_chosen_trials_run_again_alone_and_once(ledger: Ledger) -> None:
    drive(ledger, max_trials=4)
    ledger.set(CHOSEN, ["c0-s1"])
    begun = [event.trial_id for event in drive(ledger, only=["c0-s1"]) if event.kind == "begin"]
    assert begun == ["c0-s1"]
    assert ledger.get(CHOSEN) == []
    assert states(ledger) == {"done": 4, "missing": 2}


def test_an_ended_trial_is_never_made_lost_or_cancelled(ledger: Ledger) -> None:
    drive(ledger, max_trials=1)
    for state in ("lost", "cancelled"):
        ledger.mark("c0-s0", state, "too late")
        assert ledger.trial("c0-s0").state == "done"
        assert ledger.trial("c0-s0").error is None


def test_a_worker_that_was_ended_after_its_time_is_timed_out_not_lost(ledger: Ledger) -> None:
    class Losing:
        isolated = True
        handed: list[Spec] = []

        def run(self, jobs: Any, recorder: Any) -> None:
            self.handed = [spec for job in jobs for spec in job]
            recorder.begin("c0-s0")
            recorder.begin("c0-s1")
            recorder.message("c0-s0", start_message())
            time.sleep(0.02)
            recorder.lost("c0-s0", "the worker died")

    executor = Losing()
    run_plan(PLAN, ledger, executor=executor, limits=Limits(trial_seconds=0.01))
    assert ledger.trial("c0-s0").state == "timed_out"
    assert "a step hung: its worker was ended" in (ledger.trial("c0-s0").error or "")
    assert executor.handed[0]["limits"] == {"seconds": 0.01, "hard": True}


def test_a_guard_lets_no_trial_take_more_than_its_time(tmp_path: Path) -> None:
    guard = Guard(tmp_path / "none", seconds=0.05)
    assert guard.wanted() is None
    time.sleep(0.06)
    stop = guard.wanted()
    assert stop is not None
    assert (stop.state, str(stop)) == ("timed_out", "stopped after 0.05 s, its limit")


HUNG = """
import time
from ablate.trial.guard import Guard
with Guard(seconds=0.05, hard=True, grace=0.05).watching():
    time.sleep(60)
"""


def test_a_hung_step_ends_its_process() -> None:
    assert subprocess.run([sys.executable, "-c", HUNG], check=False).returncode == 124


DRIVER = """
import signal, sys, time
from ablate.commands.terminal import stopped_by_sigterm
from ablate.sweep.driver import run_plan
from ablate.sweep.fake_study import FakePlan, fake_trial
from ablate.sweep.inline import InlineExecutor
from ablate.sweep.ledger import Ledger

def slow(spec, report):
    print(spec["id"], flush=True)
    if spec["id"] == "c0-s2":
        time.sleep(60)
    fake_trial(spec, report)

# Whoever runs the tests in the background of a shell has made them ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
with Ledger.open(sys.argv[1]) as ledger, stopped_by_sigterm():
    try:
        run_plan(FakePlan(cells=2, seeds=3), ledger, executor=InlineExecutor(slow))
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_a_polite_kill_leave_a_study_that_can_be_resumed(
    tmp_path: Path, number: signal.Signals
) -> None:
    path = tmp_path / "ledger.sqlite"
    command = [sys.executable, "-c", DRIVER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        for line in driver.stdout:
            if line == "c0-s2\n":
                os.kill(driver.pid, number)
                break
        assert driver.wait(timeout=60) == 130
    with Ledger.open(path) as ledger:
        assert states(ledger) == {"done": 2, "lost": 1, "missing": 3}
        assert ledger.trial("c0-s2").error == "interrupted"
        assert ledger.lock_holder() is None
