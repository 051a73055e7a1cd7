from __future__ import annotations

import io

import pytest
from rich.console import Console

from ablate.commands.pace import Best, Pace, cell_of
from ablate.commands.progress import RunProgress
from ablate.sweep.execution import Event
from ablate.sweep.fake_study import FakePlan, end_message

PLAN = {
    "cells": [
        {"id": "a", "seconds_per_trial": 10.0},
        {"id": "b", "seconds_per_trial": 20.0},
        {"id": "c", "seconds_per_trial": None},
    ]
}


def test_the_time_left_follows_what_trials_took() -> None:
    now = [0.0]
    pace = Pace(PLAN, todo=5, clock=lambda: now[0])
    assert pace.left(0) == pytest.approx(5 * 15.0), "as planned"
    pace.begin("a-s0")
    pace.begin("b-s0")
    now[0] = 4.0
    assert pace.left(0) == pytest.approx((6 + 16 + 3 * 15.0) / 2), "two at a time"
    pace.end("a-s0", done=True)
    assert pace.running == 1
    assert pace.left(1) == pytest.approx((8 - 4 + 3 * 4.0) / 2), "b is planned twice as long as a"
    now[0] = 100.0
    pace.end("b-s0", done=False)
    assert pace.left(2) == pytest.approx(3 * 4.0 / 2), "a failed trial says nothing"


def test_nothing_is_promised_while_nothing_is_known() -> None:
    pace = Pace({"cells": [{"id": "a", "seconds_per_trial": None}]}, todo=2)
    pace.begin("a-s0")
    assert pace.left(0) is None


def test_the_best_cell_is_one_of_those_with_the_most_seeds() -> None:
    best = Best("val/loss", "min")
    assert best.cell() is None
    best.add("a", "a-s0", {"val/loss": 2.0})
    best.add("b", "b-s0", {"val/loss": 3.0})
    best.add("b", "b-s0", {"val/loss": 1.5})
    best.add("c", "c-s0", {"val/loss": float("nan")})
    assert best.cell() == ("b", 1.5)
    best.add("a", "a-s1", {"val/loss": 4.0})
    assert best.cell() == ("a", 3.0)
    high = Best("val/accuracy", "max")
    high.add("a", "a-s0", {"val/accuracy": 0.5})
    high.add("b", "b-s0", {"val/accuracy": 0.75})
    assert high.cell() == ("b", 0.75)
    assert cell_of("c-s1-s12") == "c-s1"


def shown(*, terminal: bool, quiet: bool = False) -> str:
    stream = io.StringIO()
    out = Console(file=stream, force_terminal=terminal, quiet=quiet, width=200, highlight=False)
    with RunProgress(FakePlan(cells=2, seeds=2).to_json(), 4, out) as progress:
        for trial_id, state, loss in (
            ("c0-s0", "done", 2.0),
            ("c1-s0", "oom", 0.0),
            ("c1-s0", "done", 1.0),
            ("c1-s1", "failed", 0.0),
        ):
            progress.event(Event("begin", trial_id, {}))
            error = None if state == "done" else "it broke\nbadly"
            end = end_message(state, {"val/bits_per_byte": loss}, error=error)
            progress.event(Event("end", trial_id, end))
    return stream.getvalue()


def test_plain_lines_where_there_is_no_terminal() -> None:
    lines = shown(terminal=False).splitlines()
    assert len(lines) == 4
    assert lines[0].startswith("[1/4]  done      baseline seed 0  val/bits_per_byte 2.0000  (")
    assert "left; best so far baseline 2.0000)" in lines[0]
    assert lines[1].startswith("[2/4]  oom       memory=level1 seed 0  it broke  (")
    assert lines[2].startswith("[2/4]  done      memory=level1 seed 0")
    assert "best so far memory=level1 1.0000)" in lines[2]
    assert lines[3].startswith("[3/4]  failed    memory=level1 seed 1  it broke")


def test_a_bar_on_a_terminal_and_nothing_when_quiet() -> None:
    text = shown(terminal=True)
    assert "2 done, 1 failed, 0 running, best so far memory=level1 1.0000" in text
    assert "3/4" in text
    assert shown(terminal=True, quiet=True) == ""
