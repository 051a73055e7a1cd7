from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ablate.experiments.task import Batch, Row
from ablate.trial.build import build_model
from ablate.trial.build_test import tiny
from ablate.trial.metrics import MetricError
from ablate.trial.space import choices
from ablate.trial.train import (
    Diverged,
    TrainConfig,
    make_optimizer,
    schedule,
    steps_of,
    token_loss,
    train,
)


@dataclass
class Counting:
    """Predict the next of numbers that count up; `metrics` overrules what is scored."""

    tokens: int = 160
    metrics: Callable[[], dict[str, Any]] | None = None
    name: str = "counting"
    vocab: int = 11
    context: int = 8
    batch: int = 2
    scored: list[bool] = field(default_factory=list)

    def data_identity(self) -> str:
        """No data."""
        return "none"

    def info(self) -> dict[str, float | str]:
        """Nothing to say."""
        return {}

    def batches(self, generator: np.random.Generator) -> Iterator[Batch]:
        """Rows with random starts."""
        while True:
            starts = torch.from_numpy(generator.integers(0, 11, size=(self.batch, 1)))
            rows = (starts + torch.arange(self.context + 1)) % 11
            yield Batch(rows[:, :-1], rows[:, 1:])

    def score(self, model: nn.Module) -> dict[str, float]:
        """Loss on one fixed row."""
        self.scored.append(model.training)
        if self.metrics is not None:
            return self.metrics()
        row = torch.arange(9)[None]
        return {"val/loss": token_loss(model(row[:, :-1])[0], row[:, 1:]).item()}


def learn(
    task: Counting, config: TrainConfig, *, preset: str = "transformer", seed: int = 0
) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    warnings: list[str] = []
    model = build_model(tiny(preset), task.vocab, seed=seed)
    train(model, task, config, seed=seed, report=rows.append, warn=warnings.append)
    return rows, warnings


def test_rows_come_at_even_steps_and_at_the_end() -> None:
    task = Counting(tokens=161)
    assert steps_of(task) == 11
    rows, warnings = learn(task, TrainConfig(evaluations=4, lr=1e-2))
    assert [row.step for row in rows] == [3, 6, 9, 11]
    assert [row.tokens for row in rows] == [48, 96, 144, 176]
    assert [sorted(row.metrics) for row in rows] == [["train/loss", "val/loss"]] * 4
    assert rows[-1].metrics["val/loss"] < rows[0].metrics["val/loss"]
    assert all(b.seconds > a.seconds for a, b in zip(rows, rows[1:], strict=False))
    assert task.scored == [False] * 4
    assert warnings == []
    always, _ = learn(Counting(tokens=33), TrainConfig(evaluations=10**12))
    assert [row.step for row in always] == [1, 2, 3]


@pytest.mark.parametrize("preset", choices("model"))
def test_every_preset_learns_to_count(preset: str) -> None:
    rows, _ = learn(Counting(tokens=16 * 24), TrainConfig(evaluations=3, lr=1e-2), preset=preset)
    losses = [row.metrics["val/loss"] for row in rows]
    assert losses[-1] < losses[0] < 4.0
    assert losses[-1] < 1.9


def test_the_same_seed_gives_the_same_bits() -> None:
    def losses(seed: int) -> list[float]:
        rows, _ = learn(Counting(), TrainConfig(evaluations=2), preset="atlas", seed=seed)
        return [row.metrics["val/loss"] for row in rows]

    assert losses(0) == losses(0)
    assert losses(0) != losses(1)


def test_the_schedule_rises_then_falls_to_zero() -> None:
    rates = [schedule(step, 100, 0.1) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * part for part in range(1, 11)])
    assert rates[10] == 1.0
    assert all(later <= earlier for earlier, later in zip(rates[10:], rates[11:], strict=False))
    assert rates[55] == pytest.approx(0.5)
    assert 0 < rates[99] < 0.001
    assert schedule(0, 1, 0.0) == 1.0


def test_vectors_do_not_decay() -> None:
    model = build_model(tiny("atlas"), 11, seed=0)
    decayed, free = make_optimizer(model, TrainConfig(weight_decay=0.3)).param_groups
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.3, 0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    undecayed = {names[id(parameter)].rpartition(".")[2] for parameter in free["params"]}
    assert undecayed == {"weight", "offset", "raw"}, "norms, gates' offsets, coefficients"
    assert len(decayed["params"]) + len(free["params"]) == len(names)


def test_unscored_positions_do_not_count() -> None:
    logits = torch.zeros(1, 2, 4)
    logits[0, 1, 3] = 100.0
    assert token_loss(logits, torch.tensor([[0, -100]])).item() == pytest.approx(math.log(4))


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_finite_values() -> None:
    rows: list[Row] = []
    model = build_model(tiny("transformer"), 11, seed=0)
    with torch.no_grad():
        model.head.weight.fill_(1e38)
    with pytest.raises(Diverged, match="train/loss not finite at step 1; last finite values: none"):
        train(model, Counting(), TrainConfig(), seed=0, report=rows.append)
    assert [row.step for row in rows] == [1]
    assert not math.isfinite(rows[0].metrics["train/loss"])


def test_a_metric_that_is_not_finite_stops_and_keeps_the_last_finite_values() -> None:
    scores = iter([{"val/loss": 2.5}, {"val/loss": 2.25}, {"val/loss": math.nan}])
    with pytest.raises(Diverged) as caught:
        learn(Counting(metrics=lambda: next(scores)), TrainConfig(evaluations=5))
    assert caught.value.step == 6
    assert caught.value.last["val/loss"] == 2.25
    assert "val/loss not finite at step 6; last finite values (step 4): " in str(caught.value)


def test_a_missing_metric_is_a_gap_and_text_a_failure() -> None:
    scores = iter([{"a": 1.0, "b": None}, {"a": np.float32(2.0)}])
    rows, warnings = learn(Counting(metrics=lambda: next(scores)), TrainConfig(evaluations=2))
    assert [row.metrics.get("a") for row in rows] == [1.0, 2.0]
    assert warnings == ["metric 'b' was None: a gap in its curve"]
    with pytest.raises(MetricError, match="metric 'a' is 'high'"):
        learn(Counting(metrics=lambda: {"a": "high"}), TrainConfig())


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [("lr", 0.0, "above 0"), ("warmup", 1.0, "a share in"), ("evaluations", 0, "at least 1")],
)
def test_settings_out_of_range_are_refused(name: str, value: float, rule: str) -> None:
    with pytest.raises(ValueError, match=f"train.{name} is {value!r}; it must be {rule}"):
        TrainConfig(**{name: value})
