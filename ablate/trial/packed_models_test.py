from __future__ import annotations

from typing import Any

import pytest
import torch

from ablate.trial.build import build_model
from ablate.trial.build_test import tiny
from ablate.trial.packed_models import ModelLanes
from ablate.trial.train import Loop, TrainConfig
from ablate.trial.train_test import Counting

CONFIGS = [
    TrainConfig(),
    TrainConfig(lr=1e-2, weight_decay=0.3),
    TrainConfig(clip=0.05, beta1=0.8, warmup=0.3),
]


def loop(preset: str, lane: int, dtype: torch.dtype) -> Loop:
    """Lane number `lane` of a pack: its own seed, rates and data."""
    model = build_model(tiny(preset), 11, seed=lane, dtype=dtype)
    return Loop(model, Counting(), CONFIGS[lane], seed=lane, steps=6)  # type: ignore[arg-type]


def gaps(preset: str, dtype: torch.dtype) -> tuple[float, float]:
    """Largest difference of losses and of final weights from loops that run alone."""
    lanes = [loop(preset, lane, dtype) for lane in range(3)]
    stacked = ModelLanes(lanes)
    losses = [stacked.step(step) for step in range(6)]
    worst = weights = 0.0
    for lane, packed in enumerate(lanes):
        alone = loop(preset, lane, dtype)
        expected = [alone.step(step) for step in range(6)]
        assert abs(expected[-1] - expected[0]) > 1e-4
        ours = [loss[lane] for loss in losses]
        worst = max(worst, *(abs(a - b) for a, b in zip(ours, expected, strict=True)))
        pairs = zip(packed.model.parameters(), alone.model.parameters(), strict=True)
        weights = max(weights, *((a - b).abs().max().item() for a, b in pairs))
    return worst, weights


PRESETS = ("transformer", "swa", "deltanet", "titans_lmm", "omeganet", "atlas", "moneta", "mesa")


@pytest.mark.parametrize("preset", PRESETS)
def test_in_double_precision_lanes_equal_loops_alone(preset: str) -> None:
    loss, weight = gaps(preset, torch.float64)
    assert loss < 1e-10
    assert weight < 1e-9


@pytest.mark.parametrize("preset", ["transformer", "titans_lmm", "atlas"])
def test_in_single_precision_they_differ_by_rounding(preset: str) -> None:
    loss, _ = gaps(preset, torch.float32)
    assert loss < 1e-4


def test_dropping_a_lane_leaves_the_others_as_they_were() -> None:
    def losses(*, drop: bool) -> list[list[float]]:
        stacked = ModelLanes([loop("deltanet", lane, torch.float64) for lane in range(3)])
        found = [stacked.step(step) for step in range(2)]
        if drop:
            stacked.keep(torch.tensor([0, 2]))
        return found + [stacked.step(step) for step in range(2, 4)]

    whole, cut = losses(drop=False), losses(drop=True)
    for ours, expected in zip(cut[2:], whole[2:], strict=True):
        assert ours == pytest.approx([expected[0], expected[2]], rel=1e-12)


def test_the_models_hold_the_lanes_weights() -> None:
    lanes = [loop("transformer", lane, torch.float64) for lane in range(2)]
    before: list[Any] = [lane.model.head.weight.clone() for lane in lanes]
    stacked = ModelLanes(lanes)
    stacked.step(0)
    moved = [
        (lane.model.head.weight - old).abs().max() for lane, old in zip(lanes, before, strict=True)
    ]
    assert all(0 < step < 0.1 for step in moved)
