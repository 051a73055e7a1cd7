from __future__ import annotations

from pathlib import Path

import pytest

import ablate.study.times as times
from ablate.home import ledger_path
from ablate.study.expand_test import plan
from ablate.study.pilot import read_pilot
from ablate.study.plan import Plan
from ablate.sweep.ledger import Ledger

FACTORS = {"window": [2, 1], "retention": ["scalar", "none"]}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder of studies."""
    monkeypatch.setenv("ABLATE_HOME", str(tmp_path / "home"))


def finish(made: Plan, cell: int, seconds: float, losses: list[float]) -> None:
    """Let the trials of one cell be done."""
    path = ledger_path(made.study)
    path.parent.mkdir(parents=True, exist_ok=True)
    with Ledger.open(path) as ledger:
        ledger.save_plan(made.to_json())
        ledger.add_trials(made.trials())
        for seed, loss in zip(made.seeds, losses, strict=True):
            trial = f"{made.cells[cell].id}-s{seed}"
            attempt = ledger.begin(trial)
            summary = {"seconds": seconds, "val/loss": loss}
            end = {"kind": "end", "state": "done", "error": None, "traceback": None}
            ledger.record(trial, attempt, {**end, "summary": summary})


def test_a_study_that_never_ran_tells_nothing() -> None:
    assert read_pilot("nothing", "val/loss").seconds == {}
    assert not ledger_path("nothing").exists(), "looking makes no files"


def test_trials_that_ran_time_their_cell_and_scale_the_others(tmp_path: Path) -> None:
    guessed = plan(tmp_path, design={"factors": FACTORS})
    assert {cell.cost.time_from for cell in guessed.cells} == {"estimate"}
    finish(guessed, 0, 7.0, [1.0, 2.0])
    finish(guessed, 1, 9.0, [1.5, 2.1])
    made = plan(tmp_path, design={"factors": FACTORS})
    assert [cell.cost.time_from for cell in made.cells] == ["runs", "runs", "estimate"]
    assert [cell.cost.seconds_per_trial for cell in made.cells[:2]] == [7.0, 9.0]
    assert 4 < (made.cells[2].cost.seconds_per_trial or 0) < 15, "scaled by what the others took"
    assert made.power.deviation == pytest.approx(0.4 / 2**0.5)
    assert made.power.detectable
    assert made.bytes_per_trial > 1000


def test_probes_are_kept_for_this_machine_and_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.yaml").write_text("")
    first = plan(tmp_path, design={"factors": {"window": [2, 1]}})
    finish(first, 0, 7.0, [1.0, 2.0])
    from ablate.study.plan import make_plan

    made = make_plan(tmp_path / "s.yaml", ["seeds=2"], probe=True)
    assert made.cells[1].cost.time_from == "probe"

    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("probed again")

    monkeypatch.setattr(times, "probe", fail)
    again = make_plan(tmp_path / "s.yaml", ["seeds=2"], probe=True)
    assert again.cells[1].cost == made.cells[1].cost
