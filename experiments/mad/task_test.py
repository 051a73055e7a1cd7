from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ablate.errors import UserError
from ablate.experiments.catalogue import make_task
from ablate.experiments.mad.sequences import memorized_map
from ablate.experiments.mad.task import TOY, MADTask
from ablate.experiments.task import SequenceTask


def made(**args: Any) -> MADTask:
    return MADTask(**args)


def recall(row: list[int], task: MADTask) -> list[int]:
    """Say the value tokens that followed the last key of this kind, one after the other."""
    content = task.vocab - {"noisy_recall": 16, "fuzzy_recall": 1}.get(task.variant, 0)
    said = [0] * len(row)
    known: dict[tuple[int, ...], tuple[int, ...]] = {}
    key: tuple[int, ...] = ()
    value: tuple[int, ...] = ()
    for place, token in enumerate(row):
        if token < content // 2:
            key, value = ((*key, token), ()) if not value else ((token,), ())
        elif token < content:
            value = (*value, token)
        else:
            key = value = ()
        expected = known.get(key, ())
        said[place] = (*expected, *[0] * 4)[min(len(value), 3)]
        last = place + 1 == len(row) or row[place + 1] < content // 2 or row[place + 1] >= content
        if value and last:
            known.setdefault(key, value)
    return said


def copy(row: list[int], task: MADTask) -> list[int]:
    content = [token for token in row if token < task.vocab - 2]
    return [0] * (len(row) - task.copies) + content


def lookup(row: list[int], task: MADTask) -> list[int]:
    known = dict(zip(*(part.tolist() for part in memorized_map(task.vocab)), strict=True))
    return [0, *(known.get(token, 0) for token in row[:-1])]


ORACLES: dict[str, Callable[[list[int], MADTask], list[int]]] = {
    "in_context_recall": recall,
    "noisy_recall": recall,
    "fuzzy_recall": recall,
    "selective_copying": copy,
    "compression": lambda row, task: row,
    "memorization": lookup,
}


class Model:
    """Says what a function of the row says."""

    reconstructs = True

    def __init__(self, task: MADTask, say: Callable[[list[int], MADTask], list[int]]) -> None:
        self.task = task
        self.say = say

    def __call__(self, tokens: Tensor, state: object = None) -> tuple[Tensor, object]:
        said = torch.tensor([self.say(row, self.task) for row in tokens.tolist()])
        return torch.nn.functional.one_hot(said, self.task.vocab).float() * 30, state


def possible(task: MADTask) -> int:
    """One token that can be an answer."""
    return int(next(t for t in task.data[1].targets.flatten().tolist() if t != -100))


@pytest.mark.parametrize("variant", TOY)
def test_who_knows_the_rule_scores_one_and_who_does_not_scores_chance(variant: str) -> None:
    task = made(variant=variant, test_rows=512)
    metrics = task.score(Model(task, ORACLES[variant]))
    assert metrics["val/accuracy"] == metrics["val/accuracy_macro_batch_mean"] == 1
    assert metrics["val/loss"] < 1e-6
    answer = possible(task)
    blind = task.score(Model(task, lambda row, task: [answer] * len(row)))
    chance = task.info()["chance_accuracy"]
    assert blind["val/accuracy"] == pytest.approx(chance, rel=0.25)
    assert blind["val/accuracy_macro_batch_mean"] == pytest.approx(chance, rel=0.25)


@pytest.mark.parametrize("variant", TOY)
def test_data_is_fixed_apart_and_of_the_stated_shape(variant: str) -> None:
    task = make_task("mad", {"variant": variant, "train_rows": 128, "test_rows": 64})
    assert isinstance(task, MADTask)
    assert isinstance(task, SequenceTask)
    train, test = task.data
    assert train.inputs.shape == train.targets.shape == (128, task.context)
    assert test.inputs.shape == test.targets.shape == (64, task.context)
    assert train.inputs.max() < task.vocab
    seen = {row.tobytes() for row in train.inputs.numpy()}
    assert not any(row.tobytes() in seen for row in test.inputs.numpy())
    one, two = (list(islice(task.batches(np.random.default_rng(1)), 5)) for _ in range(2))
    for first, second in zip(one, two, strict=True):
        assert torch.equal(first.inputs, second.inputs)
        assert first.inputs.shape == (32, task.context)
    assert (
        task.data_identity()
        == MADTask(variant=task.variant, train_rows=128, test_rows=64, tokens=1).data_identity()
    )


def test_identities_differ_by_variant_and_size() -> None:
    tasks = [made(variant=variant) for variant in TOY]
    tasks += [MADTask(length=32), MADTask(data_seed=1)]
    assert len({task.data_identity() for task in tasks}) == len(tasks)


def test_the_paper_sizes_are_arguments() -> None:
    task = MADTask(variant="noisy_recall", length=128, noise=0.6, vocab=48, test_rows=1280)
    assert task.context == 127
    task = MADTask(variant="selective_copying", length=256, copies=16)
    assert task.data[1].targets.ne(-100).sum() == 256 * 16


def test_compression_refuses_a_model_that_only_repeats_what_it_sees() -> None:
    task = MADTask(variant="compression")

    class Causal(Model):
        reconstructs = False

    with pytest.raises(UserError, match=r"auto-encoder.*model_args\.backbone=autoencoder"):
        task.score(Causal(task, lambda row, task: row))


def test_compression_alone_is_a_task_of_reconstruction() -> None:
    assert [variant for variant in TOY if made(variant=variant).reconstructs] == ["compression"]


def test_what_is_remembered_of_a_row_is_scored_token_by_token() -> None:
    task = MADTask(variant="compression", test_rows=512)
    half = task.length // 2
    metrics = task.score(Model(task, lambda row, task: [0] * half + row[half:]))
    # The first half scores as a guess does, one in 15; the compress token is the row's last.
    assert metrics["val/accuracy"] == pytest.approx(0.5 + 0.5 / 15, abs=0.01)


def test_settings_that_no_variant_has_are_refused() -> None:
    with pytest.raises(UserError, match="Did you mean 'memorization'"):
        made(variant="memorisation")
    with pytest.raises(UserError, match="task_args.variant is 'recal'"):
        make_task("mad", {"variant": "recal"})
    with pytest.raises(UserError, match="length=33"):
        MADTask(length=33)
    with pytest.raises(UserError, match="batch=0"):
        MADTask(batch=0)
