from __future__ import annotations

import re
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ablate.errors import UserError
from ablate.experiments.catalogue import make_task
from ablate.experiments.niah.generator import Variant
from ablate.experiments.niah.task import NIAHTask, to_rows
from ablate.experiments.task import SequenceTask

VARIANTS: tuple[Variant, ...] = ("single_1", "single_2", "single_3")
NEEDLE = re.compile(rb"The (?:number|uuid) of (\S+) is ([0-9a-f-]+)\.")


def reader(tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Finds the needle in what it has read, and says the value where it is asked."""
    seen = tokens if state is None else torch.cat((state, tokens), dim=1)
    said = torch.zeros_like(seen)
    for row, text in enumerate(bytes(line) for line in seen.tolist()):
        found = NEEDLE.search(text)
        assert found
        key, value = found.groups()
        start = text.rindex(b" of " + key + b" is ") + len(b" of " + key + b" is ") - 1
        due = torch.tensor(list(value))[: len(text) - start]
        said[row, start : start + len(due)] = due
    return one_hot(said[:, -tokens.shape[1] :], 256).float() * 30, seen


def digit(tokens: Tensor, state: object = None) -> tuple[Tensor, object]:
    return one_hot(torch.full_like(tokens, ord("7")), 256).float(), state


@pytest.mark.parametrize("variant", VARIANTS)
def test_who_finds_the_needle_scores_one_at_every_length(variant: Variant) -> None:
    task = NIAHTask(variant=variant, value_length=0, length=300, test_rows=20, generate_rows=4)
    metrics = task.score(reader)
    for length in (300, 600, 1200):
        assert metrics[f"val/exact_match@{length}"] == metrics[f"val/accuracy@{length}"] == 1
        assert metrics[f"val/contains@{length}"] == 100
    assert metrics["val/exact_match"] == 1
    assert metrics["val/loss"] < 1e-6


def test_who_always_says_one_digit_scores_none() -> None:
    task = NIAHTask(test_rows=200, multiples=(1,), generate_rows=5)
    metrics = task.score(digit)
    assert metrics["val/exact_match@256"] == metrics["val/contains@256"] == 0
    chance = task.info()["chance_accuracy"]
    assert metrics["val/accuracy@256"] == pytest.approx(chance, abs=0.04)


def test_only_the_value_is_scored() -> None:
    task = NIAHTask(variant="single_2")
    samples = task.test[256]
    inputs, targets = to_rows(samples)
    assert inputs.shape == targets.shape == (100, 256)
    for row, sample in enumerate(samples):
        assert bytes(inputs[row].tolist()) == sample.text[:-1].encode()
        scored = targets[row][targets[row] != -100]
        assert bytes(scored.tolist()) == sample.needle.value.encode()
        assert (targets[row, -4:] != -100).all()


def test_no_scored_needle_or_sentence_is_trained_on() -> None:
    task = NIAHTask(variant="single_2", value_length=2, key_words=2, test_rows=50)
    scored = {sample.needle for samples in task.test.values() for sample in samples}
    assert len(scored) > 50  # of the 360 that exist, so that a draw would often meet one
    trained = list(islice(task.training_samples(np.random.default_rng(0)), 300))
    assert not scored & {sample.needle for sample in trained}


def test_batches_repeat_and_train_on_what_is_asked() -> None:
    task = make_task("niah", {"variant": "single_3", "value_length": 8, "batch": 3})
    assert isinstance(task, NIAHTask)
    assert isinstance(task, SequenceTask)
    one, two = (next(task.batches(np.random.default_rng(1))) for _ in range(2))
    assert torch.equal(one.inputs, two.inputs)
    assert one.inputs.shape == (3, 256)
    assert (one.targets != -100).sum() == 3 * 8
    every = NIAHTask(variant="single_3", value_length=8, batch=3, train_on="all")
    full = next(every.batches(np.random.default_rng(1)))
    assert torch.equal(full.inputs, one.inputs)
    assert torch.equal(full.targets[:, :-1], full.inputs[:, 1:])
    assert torch.equal(full.targets[:, -8:], one.targets[:, -8:])


def test_identities_follow_the_data() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"variant": "single_2"},
        {"data_seed": 1},
        {"train_on": "all"},
        {"multiples": (1, 2)},
    ]
    tasks = [NIAHTask(**change) for change in changes]
    assert len({task.data_identity() for task in tasks}) == len(changes)
    assert NIAHTask(tokens=1).data_identity() == tasks[0].data_identity()


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ({"length": 100}, "length=100: must be at least"),
        ({"value_length": 8}, r"value_length=8: must be in \[1, 7\]"),
        ({"variant": "single_3", "value_length": 2}, r"must be in \[4, 36\]"),
        ({"value_length": 1, "key_words": 1}, "only 9 needles exist"),
        ({"key_words": 33}, "key_words=33"),
        ({"multiples": ()}, "multiples"),
        ({"prose": "nowhere.txt"}, "no such file"),
    ],
)
def test_settings_that_cannot_be_are_refused(args: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        NIAHTask(**args)
