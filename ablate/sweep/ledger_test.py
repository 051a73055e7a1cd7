from __future__ import annotations

import math
import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from ablate.errors import Failure, UserError
from ablate.sweep.fake_study import FakePlan, end_message, fake_trial, row_message, start_message
from ablate.sweep.ledger import Ledger
from ablate.sweep.lock import LockHolder
from ablate.sweep.records import STATES


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "study" / "ledger.sqlite"


def fill(ledger: Ledger, plan: FakePlan) -> None:
    ledger.save_plan(plan.to_json())
    ledger.add_trials(plan.trials())


def run(ledger: Ledger, spec: dict) -> None:
    attempt = ledger.begin(spec["id"])
    fake_trial(spec, lambda message: ledger.record(spec["id"], attempt, message))


def test_a_trial_goes_from_missing_over_running_to_done(path: Path) -> None:
    plan = FakePlan(cells=1, seeds=2)
    with Ledger.open(path) as ledger:
        fill(ledger, plan)
        assert [(r.state, r.attempt) for r in ledger.trials()] == [("missing", 0)] * 2
        assert ledger.begin("c0-s1") == 1
        assert ledger.trial("c0-s1").state == "running"
        ledger.record("c0-s1", 1, start_message())
        ledger.record("c0-s1", 1, row_message(5, 2.5))
        end = end_message("done", {"val/loss": 2.25})
        ledger.record("c0-s1", 1, {**end, "warnings": ["odd"]})
    with Ledger.open(path, read_only=True) as ledger:
        record = ledger.trial("c0-s1")
        assert (record.state, record.attempt, record.device) == ("done", 1, "cpu")
        assert record.summary["val/loss"] == 2.25
        assert record.info["parameters"] == 1000
        assert record.info["warnings"] == ["odd"]
        assert record.config == plan.trials()[1]["config"]
        assert record.started is not None
        assert record.ended is not None
        assert record.started <= record.ended
        rows = ledger.rows("c0-s1")
        assert [(r.step, r.tokens, r.name, r.value) for r in rows] == [(5, 40, "val/loss", 2.5)]


def test_counts_name_every_state_and_only_trials_of_the_plan(path: Path) -> None:
    with Ledger.open(path) as ledger:
        fill(ledger, FakePlan(cells=2, seeds=2))
        run(ledger, FakePlan().trials()[0])
        ledger.begin("c1-s0")
        ledger.mark("c1-s0", "lost", "gone")
        assert set(ledger.counts()) == set(STATES)
        assert {k: v for k, v in ledger.counts().items() if v} == {
            "done": 1,
            "missing": 2,
            "lost": 1,
        }
        ledger.save_plan(FakePlan(cells=1, seeds=3).to_json())
        ledger.add_trials(FakePlan(cells=1, seeds=3).trials())
        assert {k: v for k, v in ledger.counts().items() if v} == {"done": 1, "missing": 2}
        found = [(r.trial_id, r.in_plan) for r in ledger.trials()]
        assert found[:3] == [("c0-s0", True), ("c0-s1", True), ("c0-s2", True)]
        assert dict(found[3:]) == {"c1-s0": False, "c1-s1": False}


def test_infinity_and_nan_come_back_as_they_were(path: Path) -> None:
    with Ledger.open(path) as ledger:
        fill(ledger, FakePlan(cells=1, seeds=1))
        attempt = ledger.begin("c0-s0")
        for step, value in enumerate((math.inf, -math.inf, math.nan, 1e-300)):
            ledger.record("c0-s0", attempt, row_message(step, value))
        ledger.record("c0-s0", attempt, end_message("diverged", {"a": math.inf, "b": math.nan}))
        values = [r.value for r in ledger.rows("c0-s0")]
        assert values[:2] == [math.inf, -math.inf]
        assert math.isnan(values[2])
        assert values[3] == 1e-300
        summary = ledger.trial("c0-s0").summary
        assert summary["a"] == math.inf
        assert math.isnan(summary["b"])


def test_the_last_attempt_and_the_last_row_of_a_step_win(path: Path) -> None:
    with Ledger.open(path) as ledger:
        fill(ledger, FakePlan(cells=1, seeds=1))
        first = ledger.begin("c0-s0")
        ledger.record("c0-s0", first, row_message(1, 9.0))
        ledger.record("c0-s0", first, end_message("failed", {}, error="boom"))
        second = ledger.begin("c0-s0")
        assert second == 2
        assert ledger.rows("c0-s0") == []
        ledger.record("c0-s0", second, row_message(1, 5.0))
        ledger.record("c0-s0", second, row_message(1, 4.0))
        assert [r.value for r in ledger.rows("c0-s0")] == [4.0]
        assert ledger.trial("c0-s0").error is None


def test_stale_is_a_mark_that_can_be_taken_back(path: Path) -> None:
    with Ledger.open(path) as ledger:
        fill(ledger, FakePlan(cells=1, seeds=2))
        run(ledger, FakePlan().trials()[0])
        ledger.mark_stale(["c0-s0", "c0-s1"])
        assert [r.state for r in ledger.trials()] == ["stale", "missing"]
        ledger.mark_stale([])
        assert [r.state for r in ledger.trials()] == ["done", "missing"]


def test_what_is_not_a_message_or_a_trial_is_refused(path: Path) -> None:
    with Ledger.open(path) as ledger:
        fill(ledger, FakePlan(cells=1, seeds=1))
        attempt = ledger.begin("c0-s0")
        with pytest.raises(ValueError, match="'walk' is none of start, row, end"):
            ledger.record("c0-s0", attempt, {"kind": "walk"})
        with pytest.raises(ValueError, match="'running' is none of"):
            ledger.record("c0-s0", attempt, end_message("running", {}))
        with pytest.raises(KeyError, match="has no trial 'c9-s9'"):
            ledger.begin("c9-s9")
        with pytest.raises(ValueError, match="'asleep' cannot be set"):
            ledger.mark("c0-s0", "asleep")


def test_reading_needs_a_ledger_and_never_writes(path: Path) -> None:
    with pytest.raises(UserError, match="nothing has been run yet"):
        Ledger.open(path, read_only=True)
    assert not path.parent.exists()
    with Ledger.open(path) as writer:
        fill(writer, FakePlan(cells=1, seeds=1))
        with Ledger.open(path, read_only=True) as reader:
            attempt = writer.begin("c0-s0")
            writer.record("c0-s0", attempt, row_message(1, 3.0))
            assert [r.value for r in reader.rows("c0-s0")] == [3.0]
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                reader.set("a", 1)


def test_a_file_that_is_no_ledger_is_named(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("not a database, by any means " * 50)
    with pytest.raises(UserError, match="cannot open the ledger"):
        Ledger.open(path)
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(UserError, match="has version 99"):
        Ledger.open(path)


def test_another_programs_database_is_left_as_it_is(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE mine (a)")
    for read_only in (True, False):
        with pytest.raises(UserError, match="is no ledger, but some other database"):
            Ledger.open(path, read_only=read_only)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]


def test_the_empty_file_of_a_killed_process_becomes_a_ledger(path: Path) -> None:
    assert not Ledger.begun(path)
    path.parent.mkdir()
    path.touch()
    assert not Ledger.begun(path)
    with Ledger.open(path) as ledger:
        fill(ledger, FakePlan(cells=1, seeds=1))
    assert Ledger.begun(path)


def test_a_ledger_that_is_damaged_inside_is_named(path: Path) -> None:
    with Ledger.open(path) as ledger:
        fill(ledger, FakePlan(cells=2, seeds=2))
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE kv SET value = '{' WHERE key = 'plan'")
        db.commit()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    said = r"ledger\.sqlite cannot be used: its plan is damaged"
    with pytest.raises(Failure, match=said), Ledger.open(path) as ledger:
        ledger.plan()
    content = path.read_bytes()
    path.write_bytes(content[:4096] + bytes(len(content) - 4096))
    said = r"ledger\.sqlite cannot be used: .*malformed"
    with pytest.raises(Failure, match=said), Ledger.open(path, read_only=True) as ledger:
        ledger.trials()


def test_keys_hold_json_values(path: Path) -> None:
    with Ledger.open(path) as ledger:
        assert ledger.get("tracker_state", {}) == {}
        ledger.set("tracker_state", {"c0-s0": [1, "run"]})
        assert ledger.get("tracker_state") == {"c0-s0": [1, "run"]}


def test_a_living_owner_is_named_and_its_lock_refused(path: Path) -> None:
    with Ledger.open(path) as first, Ledger.open(path) as second:
        first.acquire_lock("ablate run")
        with pytest.raises(UserError, match=rf"by ablate run \(pid {os.getpid()} on "):
            second.acquire_lock("another")
        second.acquire_lock("another", force=True)
        first.release_lock()
        holder = second.lock_holder()
        assert holder is not None
        assert holder.owner == "another"
    with Ledger.open(path, read_only=True) as ledger:
        assert ledger.lock_holder() is None


def test_a_dead_owners_lock_is_taken_over_even_if_its_pid_lives_again(path: Path) -> None:
    with Ledger.open(path) as ledger:
        child = subprocess.Popen(["sleep", "60"])
        mine = LockHolder.this_process("dead")
        reused = LockHolder("dead", child.pid, mine.host, "another boot:12", mine.since)
        ledger.set("lock", reused.to_json())
        ledger.acquire_lock("me")
        ledger.release_lock()
        child.kill()
        child.wait()
        ledger.set("lock", reused.to_json())
        ledger.acquire_lock("me")
        ledger.release_lock()
        ledger.set("lock", LockHolder("far", 1, "another-host", "x:1", mine.since).to_json())
        with pytest.raises(UserError, match="on another-host"):
            ledger.acquire_lock("me")
