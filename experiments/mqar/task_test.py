from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor

from ablate.experiments.catalogue import make_task
from ablate.experiments.mqar.task import MQARTask
from ablate.experiments.task import SequenceTask

SMALL = MQARTask(
    train_rows=256, test_rows=200, more_train=((64, 8, 128),), more_test=((64, 8, 100),), vocab=80
)


class Lookup:
    """Answers with the token after the first earlier occurrence of the last token, if any."""

    def __init__(self, vocab: int) -> None:
        self.vocab = vocab

    def __call__(self, tokens: Tensor, state: object = None) -> tuple[Tensor, object]:
        same = tokens[:, :, None] == tokens[:, None, :]
        first = same.int().argmax(dim=2)
        value = tokens.gather(1, (first + 1).clamp(max=tokens.shape[1] - 1))
        return torch.nn.functional.one_hot(value, self.vocab).float() * 30, state


class AnyListedValue(Lookup):
    """Knows which values the row lists, but not which belongs to which key."""

    def __call__(self, tokens: Tensor, state: object = None) -> tuple[Tensor, object]:
        logits = torch.zeros(*tokens.shape, self.vocab)
        listed = tokens[:, 1:8:2, None].expand(-1, -1, self.vocab)
        hot = torch.nn.functional.one_hot(listed[..., 0], self.vocab).sum(dim=1)
        noise = torch.rand(logits.shape, generator=torch.Generator().manual_seed(0))
        return logits + hot[:, None] * (1 + noise), state


class Constant(Lookup):
    def __call__(self, tokens: Tensor, state: object = None) -> tuple[Tensor, object]:
        logits = torch.zeros(*tokens.shape, self.vocab)
        logits[..., self.vocab - 1] = 1
        return logits, state


def test_a_lookup_scores_one_on_every_slice() -> None:
    metrics = SMALL.score(Lookup(SMALL.vocab))
    assert {name: value for name, value in metrics.items() if "accuracy" in name} == {
        "val/accuracy": 1.0,
        "val/accuracy@4": 1.0,
        "val/accuracy@8": 1.0,
    }
    assert metrics["val/loss"] < 1e-6


def test_blind_models_score_the_chance_that_info_states() -> None:
    task = MQARTask(train_rows=64, test_rows=2_000)
    info = task.info()
    assert info["chance_accuracy_among_pairs"] == 0.25
    assert task.score(Constant(64))["val/accuracy"] == pytest.approx(
        info["chance_accuracy"], abs=0.01
    )
    assert task.score(AnyListedValue(64))["val/accuracy"] == pytest.approx(0.25, abs=0.02)


def test_batches_repeat_with_the_generator_and_hold_one_length_each() -> None:
    assert isinstance(SMALL, SequenceTask)
    one, two = (list(islice(SMALL.batches(np.random.default_rng(3)), 12)) for _ in range(2))
    for first, second in zip(one, two, strict=True):
        assert torch.equal(first.inputs, second.inputs)
        assert torch.equal(first.targets, second.targets)
        assert first.inputs.shape == first.targets.shape
        assert first.inputs.dtype == first.targets.dtype == torch.int64
    # 256 and 128 rows in batches of 64: one pass is four batches of one and two of the other.
    assert sorted(batch.inputs.shape[1] for batch in one[:6]) == [32] * 4 + [64] * 2


def test_no_test_row_is_trained_on() -> None:
    train = {row.tobytes() for table in SMALL.data.train for row in table.inputs.numpy()}
    test = {row.tobytes() for table in SMALL.data.test for row in table.inputs.numpy()}
    assert len(test) == 300
    assert not train & test


def test_the_identity_follows_the_data_and_not_the_budget() -> None:
    identity = MQARTask().data_identity()
    assert identity == MQARTask(tokens=5, batch=8).data_identity()
    changed = [
        MQARTask(data_seed=1),
        MQARTask(power_a=0.1),
        MQARTask(train_rows=10),
        MQARTask(more_test=((32, 8, 10),)),
    ]
    assert len({identity, *(task.data_identity() for task in changed)}) == 5


def test_settings_come_from_plain_lists() -> None:
    task = make_task("mqar", {"more_test": [[64, 8, 10]], "vocab": 80})
    assert task == MQARTask(more_test=((64, 8, 10),), vocab=80)
