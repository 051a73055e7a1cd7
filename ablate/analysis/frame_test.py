"""Results as they come back from a real ledger."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablate.analysis.comparisons import compare
from ablate.analysis.example_study import example_study
from ablate.analysis.frame import Curve, curves_of, load_results
from ablate.sweep.ledger import Ledger
from ablate.sweep.records import MetricRow

PLAN: dict[str, Any] = {
    "schema": 1,
    "study": "tiny",
    "file": "tiny.yaml",
    "question": "Does the window matter?",
    "baseline": "aa",
    "task": "language",
    "measure": {"primary": "val/loss", "goal": "min"},
    "seeds": [0, 1],
    "cells": [
        {
            "id": "aa",
            "label": "baseline",
            "axes": {"window": 4},
            "config": {"task": {"name": "language", "args": {"tokens": 100}}},
            "changed": {},
            "compared_with": None,
            "parameters": 10,
            "state_bytes": 20,
            "flops_per_token": 30.0,
        },
        {
            "id": "bb",
            "label": "window=1",
            "axes": {"window": 1},
            "changed": {"window": [4, 1]},
            "compared_with": "aa",
            "parameters": None,
            "state_bytes": None,
            "flops_per_token": None,
        },
    ],
    "warnings": [],
}


def spec(cell: str, seed: int) -> dict[str, Any]:
    return {"id": f"{cell}-s{seed}", "cell": cell, "seed": seed, "config": {"train": {"lr": 0.1}}}


def play(ledger: Ledger, trial: str, losses: list[float], state: str = "done") -> None:
    attempt = ledger.begin(trial)
    info = {"parameters": 99, "unigram_loss": 4.0}
    ledger.record(trial, attempt, {"kind": "start", "host": "h", "device": "cpu", "info": info})
    for step, loss in enumerate(losses):
        row = {"kind": "row", "step": step, "tokens": 50 * step, "seconds": 1.0}
        ledger.record(trial, attempt, {**row, "metrics": {"val/loss": loss}})
    summary = {"tokens_per_second": 50.0, "seconds": 2.0}
    ledger.record(trial, attempt, {"kind": "end", "state": state, "summary": summary})


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.sqlite") as opened:
        opened.save_plan(PLAN)
        opened.add_trials([spec("old", 0), *(spec(c, s) for c in ("aa", "bb") for s in (0, 1))])
        yield opened


def test_values_are_the_last_finite_rows_of_done_trials(ledger: Ledger) -> None:
    play(ledger, "aa-s0", [5.0, 3.0, 2.0])
    play(ledger, "aa-s1", [5.0, 2.2, math.nan])
    play(ledger, "bb-s0", [5.0, 2.5, 2.4])
    play(ledger, "bb-s1", [5.0, 4.0, math.inf], state="diverged")
    play(ledger, "old-s0", [1.0, 1.0])
    results = load_results(ledger)
    assert results.values == {"aa": {0: 2.0, 1: 2.2}, "bb": {0: 2.4}}
    assert results.counts() == {"done": 3, "diverged": 1}
    assert [trial.id for trial in results.outside_plan] == ["old-s0"]
    assert results.curves["bb-s1"]["val/loss"].tokens.tolist() == [0, 50, 100]
    assert results.curves["bb-s1"]["val/loss"].values[-1] == math.inf
    assert (results.study, results.task, results.task_args) == ("tiny", "language", {"tokens": 100})
    row = compare(results).rows[1]
    assert row.parameters == 99
    assert row.effect is not None
    assert row.effect.n == 1
    assert row.cell.changed == {"window": (4, 1)}


def test_planned_trials_that_were_never_added_are_missing(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.save_plan(PLAN)
        results = load_results(ledger)
    assert results.counts() == {"missing": 4}
    assert results.values == {"aa": {}, "bb": {}}


def test_a_new_attempt_replaces_the_old_one(ledger: Ledger) -> None:
    play(ledger, "aa-s0", [5.0, 9.0, 9.0], state="failed")
    play(ledger, "aa-s0", [5.0, 2.0])
    results = load_results(ledger)
    assert results.values["aa"] == {0: 2.0}
    assert results.by_cell["aa"][0].attempt == 2


def test_a_ledger_without_a_plan_is_refused(tmp_path: Path) -> None:
    with (
        Ledger.open(tmp_path / "ledger.sqlite") as ledger,
        pytest.raises(ValueError, match="holds no plan"),
    ):
        load_results(ledger)


def test_curves_are_sorted_by_tokens() -> None:
    rows = [MetricRow(2, 20, 1.0, "a", 1.0), MetricRow(1, 10, 1.0, "a", 2.0)]
    curve = curves_of(rows)["a"]
    assert curve.tokens.tolist() == [10, 20]
    assert curve.values.tolist() == [2.0, 1.0]


def test_a_measure_taken_once_borrows_the_curve_of_its_namesake() -> None:
    once, curve = (
        Curve(np.array([9.0]), np.array([1.0])),
        Curve(np.array([1.0, 9.0]), np.array([2.0, 1.0])),
    )
    results = dataclasses.replace(
        example_study(seeds=1),
        primary="final/loss",
        curves={"x": {"final/loss": once, "train/loss": curve, "train/other": curve}},
    )
    assert results.curve_metric == "train/loss"
    assert dataclasses.replace(results, primary="train/other").curve_metric == "train/other"


def test_a_metric_without_a_curve_comes_from_the_summary() -> None:
    results = example_study()
    cell = results.cells[0]
    trials = tuple(
        dataclasses.replace(trial, summary={"final/accuracy": [0.5, float("nan"), 0.7][trial.seed]})
        for trial in results.by_cell[cell.id]
    )
    results = dataclasses.replace(results, trials=trials)
    assert results.metric(cell.id, "final/accuracy") == {0: 0.5, 2: 0.7}
