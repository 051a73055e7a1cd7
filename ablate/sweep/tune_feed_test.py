"""Jobs that are asked for while others run, and trials that Ray Tune's schedulers stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ablate.sweep.driver import run_plan
from ablate.sweep.execution import Job, Message, Spec
from ablate.sweep.fake_study import FakePlan, end_message, row_message, start_message
from ablate.sweep.ledger import Ledger
from ablate.sweep.ray_tune import RayTuneExecutor
from ablate.sweep.tune_feed import Pruning, pruned_message

ASHA = Pruning("asha", "val/loss", "min", grace=80, tokens=800, reduction=2.0)


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    import ray

    ray.init(address="local", include_dashboard=False, num_cpus=2, object_store_memory=200_000_000)
    yield
    ray.shutdown()


def long_trial(spec: Spec, report: Callable[[Message], None]) -> None:
    """Ten rows of 80 tokens each; a later cell's loss is larger."""
    report(start_message())
    loss = 2.0 + int(spec["cell"][1:])
    for step in range(10, 101, 10):
        report(row_message(step, loss))
    report(end_message("done", {"val/loss": loss}))


def test_asha_stops_trials_which_end_as_pruned_with_what_they_had(tmp_path: Path) -> None:
    plan = FakePlan(cells=6, seeds=1)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        executor = RayTuneExecutor(num_cpus=2, run=long_trial, pruning=ASHA)
        counts = run_plan(plan, ledger, executor=executor)
        assert counts["done"] + counts["pruned"] == 6
        assert counts["pruned"] >= 2
        assert ledger.trial("c0-s0").state == "done", "the best is never stopped"
        pruned = [one for one in ledger.trials() if one.state == "pruned"]
        for one in pruned:
            rows = ledger.rows(one.trial_id)
            assert 80 <= rows[-1].tokens < 800
            assert one.summary["tokens"] == rows[-1].tokens
            assert one.summary["val/loss"] == 2.0 + int(one.cell_id[1:])
            assert one.error == f"stopped early after {rows[-1].tokens} tokens"
        again = run_plan(plan, ledger, executor=executor)
        assert again == counts, "what was stopped is not run again"


def test_a_job_of_a_feed_may_depend_on_how_those_before_it_ended(tmp_path: Path) -> None:
    whole = FakePlan(cells=5, seeds=1)
    ended: list[str] = []
    known: list[int] = []

    def feed() -> Iterator[Job]:
        for spec in whole.trials()[1:]:
            known.append(len(ended))
            yield [spec]

    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.add_trials(whole.trials())
        counts = run_plan(
            FakePlan(cells=1, seeds=1),
            ledger,
            executor=RayTuneExecutor(num_cpus=2, run=long_trial),
            on_event=lambda event: ended.append(event.trial_id) if event.kind == "end" else None,
            then=feed(),
        )
        assert sorted(ended) == [f"c{n}-s0" for n in range(5)]
        assert {one.state for one in ledger.trials()} == {"done"}
    assert counts["done"] == 1, "the others are outside this plan"
    # Two run at once, c0 and c1 first; each of the others is asked for when one has ended.
    assert known[0] == 0
    assert all(before >= place for place, before in enumerate(known))


def test_the_number_of_trials_of_a_feed_can_be_limited(tmp_path: Path) -> None:
    whole = FakePlan(cells=5, seeds=1)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.add_trials(whole.trials())
        executor = RayTuneExecutor(num_cpus=2, run=long_trial)
        jobs = ([spec] for spec in whole.trials()[1:])
        run_plan(FakePlan(cells=1, seeds=1), ledger, executor=executor, then=jobs, max_trials=3)
        states = [one.state for one in ledger.trials()]
    assert sorted(states) == ["done"] * 3 + ["missing"] * 2


def test_only_rows_of_lone_trials_are_compared() -> None:
    row = row_message(10, 2.5)
    assert ASHA.result({"a": row}) == {"tokens": 80, "objective": 2.5}
    assert ASHA.result({"a": row, "b": row}) == {}
    assert ASHA.result({"a": start_message()}) == {}
    assert ASHA.result({"a": row_message(10, 2.5, "train/loss")}) == {}


def test_schedulers_neither_pause_trials_nor_stop_the_last_ones() -> None:
    assert ASHA.scheduler()._stop_last_trials is False
    median = Pruning("median", "val/loss", "max", grace=80, tokens=800).scheduler()
    assert median._min_time_slice > 1e18
    assert pruned_message(None)["summary"] == {}
