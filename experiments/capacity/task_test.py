from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ablate.errors import UserError
from ablate.experiments.capacity.memory import lift, read, write
from ablate.experiments.capacity.task import CapacityTask, report_steps
from ablate.experiments.catalogue import make_task
from ablate.experiments.task import LearnerTask, Row


def streams(seed: int) -> Callable[[str], np.random.Generator]:
    return lambda name: np.random.default_rng([seed, *name.encode()])


def run(seed: int = 0, **args: Any) -> list[Row]:
    rows: list[Row] = []
    CapacityTask(**args).run(streams(seed), rows.append)
    return rows


def error(seed: int = 0, **args: Any) -> float:
    return run(seed, **args)[-1].metrics["final/error"]


KNEES = [
    ({}, 8),
    ({"key": 5, "value": 3}, 5),
    ({"feature_map": "monomial"}, math.comb(10, 2)),
    ({"feature_map": "monomial", "key": 4, "degree": 3}, math.comb(7, 3)),
    ({"feature_map": "kronecker"}, math.comb(10, 2)),
    ({"feature_map": "elementwise"}, 1 + 2 * 8),
    ({"unit_keys": True}, 8),
    ({"feature_map": "monomial", "unit_keys": True}, math.comb(10, 2) - 1),
    ({"feature_map": "monomial", "key": 4, "degree": 3, "unit_keys": True}, 35 - 5),
    ({"feature_map": "kronecker", "key": 4, "degree": 3, "unit_keys": True}, 35 - 5),
    ({"feature_map": "elementwise", "unit_keys": True}, 2 * 8),
]


@pytest.mark.parametrize(("args", "knee"), KNEES)
def test_a_matrix_holds_as_many_pairs_as_there_are_independent_features(
    args: dict[str, Any], knee: int
) -> None:
    assert CapacityTask(**args).info()["capacity"] == knee
    full = run(**args, pairs=knee)[-1].metrics
    assert full["final/error"] < 1e-18
    assert full["final/recalled"] == 1
    assert error(**args, pairs=knee + 1) > 1e-3


def test_beyond_the_knee_the_error_is_one_minus_the_share_that_fits() -> None:
    for args in ({"pairs": 24}, {"pairs": 90, "feature_map": "monomial"}):
        found = np.mean([error(seed, **args) for seed in range(20)])
        assert found == pytest.approx(CapacityTask(**args).info()["expected_error"], abs=0.03)


@pytest.mark.parametrize("writer", ["gd", "momentum", "muon", "adam"])
def test_every_writer_meets_the_same_ceiling(writer: str) -> None:
    few = [row.metrics["train/error"] for row in run(pairs=4, writer=writer, passes=400)]
    assert few[-1] < 1e-4 < few[0]
    best = error(pairs=16)
    assert error(pairs=16, writer=writer, passes=400) == pytest.approx(best, rel=1e-3)
    assert best > 0.4


def test_gradient_descent_takes_the_step_of_the_equations() -> None:
    keys, values = CapacityTask(pairs=5).draw(streams(3))
    weights = [torch.zeros(8, 8, dtype=torch.float64)]
    before, after = write(weights, keys, values, writer="gd", lr=1.0, passes=1)
    largest = torch.linalg.eigvalsh(keys @ keys.T)[-1]
    torch.testing.assert_close(weights[0], values.T @ keys / largest)
    torch.testing.assert_close(before, torch.ones_like(before))
    torch.testing.assert_close(after, (read(weights, keys) - values).square().sum(-1))


def test_adam_takes_pytorchs_steps_at_a_falling_rate() -> None:
    task = CapacityTask(pairs=12, layers=2, writer="adam", passes=20)
    keys, values = task.draw(streams(1))
    start = [torch.from_numpy(weight) for weight in task.first_weights(streams(1)("memory"))]
    theirs = [weight.clone().requires_grad_() for weight in start]
    *_, last = write(start, keys, values, writer="adam", lr=0.01, passes=20)
    optimizer = torch.optim.Adam(theirs, lr=0.01, betas=(0.9, 0.99), eps=1e-12)
    for done in range(20):
        optimizer.param_groups[0]["lr"] = 0.01 * (1 - done / 20)
        optimizer.zero_grad()
        (0.5 * (read(theirs, keys) - values).square().sum()).backward()
        optimizer.step()
    for ours, other in zip(start, theirs, strict=True):
        torch.testing.assert_close(ours.detach(), other.detach())
    assert last.shape == (12,)


def test_a_deep_memory_holds_more_pairs_than_its_keys_are_wide() -> None:
    deep = {"pairs": 24, "writer": "adam", "passes": 400}
    assert run(**deep, layers=2)[-1].metrics["final/recalled"] == 1
    assert run(**deep, layers=1)[-1].metrics["final/recalled"] == 0
    assert "capacity" not in CapacityTask(**deep, layers=2).info()


def test_features_are_the_components_own_and_carry_their_kernel() -> None:
    keys, _ = CapacityTask(pairs=6).draw(streams(0))
    inner = keys @ keys.T
    lifted = lift(keys, "monomial", 2)
    assert lifted.shape == (6, CapacityTask(feature_map="monomial").features)
    torch.testing.assert_close(
        lifted @ lifted.T, 1 + inner + inner.square() / 2, rtol=1e-5, atol=1e-5
    )


def test_pairs_follow_from_the_seed_and_more_of_them_begin_alike() -> None:
    keys, values = CapacityTask(pairs=20).draw(streams(0))
    few, _ = CapacityTask(pairs=7).draw(streams(0))
    assert torch.equal(keys[:7], few)
    assert not torch.equal(CapacityTask(pairs=20).draw(streams(1))[0], keys)
    torch.testing.assert_close(values.norm(dim=1), torch.ones(20, dtype=torch.float64))
    unit, _ = CapacityTask(pairs=7, unit_keys=True).draw(streams(0))
    torch.testing.assert_close(unit, few / few.norm(dim=1, keepdim=True))


def test_rows_are_evenly_spaced_and_a_memory_that_diverges_stops() -> None:
    rows = run(writer="gd", passes=100)
    assert [row.step for row in rows] == report_steps(100)
    assert rows[-1].tokens == 100 * 8
    assert all(set(row.metrics) == {"train/error"} for row in rows[:-1])
    lost = run(writer="gd", lr=100.0, passes=400)
    assert not math.isfinite(lost[-1].metrics["final/error"])
    assert lost[-1].step < 400


def test_its_facts_say_size_and_rate() -> None:
    task = make_task("capacity", {"layers": 2, "writer": "gd", "hidden": 10})
    assert isinstance(task, LearnerTask)
    assert task.info()["memory_weights"] == 8 * 10 + 10 * 8
    assert task.info()["lr"] == 0.25
    assert len(task.data_identity()) == 12


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"pairs": 0}, r"task_args\.pairs=0"),
        ({"layers": 2}, r"task_args\.writer=exact with task_args\.layers=2"),
        ({"writer": "gd", "lr": 0.0}, r"task_args\.lr=0\.0"),
        ({"writer": "sgd"}, r"task_args\.writer is 'sgd'.*'gd'"),
    ],
)
def test_impossible_arguments_are_refused(args: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        make_task("capacity", args)
