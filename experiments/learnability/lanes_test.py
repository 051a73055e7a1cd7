from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ablate.experiments.learnability.lanes import MLPLanes
from ablate.experiments.learnability.learner import OnlineMLP, OptimizerName
from ablate.experiments.learnability.task import LearnabilityTask
from ablate.experiments.task import PackableTask, Row

WIDTHS = [6, 12, 9, 5]
OPTIMIZERS: tuple[OptimizerName, ...] = ("adam", "rmsprop", "sgd")
RATES = [1e-3, 3e-3, 1e-3, 1e-2]


def draws(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def pairs(steps: int, lanes: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = np.random.default_rng(9).standard_normal((steps, lanes, 11))
    return torch.from_numpy(drawn[..., :6]), torch.from_numpy(drawn[..., 6:])


def gap_of(optimizer: OptimizerName, rates: list[float], dtype: torch.dtype) -> tuple[float, float]:
    """Largest difference of losses and of final weights from learners that run alone."""
    x, o = (part.to(dtype) for part in pairs(300, len(rates)))
    generators = [draws(seed) for seed in range(len(rates))]
    lanes = MLPLanes(WIDTHS, optimizer=optimizer, rates=rates, draws=generators, dtype=dtype)
    losses = torch.stack([lanes.step(x[t], o[t]) for t in range(300)])
    gaps = []
    for lane, rate in enumerate(rates):
        alone = OnlineMLP(WIDTHS, optimizer=optimizer, lr=rate, draws=draws(lane), dtype=dtype)
        expected = torch.stack([alone.step(x[t, lane], o[t, lane]) for t in range(300)])
        assert expected[-1] != expected[0]
        loss = (losses[:, lane] - expected).abs().max() / expected.abs().max()
        ours = zip(lanes.weights, alone.weights, strict=True)
        gaps.append((loss.item(), max((a[lane] - b).abs().max().item() for a, b in ours)))
    return max(gap[0] for gap in gaps), max(gap[1] for gap in gaps)


@pytest.mark.parametrize("rates", [RATES, [1e-3] * 3])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_in_double_precision_lanes_equal_learners_alone(
    optimizer: OptimizerName, rates: list[float]
) -> None:
    loss, weight = gap_of(optimizer, rates, torch.float64)
    assert loss < 1e-10
    assert weight < 1e-10


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_in_single_precision_they_differ_by_rounding(optimizer: OptimizerName) -> None:
    loss, weight = gap_of(optimizer, RATES, torch.float32)
    assert loss < 1e-4
    assert weight < 1e-4


def test_dropping_lanes_leaves_the_others_as_they_were() -> None:
    x, o = pairs(40, 4)
    all_of, some = (
        MLPLanes(
            WIDTHS, optimizer="adam", rates=RATES, draws=list(map(draws, range(4))), dtype=x.dtype
        )
        for _ in range(2)
    )
    kept = torch.tensor([1, 3])
    for t in range(20):
        all_of.step(x[t], o[t])
        some.step(x[t], o[t])
    some.keep(kept)
    for t in range(20, 40):
        expected = all_of.step(x[t], o[t])[kept]
        ours = some.step(x[t, kept], o[t, kept])
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=0)


TINY: dict[str, Any] = {"dim": 8, "length": 200, "rank": 2, "window": 16}


def stream(seed: int) -> Callable[[str], np.random.Generator]:
    return lambda name: np.random.default_rng([seed, *name.encode()])


def run_lanes(tasks: list[LearnabilityTask], seeds: list[int]) -> list[list[Row]]:
    rows: list[list[Row]] = [[] for _ in tasks]

    def report(burst: Any) -> None:
        for lane, row in burst.items():
            rows[lane].append(row)

    tasks[0].run_lanes(tasks, [stream(seed) for seed in seeds], report)
    return rows


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_lane_reports_what_its_task_reports_alone(optimizer: OptimizerName) -> None:
    tasks = [
        LearnabilityTask(**TINY, optimizer=optimizer, target=target, lr=lr)
        for target, lr in (("mlp", 1e-3), ("low_rank", 3e-3), ("attention_input", None))
    ]
    assert isinstance(tasks[0], PackableTask)
    assert len({task.pack_key() for task in tasks}) == 1
    for seed, task, rows in zip((4, 4, 5), tasks, run_lanes(tasks, [4, 4, 5]), strict=True):
        alone: list[Row] = []
        task.run(stream(seed), alone.append)
        assert [(row.step, row.tokens) for row in rows] == [(row.step, row.tokens) for row in alone]
        for ours, theirs in zip(rows, alone, strict=True):
            assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-5)


def test_a_lane_that_diverges_ends_and_the_others_go_on_unchanged() -> None:
    good = LearnabilityTask(**TINY, optimizer="sgd", target="mlp", lr=0.01)
    bad = LearnabilityTask(**TINY, optimizer="sgd", target="attention_mlp", lr=1e4)
    rows = run_lanes([good, bad, good], [0, 1, 2])
    assert not math.isfinite(rows[1][-1].metrics["final/loss"])
    assert rows[1][-1].step < 200
    without = run_lanes([good, good], [0, 2])
    for lane, other in ((0, 0), (2, 1)):
        assert [row.metrics["train/loss"] for row in rows[lane]] == pytest.approx(
            [row.metrics["train/loss"] for row in without[other]], rel=1e-6
        )
        assert rows[lane][-1].step == 200


def test_other_shapes_do_not_share_a_program() -> None:
    base = LearnabilityTask(**TINY)
    for change in ({"length": 100}, {"expansion": 2}, {"hidden_layers": 3}, {"optimizer": "sgd"}):
        assert LearnabilityTask(**{**TINY, **change}).pack_key() != base.pack_key()
    assert base.lane_bytes() == 4 * 4 * 3 * 64
