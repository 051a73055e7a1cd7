from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from ablate.errors import UserError
from ablate.experiments.catalogue import make_task
from ablate.experiments.learnability.task import LearnabilityTask, report_steps
from ablate.experiments.task import LearnerTask, Row


def streams(seed: int) -> Callable[[str], np.random.Generator]:
    return lambda name: np.random.default_rng([seed, *name.encode()])


def run(seed: int = 0, **args: Any) -> list[Row]:
    rows: list[Row] = []
    LearnabilityTask(**args).run(streams(seed), rows.append)
    return rows


TINY: dict[str, Any] = {"dim": 8, "length": 200, "rank": 2, "window": 16}


def test_rows_are_evenly_spaced_and_the_last_says_the_final_loss() -> None:
    rows = run(**TINY)
    assert [row.step for row in rows] == report_steps(200)
    assert len(rows) == 32
    assert rows[-1].step == rows[-1].tokens == 200
    assert rows[-1].metrics["final/loss"] == rows[-1].metrics["train/loss"]
    assert all(set(row.metrics) == {"train/loss"} for row in rows[:-1])
    assert [row.seconds for row in rows] == sorted(row.seconds for row in rows)


def test_at_the_default_length_every_loss_is_in_exactly_one_row() -> None:
    assert report_steps(4096) == list(range(128, 4097, 128))
    assert report_steps(3) == [1, 2, 3]


def test_the_loss_is_noted_before_the_step() -> None:
    args = {**TINY, "length": 1, "optimizer": "sgd"}
    assert run(**args, lr=1e-9)[0].metrics == run(**args, lr=1.0)[0].metrics


def test_a_run_follows_from_its_streams() -> None:
    def losses(seed: int) -> list[float]:
        return [row.metrics["train/loss"] for row in run(seed, **TINY)]

    assert losses(0) == losses(0)
    assert losses(0) != losses(1)


def test_a_diverged_learner_reports_what_it_got_and_stops() -> None:
    rows = run(**TINY, target="attention_mlp", optimizer="sgd", lr=1e4)
    assert not math.isfinite(rows[-1].metrics["train/loss"])
    assert not math.isfinite(rows[-1].metrics["final/loss"])
    assert rows[-1].step < 200


def test_facts_say_the_rate_and_the_size_that_were_used() -> None:
    task = make_task("learnability", {"optimizer": "sgd", "expansion": 4, "hidden_layers": 3})
    assert isinstance(task, LearnerTask)
    assert task.info()["lr"] == 0.1
    assert task.info()["learner_parameters"] == 256 * 1024 * 2 + 1024 * 1024 * 2
    assert len(task.data_identity()) == 12


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"length": 0}, r"task_args\.length=0"),
        ({"lr": -0.1}, r"task_args\.lr=-0\.1"),
        ({"target": "low"}, r"task_args\.target is 'low'.*'low_rank'"),
        ({"targets": "mlp"}, "Did you mean 'target'"),
    ],
)
def test_impossible_arguments_are_refused(args: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        make_task("learnability", args)


@lru_cache
def curve(target: str) -> dict[int, float]:
    """Loss by step: Adam, one hidden layer, as long as the window needs, mean of two draws."""
    args = {"target": target, "hidden_layers": 1, "lr": 1e-3, "length": 2048}
    runs = [run(seed, **args) for seed in (0, 1)]
    return {
        rows[0].step: sum(row.metrics["train/loss"] for row in rows) / len(rows)
        for rows in zip(*runs, strict=True)
    }


TARGETS = ("low_rank", "mlp", "attention_mlp", "attention_input", "window_mlp")


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_every_target_is_learned_better_than_by_answering_zero(target: str) -> None:
    assert curve(target)[2048] < 0.9


@pytest.mark.slow
def test_low_rank_is_far_easier_than_an_mlp() -> None:
    assert curve("low_rank")[2048] < 0.5 * curve("mlp")[2048]


@pytest.mark.slow
def test_the_mlp_of_correlated_inputs_is_learned_faster_than_of_gaussian_ones() -> None:
    fast, slow = curve("attention_input"), curve("mlp")
    assert all(fast[step] < 0.75 * slow[step] for step in (128, 512, 1024, 2048))


@pytest.mark.slow
@pytest.mark.parametrize("worse", ["attention_mlp", "window_mlp"])
def test_targets_that_need_attention_are_the_hardest(worse: str) -> None:
    others = [curve(target) for target in ("low_rank", "mlp", "attention_input")]
    for step in (128, 512, 1024, 2048):
        assert curve(worse)[step] > 1.2 * max(other[step] for other in others)


@pytest.mark.slow
def test_forgetting_what_left_the_window_is_harder_than_keeping_all() -> None:
    assert curve("window_mlp")[2048] > 1.05 * curve("attention_mlp")[2048]
