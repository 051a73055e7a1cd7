"""SIGKILL at any instruction, and a full disk: what was acknowledged is in the ledger, whole."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from ablate.errors import Failure
from ablate.sweep.fake_study import FakePlan, end_message, row_message, start_message
from ablate.sweep.ledger import Ledger

KILLS = """
import os, random, signal, sqlite3, sys, time
from pathlib import Path
from ablate.sweep.fake_study import FakePlan, end_message, start_message
from ablate.sweep.ledger import Ledger

PLAN = FakePlan(cells=3, seeds=2)

def write(path, say, draw):
    def tell(*words):
        os.write(say, (" ".join(map(str, words)) + "\\n").encode())

    ledger = Ledger.open(path)
    ledger.acquire_lock("writer")
    ledger.mark_orphans()
    ledger.save_plan(PLAN.to_json())
    ledger.add_trials(PLAN.trials())
    os.write(say, b"\\n")
    while True:
        trial = draw.choice(PLAN.trials())["id"]
        attempt = ledger.begin(trial)
        tell("begin", trial, attempt, 0)
        ledger.record(trial, attempt, start_message())
        for step in range(1, draw.randint(2, 5)):
            metrics = {"a": 1.0 * step, "b": 2.0 * step, "c": 3.0 * step}
            row = {"kind": "row", "step": step, "tokens": 8, "seconds": 0.1, "metrics": metrics}
            ledger.record(trial, attempt, row)
            tell("row", trial, attempt, step)
        if draw.random() < 0.3:
            ledger.mark(trial, "lost", "on purpose")
            tell("lost", trial, attempt, 0)
        else:
            ledger.record(trial, attempt, end_message("done", {"a": 1.0 * attempt}))
            tell("done", trial, attempt, 0)

def check(path, said):
    with Ledger.open(path, read_only=True) as ledger:
        db = ledger._db
        states = {(t, a): (s, summary) for t, a, s, summary in db.execute(
            "SELECT trial_id, attempt, state, summary FROM attempts")}
        rows = {(t, a, s): n for t, a, s, n in db.execute(
            "SELECT trial_id, attempt, step, count(*) FROM rows GROUP BY 1, 2, 3")}
        if said:
            assert ledger.plan() == PLAN.to_json()
            assert len(ledger.trials()) == 6
    assert set(rows.values()) <= {3}, "half a row"
    assert sum(state == "running" for state, _ in states.values()) <= 1
    for kind, trial, attempt, step in said:
        if kind == "row":
            assert rows[trial, attempt, step] == 3
        elif kind == "begin":
            assert (trial, attempt) in states
        else:
            state, summary = states[trial, attempt]
            assert state == kind
            assert kind == "lost" or summary.endswith('"a":%s}' % float(attempt))

draw = random.Random(0)
folder, kills = Path(sys.argv[1]), int(sys.argv[2])
acknowledged = []
for number in range(kills):
    path = folder / str(number // 30) / "ledger.sqlite"
    if number % 30 == 0:
        acknowledged = []
    hear, say = os.pipe()
    writer = os.fork()
    if not writer:
        try:
            write(path, say, random.Random(number))
        finally:
            os._exit(9)
    os.close(say)
    if number % 3:
        os.read(hear, 1)  # a third is killed while it opens the file
    time.sleep(draw.uniform(0.001, 0.03))
    os.kill(writer, signal.SIGKILL)
    _, status = os.waitpid(writer, 0)
    assert os.WIFSIGNALED(status), status
    with os.fdopen(hear) as file:
        lines = file.read().split("\\n")
    for line in filter(None, lines):
        kind, trial, attempt, step = line.split()
        acknowledged.append((kind, trial, int(attempt), int(step)))
    if Ledger.begun(path):
        check(path, acknowledged)
    else:
        assert not acknowledged
    if number % 30 == 29:
        with sqlite3.connect(path) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        print(len(acknowledged))
"""


def test_three_hundred_killed_writers_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLS, str(tmp_path), "300"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    messages = [int(line) for line in run.stdout.split()]
    assert len(messages) == 10
    assert sum(messages) > 100, "the writers came to write"
    for number in range(10):
        with Ledger.open(tmp_path / str(number) / "ledger.sqlite") as ledger:
            ledger.acquire_lock("next")
            ledger.mark_orphans()
            assert ledger.counts()["running"] == 0


def test_a_full_disk_is_said_and_everything_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    plan = FakePlan(cells=1, seeds=2)
    rows = 0
    with Ledger.open(path) as ledger:
        ledger.save_plan(plan.to_json())
        ledger.add_trials(plan.trials())
        attempt = ledger.begin("c0-s0")
        ledger.record("c0-s0", attempt, start_message())
        pages = ledger._db.execute("PRAGMA page_count").fetchone()[0]
        ledger._db.execute(f"PRAGMA max_page_count = {pages + 2}")

        def fill() -> None:
            nonlocal rows
            while rows < 10_000:
                ledger.record("c0-s0", attempt, row_message(rows + 1, 2.0))
                rows += 1

        with pytest.raises(Failure, match="no room left on the disk of the ledger .* is full"):
            fill()
        assert rows > 10
        assert len(ledger.rows("c0-s0")) == rows
        assert ledger.trial("c0-s0").state == "running"
        # There is room again.
        ledger._db.execute("PRAGMA max_page_count = 1000000")
        ledger.record("c0-s0", attempt, row_message(rows + 1, 2.0))
        ledger.record("c0-s0", attempt, end_message("done", {"val/loss": 2.0}))
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with Ledger.open(path, read_only=True) as ledger:
        assert len(ledger.rows("c0-s0")) == rows + 1
        assert ledger.trial("c0-s0").state == "done"
