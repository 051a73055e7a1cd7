from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ablate.errors import UserError
from ablate.sweep.driver import run_plan
from ablate.sweep.fake_study import FakePlan
from ablate.sweep.inline import InlineExecutor
from ablate.sweep.ledger import Ledger
from ablate.sweep.packs import Packer, packing_of
from ablate.trial import lanes
from ablate.trial.build_test import tiny
from ablate.trial.lanes import cache_share, most_lanes, shape_of, why_alone
from ablate.trial.space import resolve


def learner(cell: str, seed: int, **args: Any) -> dict[str, Any]:
    task = {"name": "learnability", "args": {"dim": 8, "length": 64, "rank": 2, **args}}
    config = {"model": None, "task": task, "train": None}
    return {"id": f"{cell}-s{seed}", "cell": cell, "seed": seed, "config": config}


def model(seed: int, *, batch: int = 2, **train: Any) -> dict[str, Any]:
    args = {"length": 16, "pairs": 2, "vocab": 32, "batch": batch, "tokens": 320}
    config = {
        "model": resolve(tiny("titans_lmm")),
        "task": {"name": "mqar", "args": args},
        "train": train,
    }
    return {"id": f"m-{train}-s{seed}", "cell": "m", "seed": seed, "config": config}


SIXTEEN = [learner("a", seed) for seed in range(10)] + [
    learner("b", seed, target="mlp", lr=0.01) for seed in range(6)
]
OTHER = [learner("c", seed, optimizer="sgd") for seed in range(2)]


def sizes(packer: Packer, specs: list[dict[str, Any]]) -> list[int]:
    jobs = packer.jobs_of(specs)
    ids = sorted(spec["id"] for job in jobs for spec in job)
    assert ids == sorted(spec["id"] for spec in specs)
    for job in jobs:
        assert len({shape_of(spec) for spec in job}) == 1
    return [len(job) for job in jobs]


def test_trials_of_one_shape_share_a_worker_and_no_worker_stays_idle() -> None:
    assert sizes(Packer(workers=1), SIXTEEN + OTHER) == [16, 2]
    assert sizes(Packer(workers=2), SIXTEEN + OTHER) == [8, 8, 1, 1]
    assert sizes(Packer(packing=5), SIXTEEN) == [4, 4, 4, 4]
    assert sizes(Packer(packing="off"), SIXTEEN) == [1] * 16


def test_the_notes_say_what_was_packed() -> None:
    told: list[str] = []
    Packer(workers=1, tell=told.append).jobs_of(SIXTEEN + OTHER)
    assert told[0].startswith("packing: 18 of 18 trials run in 2 packs of 2 to 16;")


def test_lanes_of_learners_follow_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2**18 <= cache_share() < 2**30
    monkeypatch.setattr(lanes, "cache_share", lambda: 8 * 2**20)
    found = {dim: most_lanes(learner("a", 0, dim=dim)) for dim in (8, 32, 64, 256, 1024)}
    assert found == {8: 64, 32: 64, 64: 42, 256: 2, 1024: 1}


def test_lanes_of_models_follow_from_the_work_of_a_step() -> None:
    width = tiny("titans_lmm")["backbone"]["dim"] * 16
    assert most_lanes(model(0, batch=2)) == min(64, 2**17 // (2 * width))
    assert most_lanes(model(0, batch=2**14 // width)) == 1


def test_rates_and_seeds_share_a_program_and_all_else_does_not() -> None:
    one = model(0)
    assert shape_of(model(1, lr=0.1, weight_decay=0.5, clip=2.0)) == shape_of(one)
    assert shape_of(model(0, evaluations=3)) != shape_of(one)
    assert shape_of(model(0, batch=4)) != shape_of(one)
    for reason in ({"alone": True}, {"micro_batches": 2}):
        assert shape_of({**one, **reason}) is None


def test_what_only_sets_initial_values_shares_a_program() -> None:
    one, other, third = model(0), model(1), model(1)
    one["config"]["model"]["retention"] = {**other["config"]["model"]["retention"], "init": 1.0}
    assert shape_of(one) == shape_of(other)
    assert why_alone([one, other]) is None
    third["config"]["model"]["inner_optimizer"]["lr_max"] = 0.01
    assert shape_of(third) != shape_of(other)
    assert "gradient" in (why_alone([other, third]) or "")


def test_a_trial_with_a_checkpoint_goes_on_alone(tmp_path: Any) -> None:
    spec = {**model(0), "files": {"study": str(tmp_path), "attempt": 2, "checkpoint": {}}}
    assert shape_of(spec) == shape_of(model(0))
    (tmp_path / "checkpoints" / spec["id"]).mkdir(parents=True)
    assert shape_of(spec) is None


def test_models_that_vmap_cannot_map_run_alone_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ablate.components.neural_memory import NeuralMemory

    assert why_alone([model(0), model(1)]) is None
    forward = NeuralMemory.forward

    def looks(self: Any, q: Any, *rest: Any, **more: Any) -> Any:
        assert float(q.sum()) == float(q.sum())  # a number, which lanes do not have
        return forward(self, q, *rest, **more)

    monkeypatch.setattr(NeuralMemory, "forward", looks)
    packer = Packer(packing=2)
    assert sizes(packer, [model(0), model(1)]) == [1, 1]
    assert packer.notes[0].startswith("packing: 2 trials of m run alone: vmap fails on it")


class TwoCells(FakePlan):
    """Learners in place of the fake trials; one of them diverges."""

    def trials(self) -> list[dict[str, Any]]:
        """Return three learners of one shape and one of another."""
        bad = learner("c1", 1, optimizer="sgd", target="attention_mlp", lr=1e4)
        sgd = {"optimizer": "sgd", "lr": 0.01}
        return [learner("c0", 0, **sgd), learner("c0", 1, **sgd), bad, learner("c1", 0)]


def test_a_packed_run_leaves_a_ledger_like_any_other(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        packer = Packer()
        run_plan(
            TwoCells(cells=2, seeds=2), ledger, executor=InlineExecutor(), jobs_of=packer.jobs_of
        )
        records = {record.trial_id: record for record in ledger.trials()}
        states = {trial_id: record.state for trial_id, record in records.items()}
        assert states == {"c0-s0": "done", "c0-s1": "done", "c1-s1": "diverged", "c1-s0": "done"}
        lanes = {trial_id: record.info.get("lanes") for trial_id, record in records.items()}
        assert lanes == {"c0-s0": 3, "c0-s1": 3, "c1-s1": 3, "c1-s0": None}
        assert [row.step for row in ledger.rows("c0-s1")][-1] == 64
        assert "peak_memory_bytes" in records["c1-s0"].summary


def test_packing_is_read_or_refused() -> None:
    assert [packing_of(text) for text in ("auto", "off", "12")] == ["auto", "off", 12]
    for text in ("on", "0", "-3", "2.5"):
        with pytest.raises(UserError, match="it must be auto, off, or a number of lanes"):
            packing_of(text)
