"""`ablate reproduce` over real ledgers: what is compared, the verdict, and that nothing changes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ablate.cli import app
from ablate.commands.reproduce import ReproduceOptions, close, reproduce_command
from ablate.errors import UserError
from ablate.home import ledger_path
from ablate.sweep.driver import run_plan
from ablate.sweep.execution import Recorder
from ablate.sweep.fake_study import (
    FakePlan,
    end_message,
    fake_trial,
    row_message,
    start_message,
)
from ablate.sweep.inline import InlineExecutor
from ablate.sweep.ledger import Ledger
from ablate.trial.build_test import tiny
from ablate.trial.space import resolve

Report = Callable[[dict[str, Any]], None]


@pytest.fixture(autouse=True)
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABLATE_HOME", str(tmp_path))
    with Ledger.open(ledger_path("fake")) as ledger:
        run_plan(
            FakePlan(cells=3, seeds=2), ledger, executor=InlineExecutor(fake_trial), max_trials=5
        )


def again(
    capsys: pytest.CaptureFixture[str], cell: str = "memory=level1", **options: Any
) -> tuple[int, dict[str, Any]]:
    options = {"trial": fake_trial, "as_json": True, **options}
    code = reproduce_command("fake", cell, ReproduceOptions(**options))
    return code, json.loads(capsys.readouterr().out)


def other(spec: dict[str, Any], report: Report) -> None:
    """As `fake_trial`, but the loss is off by 1e-6 from step 20 on."""
    right: list[dict[str, Any]] = []
    fake_trial(spec, right.append)
    for message in right:
        if message["kind"] == "row" and message["step"] == 20:
            message["metrics"] = {n: v + 1e-6 for n, v in message["metrics"].items()}
        if message["kind"] == "end":
            message["summary"]["val/loss"] += 1e-6
        report(message)


def test_the_same_code_gives_the_same_numbers_and_touches_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = ledger_path("fake").read_bytes()
    code, found = again(capsys, seed=1)
    assert (code, found["equal"]) == (0, True)
    assert (found["study"], found["cell"], found["label"], found["seed"], found["trial"]) == (
        *("fake", "c1", "memory=level1", 1, "c1-s1"),
    )
    values = {one["name"]: one["recorded"] for one in found["metrics"]}
    assert values["val/loss"] == 2.0 + 0.1 + 0.01
    assert "seconds" not in values
    assert found["points"] == {"recorded": 2, "again": 2, "unequal": 0, "first_unequal": None}
    assert ledger_path("fake").read_bytes() == before


def test_a_difference_is_found_named_and_exits_with_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, found = again(capsys, trial=other)
    assert (code, found["equal"]) == (1, False)
    (loss,) = (one for one in found["metrics"] if one["name"] == "val/loss")
    assert loss["difference"] == pytest.approx(1e-6, rel=1e-6)
    unequal = [one["name"] for one in found["metrics"] if not one["equal"]]
    assert unequal == ["val/loss"]
    assert found["points"]["unequal"] == 1
    assert found["points"]["first_unequal"] == [20, "val/loss"]
    assert again(capsys, trial=other, tolerance=1e-5)[0] == 0
    assert again(capsys, trial=other, tolerance=1e-8)[0] == 1


def test_the_seed_is_the_first_finished_one_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    # Five of six trials ran, all of seed 0 and the first of seed 1 or the other way round.
    assert again(capsys, "memory=level2")[1]["seed"] == 0


def test_code_and_facts_that_changed_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    def newer(spec: dict[str, Any], report: Report) -> None:
        messages: list[dict[str, Any]] = []
        fake_trial(spec, messages.append)
        messages[0] |= {"fingerprint": "f1", "info": {"torch": "9.9"}}
        for message in messages:
            report(message)

    code, found = again(capsys, trial=newer)
    assert code == 0
    assert found["facts"]["fingerprint"] == ["f0", "f1"]
    assert found["facts"]["torch"] == [None, "9.9"]


def test_an_end_of_another_kind_is_a_difference(capsys: pytest.CaptureFixture[str]) -> None:
    def diverges(spec: dict[str, Any], report: Report) -> None:
        report(start_message())
        report(row_message(10, math.inf))
        report(end_message("diverged", {"val/loss": math.inf}, error="loss is inf at step 10"))

    code, found = again(capsys, trial=diverges)
    assert code == 1
    assert found["state"] == ["done", "diverged"]
    assert found["error"] == "loss is inf at step 10"


def test_a_trial_that_raises_is_reported_not_raised(capsys: pytest.CaptureFixture[str]) -> None:
    def raises(spec: dict[str, Any], report: Report) -> None:
        raise RuntimeError("broken")

    code, found = again(capsys, trial=raises)
    assert (code, found["state"]) == (1, ["done", "failed"])
    assert found["error"] == "RuntimeError: broken"


def test_words_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    options = ReproduceOptions(trial=fake_trial)
    assert reproduce_command("fake", "baseline", options) == 0
    text = capsys.readouterr().out
    assert "fake: baseline, seed 0 (trial c0-s0)" in text
    assert "curves: 2 of 2 points equal" in text
    assert "equal: every recorded value came out again, to the last bit" in text
    assert reproduce_command("fake", "baseline", ReproduceOptions(trial=other)) == 1
    text = capsys.readouterr().out
    assert "+1e-06" in text
    assert "curves: 1 of 2 points equal; the first that differs is val/loss at step 20" in text
    assert "different; what has changed since: nothing that was recorded" in text


def test_mistakes_name_what_there_is() -> None:
    options = ReproduceOptions(trial=fake_trial)
    with pytest.raises(UserError, match="Did you mean 'memory=level1'"):
        reproduce_command("fake", "memory=levl1", options)
    with pytest.raises(UserError, match="no trial with seed 7. Seeds: 0, 1."):
        reproduce_command("fake", "baseline", ReproduceOptions(seed=7, trial=fake_trial))
    with pytest.raises(UserError, match="memory=level2, seed 1, is missing: there is no result"):
        reproduce_command("fake", "memory=level2", ReproduceOptions(seed=1, trial=fake_trial))


def test_the_program_knows_the_command() -> None:
    found = CliRunner().invoke(app, ["reproduce", "fake", "no-such-cell"])
    assert found.exit_code == 2


@pytest.mark.parametrize(
    ("one", "two", "tolerance", "expected"),
    [
        (1.0, 1.0, 0.0, True),
        (1.0, math.nextafter(1.0, 2.0), 0.0, False),
        (1.0, 1.0 + 1e-9, 1e-8, True),
        (math.nan, math.nan, 0.0, True),
        (math.nan, 1.0, 0.5, False),
        (math.inf, math.inf, 0.0, True),
        (math.inf, -math.inf, 0.5, False),
        (None, None, 0.0, True),
        (None, 0.0, 0.5, False),
    ],
)
def test_values_that_count_as_equal(
    one: float | None, two: float | None, tolerance: float, expected: bool
) -> None:
    assert close(one, two, tolerance) is expected


def test_a_real_trial_comes_out_again_to_the_last_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "text.txt"
    corpus.write_text("the cat sat on the mat and the dog sat on the log. " * 200)
    args = {"corpus": str(corpus), "context": 16, "batch": 2, "tokens": 320, "validation_bytes": 64}
    config = {
        "model": resolve(tiny("titans_lmm")),
        "task": {"name": "language", "args": args},
        "train": {"evaluations": 2},
    }
    with Ledger.open(ledger_path("real")) as ledger:
        ledger.save_plan(
            {**FakePlan(cells=1, seeds=1, study="real").to_json(), "resources": {"cpus": 1}}
        )
        spec = {"id": "c0-s0", "cell": "c0", "seed": 0, "config": config}
        ledger.add_trials([spec])
        InlineExecutor().run([[spec]], Recorder(ledger, lambda event: None))
    code = reproduce_command("real", "baseline", ReproduceOptions(as_json=True))
    found = json.loads(capsys.readouterr().out)
    assert code == 0, found
    assert found["state"] == ["done", "done"]
    assert found["points"]["recorded"] >= 2
    assert {"val/loss", "train/loss"} <= {one["name"] for one in found["metrics"]}
    assert found["facts"] == {}
