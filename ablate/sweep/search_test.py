"""Searches over fake trials: what is chosen, told, kept and taken up again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ablate.sweep.driver import run_plan
from ablate.sweep.execution import Message, Spec
from ablate.sweep.fake_study import end_message, start_message
from ablate.sweep.inline import InlineExecutor
from ablate.sweep.ledger import Ledger
from ablate.sweep.search import Asked, Optimiser, Search

SEEDS = (0, 1)


def suggest(trial: Any) -> dict[str, Any]:
    point = {"kind": trial.suggest_categorical("kind", ["a", "b", None])}
    point["rate"] = trial.suggest_float("rate", 1e-4, 1.0, log=True)
    if point["kind"] == "a":
        point["steps"] = trial.suggest_int("steps", 1, 8)
    return point


def loss_of(point: dict[str, Any]) -> float:
    return abs(math.log10(point["rate"]) + 2) + (point["kind"] != "a")


class Plan:
    """A plan of a baseline that grows."""

    def __init__(self) -> None:
        self.cells: dict[str, dict[str, Any]] = {"c0": {"kind": "b", "rate": 1.0}}

    def specs(self, cell: str) -> list[Spec]:
        config = {"point": self.cells[cell]}
        return [
            {"id": f"{cell}-s{seed}", "cell": cell, "seed": seed, "config": config}
            for seed in SEEDS
        ]

    def trials(self) -> list[Spec]:
        return [spec for cell in self.cells for spec in self.specs(cell)]

    def to_json(self) -> dict[str, Any]:
        return {"cells": [{"id": cell} for cell in self.cells], "seeds": list(SEEDS)}


def begin(
    ledger: Ledger, plan: Plan, *, trials: int = 6, space: Callable[[Any], Any] = suggest
) -> Search:
    """What `ablate run` does with a study's search."""

    def make(number: int, point: dict[str, Any], params: dict[str, Any]) -> Asked | None:
        if point in plan.cells.values():
            return None
        cell = f"c{number}"
        plan.cells[cell] = point
        ledger.save_plan(plan.to_json())
        ledger.add_trials(plan.specs(cell))
        return Asked(number, params, cell, plan.specs(cell))

    optimiser = Optimiser(seed="study", goal="min", trials=trials, suggest=space)
    search = Search(optimiser, ledger, trials=trials, primary="val/loss", identity="i", make=make)
    asked = []
    for kept in search.kept(ledger, "i"):
        from optuna.trial import FixedTrial

        found = make(kept["number"], space(FixedTrial(kept["params"])), kept["params"])
        assert found is not None
        asked.append(found)
    search.resume(asked)
    return search


def trial(spec: Spec, report: Callable[[Message], None]) -> None:
    report(start_message())
    loss = loss_of(spec["config"]["point"]) + 0.1 * spec["seed"]
    report(end_message("done", {"val/loss": loss}))


def run(
    ledger: Ledger, plan: Plan, search: Search, one: Any = trial, most: int | None = None
) -> list[str]:
    """Run what is missing; the trials that ran."""
    ran: list[str] = []

    def counted(spec: Spec, report: Callable[[Message], None]) -> None:
        ran.append(spec["id"])
        one(spec, report)

    executor = InlineExecutor(counted)
    run_plan(plan, ledger, executor=executor, on_event=search.event, max_trials=most,
             then=search.jobs())  # fmt: skip
    return ran


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.sqlite") as opened:
        yield opened


def test_a_search_runs_the_baseline_and_as_many_configurations_as_planned(ledger: Ledger) -> None:
    plan = Plan()
    ran = run(ledger, plan, begin(ledger, plan))
    assert ran == [f"c{n}-s{seed}" for n in range(7) for seed in SEEDS]
    assert ledger.counts()["done"] == 14
    assert len({tuple(sorted(map(str, point.items()))) for point in plan.cells.values()}) == 7


def test_a_stopped_search_goes_on_as_one_that_was_never_stopped(
    ledger: Ledger, tmp_path: Path
) -> None:
    whole = Plan()
    run(ledger, whole, begin(ledger, whole, trials=12))
    with Ledger.open(tmp_path / "other.sqlite") as other:
        parts: list[str] = []
        for most in (5, 1, 7, None):
            plan = Plan()
            parts += run(other, plan, begin(other, plan, trials=12), most=most)
        assert plan.cells == whole.cells
        assert len(parts) == len(set(parts)) == 26
        assert other.counts() == ledger.counts()
        done = Plan()
        assert run(other, done, begin(other, done, trials=12)) == []


def test_a_killed_configuration_is_finished_before_new_ones_are_asked_for(ledger: Ledger) -> None:
    def killed(spec: Spec, report: Callable[[Message], None]) -> None:
        if spec["id"] == "c2-s1":
            raise KeyboardInterrupt
        trial(spec, report)

    plan = Plan()
    with pytest.raises(KeyboardInterrupt):
        run(ledger, plan, begin(ledger, plan), killed)
    assert ledger.trial("c2-s1").state == "lost"
    again = Plan()
    ran = run(ledger, again, begin(ledger, again))
    assert ran[0] == "c2-s1"
    assert len(ran) == 1 + 4 * 2
    assert again.cells["c2"] == plan.cells["c2"]


def test_what_fails_is_told_as_failed_and_never_as_a_number(ledger: Ledger) -> None:
    def fails(spec: Spec, report: Callable[[Message], None]) -> None:
        if spec["id"] == "c1-s1":
            raise RuntimeError("bad luck")
        if spec["id"] == "c2-s0":
            report(start_message())
            report(end_message("diverged", {"val/loss": math.inf}, "loss is inf"))
            return
        if spec["cell"] == "c3":
            report(start_message())
            report(end_message("pruned", {"val/loss": 9.0}))
            return
        trial(spec, report)

    plan = Plan()
    search = begin(ledger, plan)
    run(ledger, plan, search, fails)
    told = [(one.state.name, one.value) for one in search._optimiser._study.trials if one.params]
    assert [state for state, _ in told] == ["FAIL", "FAIL", "PRUNED", *["COMPLETE"] * 3]
    assert [value for _, value in told[:3]] == [None] * 3
    assert told[3][1] == pytest.approx(loss_of(plan.cells["c4"]) + 0.05)
    counts = ledger.counts()
    assert (counts["failed"], counts["diverged"], counts["pruned"]) == (1, 1, 2)


def test_a_small_space_ends_when_nothing_is_left_in_it(ledger: Ledger) -> None:
    def small(trial: Any) -> dict[str, Any]:
        return {"rate": trial.suggest_categorical("rate", [0.1, 0.01, 1.0]), "kind": "b"}

    plan = Plan()
    ran = run(ledger, plan, begin(ledger, plan, trials=10, space=small))
    assert len(ran) == 3 * 2  # one of the three is the baseline
    assert {point["rate"] for point in plan.cells.values()} == {0.1, 0.01, 1.0}


def test_it_finds_what_is_good() -> None:
    optimiser = Optimiser(seed="s", goal="max", trials=40, suggest=suggest)
    best = []
    for number in range(1, 41):
        one = optimiser.ask(number, lambda point, params: Asked(1, point, "c", []))
        assert one is not None
        best.append(-loss_of(one.params))
        optimiser.tell(number, best[-1])
    # Of 30 random draws two would be as near to the optimum.
    assert sum(value > -0.4 for value in best[10:]) >= 8
