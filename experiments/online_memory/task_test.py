from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

from ablate.components.retention import NoRetention
from ablate.errors import UserError
from ablate.experiments.catalogue import make_task
from ablate.experiments.learnability.task import LearnabilityTask
from ablate.experiments.online_memory.rows_test import MatrixMemory, layer_of
from ablate.experiments.online_memory.task import FLOOR, OnlineMemoryTask
from ablate.experiments.task import Draw, Draws, MemoryTask, Row

TINY: dict[str, Any] = {"length": 160, "rank": 1, "window": 8}


def draws(seed: int, **options: Any) -> Draws:
    @cache
    def draw(number: int) -> Draw:
        chosen = 1000 + number if number else seed
        layer = layer_of(MatrixMemory, seed=chosen, **options).float()
        return Draw(layer, lambda name: np.random.default_rng([chosen, *name.encode()]))

    return draw


def learn(tasks: list[OnlineMemoryTask], seeds: list[int], **options: Any) -> list[list[Row]]:
    found: list[list[Row]] = [[] for _ in tasks]

    def report(rows: Mapping[int, Row]) -> None:
        for lane, row in rows.items():
            found[lane].append(row)

    tasks[0].learn(tasks, [draws(seed, **options) for seed in seeds], report)
    return found


def finals(rows: list[Row]) -> dict[str, float]:
    return rows[-1].metrics


def test_the_pairs_are_learnabilitys_at_the_scale_of_the_models() -> None:
    args: dict[str, Any] = {"target": "window_mlp", **TINY}
    stream = draws(3)(0).stream
    ours = OnlineMemoryTask(**args).pairs(stream, 8)
    theirs = LearnabilityTask(**args, dim=8).pairs(stream)
    for part, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(part * math.sqrt(8), other, rtol=1e-6)


def test_the_loss_is_noted_before_each_write_and_averaged() -> None:
    task = OnlineMemoryTask(**TINY, rates=(0.5,))
    (rows,) = learn([task], [0])
    assert [row.step for row in rows] == list(range(10, 161, 10))
    keys, values = (part.numpy().astype(float) for part in task.pairs(draws(0)(0).stream, 4))
    weights = draws(0)(0).layer.memory.w[0].detach().double().numpy()
    kept, losses = 1 / (1 + math.exp(-4)), []
    for key, value in zip(keys, values, strict=True):
        error = weights @ key - value
        losses.append(error @ error / (value @ value))
        weights = kept * weights - 0.5 * np.outer(error, key)
    for row in rows:
        expected = np.mean(losses[max(0, row.step - 128) : row.step])
        assert row.metrics["train/loss"] == pytest.approx(expected, rel=1e-4)
    assert finals(rows)["final/loss"] == finals(rows)["train/loss"]
    assert finals(rows)["final/log10_loss"] == pytest.approx(
        math.log10(np.mean(losses[-128:])), abs=1e-4
    )
    assert finals(rows)["final/rate"] == 0.5
    assert all(set(row.metrics) == {"train/loss", "train/log10_loss"} for row in rows[:-1])


def test_lanes_of_all_targets_report_what_each_reports_alone() -> None:
    targets = ("low_rank", "mlp", "attention_mlp", "attention_input", "window_mlp")
    tasks = [OnlineMemoryTask(**TINY, target=one, rates=(0.1, 0.7)) for one in targets]  # type: ignore[arg-type]
    assert isinstance(tasks[0], MemoryTask)
    assert len({task.pack_key() for task in tasks}) == 1
    seeds = [0, 0, 1, 2, 2]
    for task, seed, rows in zip(tasks, seeds, learn(tasks, seeds), strict=True):
        (alone,) = learn([task], [seed])
        for ours, theirs in zip(rows, alone, strict=True):
            assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-5)


def test_the_step_is_the_best_on_draws_of_its_own_for_all_seeds_alike() -> None:
    rates = (1e-3, 0.1, 0.5, 50.0)
    chosen = {
        finals(rows)["final/rate"]
        for rows in learn([OnlineMemoryTask(**TINY, rates=rates)] * 4, [0, 1, 2, 3])
    }
    held_out = {rate: 0.0 for rate in rates}
    for rate in rates:
        task = OnlineMemoryTask(**TINY, rates=(rate,))
        for number in (1, 2):
            found: list[Row] = []
            task.learn(
                [task],
                [lambda _, number=number: draws(0)(number)],  # type: ignore[misc]
                lambda rows, found=found: found.append(rows[0]),  # type: ignore[misc]
            )
            held_out[rate] += finals(found)["final/loss"]
    assert chosen == {min(rates, key=lambda rate: np.nan_to_num(held_out[rate], nan=math.inf))}
    assert finals(learn([OnlineMemoryTask(**TINY)], [0])[0])["final/rate"] == pytest.approx(0.1)


def test_a_memory_that_diverges_is_reported_once_and_left_out() -> None:
    tame, wild = (OnlineMemoryTask(**TINY, rates=(rate,)) for rate in (0.5, 1e4))
    calm, broken, other = learn([tame, wild, tame], [0, 0, 1])
    assert broken[-1].step < 160
    assert not math.isfinite(finals(broken)["final/loss"])
    assert not math.isfinite(finals(broken)["final/log10_loss"])
    assert all(math.isfinite(row.metrics["train/loss"]) for row in broken[:-1])
    for rows, seed in ((calm, 0), (other, 1)):
        assert len(rows) == 16
        expected = finals(learn([tame], [seed])[0])
        assert finals(rows) == pytest.approx(expected, rel=1e-5)


def test_what_is_learned_down_to_rounding_counts_as_learned() -> None:
    (rows,) = learn(
        [OnlineMemoryTask(length=600, rank=1, rates=(1.0,))], [0], retention=NoRetention
    )
    assert finals(rows)["final/loss"] < 1e-8
    assert finals(rows)["final/log10_loss"] == math.log10(FLOOR)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"length": 0}, r"task_args\.length=0"),
        ({"rates": [0.1, -0.1]}, r"task_args\.rates=\[0\.1, -0\.1\]"),
        ({"target": "low"}, r"task_args\.target is 'low'.*'low_rank'"),
        ({"rate": [0.1]}, "Did you mean 'rates'"),
    ],
)
def test_impossible_arguments_are_refused(args: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        make_task("online_memory", args)
