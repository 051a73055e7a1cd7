from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch

from ablate.errors import UserError
from ablate.experiments.rows import Rows, check_disjoint, epochs, fingerprint


def table(first: int, rows: int) -> Rows:
    numbers = torch.arange(first, first + rows)[:, None]
    return Rows(numbers, numbers + 1000)


def test_one_pass_shows_every_row_once() -> None:
    batches = epochs([table(0, 12), table(100, 4)], 4, np.random.default_rng(0))
    first, second = (list(islice(batches, 4)) for _ in range(2))
    for part in (first, second):
        seen = torch.cat([batch.inputs.flatten() for batch in part])
        assert sorted(seen.tolist()) == [*range(12), *range(100, 104)]
        assert all(torch.equal(batch.targets, batch.inputs + 1000) for batch in part)
    assert [b.inputs.tolist() for b in first] != [b.inputs.tolist() for b in second]


def test_a_batch_larger_than_the_rows_is_refused() -> None:
    with pytest.raises(UserError, match="task_args.batch=5"):
        next(epochs([table(0, 4)], 5, np.random.default_rng(0)))


def test_a_test_row_that_was_trained_on_is_refused() -> None:
    check_disjoint([table(0, 5)], [table(5, 5)])
    with pytest.raises(UserError, match="2 test rows"):
        check_disjoint([table(0, 5)], [table(3, 5)])


def test_fingerprints_tell_arguments_and_data_apart() -> None:
    one = np.arange(3)
    marks = {
        fingerprint({"a": 1}, one),
        fingerprint({"a": 2}, one),
        fingerprint({"a": 1}, one + 1),
    }
    assert len(marks) == 3
    assert fingerprint({"a": 1}, one) in marks
