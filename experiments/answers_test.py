from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ablate.experiments.answers import (
    Answers,
    accuracy,
    loss,
    macro_accuracy,
    macro_batch_mean,
    read_answers,
    rows_correct,
)
from ablate.experiments.rows import Rows


def answered(predicted: list[int], targets: list[int], rows: list[int] | None = None) -> Answers:
    columns = (predicted, targets, [0] * len(targets), rows or [0] * len(targets))
    return Answers(*(torch.tensor(column) for column in columns))


def test_macro_accuracy_is_the_reference_metrics() -> None:
    # torchmetrics 1.9: MulticlassAccuracy(num_classes=6) of the same answers gives 0.4167.
    found = answered([0, 0, 1, 5, 1], [0, 1, 1, 3, 1])
    assert macro_accuracy(found) == pytest.approx((1 + 2 / 3 + 0 + 0) / 4)
    assert accuracy(found) == pytest.approx(3 / 5)


def test_macro_batch_mean_gives_each_batch_the_same_weight() -> None:
    found = answered([1, 1, 2], [1, 1, 1], rows=[0, 1, 2])
    assert macro_batch_mean(found, batch=2) == pytest.approx((1 + 0) / 2)
    assert macro_batch_mean(found, batch=3) == pytest.approx((2 / 3 + 0) / 2)


def test_a_row_is_correct_when_all_its_answers_are() -> None:
    found = answered([1, 2, 3, 4], [1, 2, 3, 0], rows=[0, 0, 5, 5])
    assert rows_correct(found).tolist() == [True, False]


def test_only_scored_positions_are_read_whatever_the_batch() -> None:
    inputs = torch.tensor([[0, 1, 2], [2, 1, 0], [1, 1, 1]])
    targets = torch.tensor([[-100, 1, -100], [-100, -100, 2], [0, -100, 1]])

    def copy(tokens: Tensor, state: object = None) -> tuple[Tensor, object]:
        return torch.nn.functional.one_hot(tokens, 3).double() * 50, state

    for batch in (1, 2, 3):
        found = read_answers(copy, Rows(inputs, targets), batch=batch)
        assert found.targets.tolist() == [1, 2, 0, 1]
        assert found.rows.tolist() == [0, 1, 2, 2]
        assert found.predicted.tolist() == [1, 0, 1, 1]
        assert accuracy(found) == 0.5
        assert loss(found) == pytest.approx(25)


def test_a_model_that_knows_nothing_pays_the_logarithm_of_the_vocabulary() -> None:
    def uniform(tokens: Tensor, state: object = None) -> tuple[Tensor, object]:
        return torch.zeros(*tokens.shape, 7), state

    table = Rows(torch.zeros(2, 4, dtype=torch.int64), torch.full((2, 4), 3))
    assert loss(read_answers(uniform, table, batch=1)) == pytest.approx(math.log(7))
