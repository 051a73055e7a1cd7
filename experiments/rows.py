"""Fixed tables of rows: training passes over them, proof that train and test are apart, a hash.

Also the one draw that several generators need: without replacement, in every row at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablate.errors import UserError
from ablate.experiments.task import Batch

Tokens = NDArray[np.int64]


class Rows(NamedTuple):
    """Rows of one length: inputs and targets, int64 ``[rows t]``; target -100 is unscored."""

    inputs: Tensor
    targets: Tensor


def to_rows(inputs: Tokens, targets: Tokens) -> Rows:
    """The same numbers as tensors."""
    return Rows(torch.from_numpy(inputs), torch.from_numpy(targets))


def seeded(seed: int, count: int) -> list[np.random.Generator]:
    """Independent generators from one seed: one for each split of the data."""
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(count)]


def epochs(tables: Sequence[Rows], batch: int, generator: np.random.Generator) -> Iterator[Batch]:
    """Shuffled passes over `tables` without end; every batch holds rows of one table.

    A table's last rows that fill no batch are left out of that pass, others in the next.

    Raises:
        UserError: a table has fewer rows than one batch.
    """
    for table in tables:
        if len(table.inputs) < batch:
            raise UserError(
                f"{len(table.inputs)} training rows do not fill one batch: task_args.batch={batch} "
                "must be at most the rows of every training set."
            )
    while True:
        plan = []
        for table in tables:
            order = torch.from_numpy(generator.permutation(len(table.inputs)))
            plan += [(table, part) for part in torch.split(order, batch) if len(part) == batch]
        for index in generator.permutation(len(plan)):
            table, part = plan[index]
            yield Batch(table.inputs[part], table.targets[part])


def check_disjoint(train: Sequence[Rows], test: Sequence[Rows]) -> None:
    """Refuse data in which a test input is also a training input.

    Raises:
        UserError: says how many test rows were also trained on.
    """
    seen = {row.tobytes() for table in train for row in table.inputs.numpy()}
    shared = sum(row.tobytes() in seen for table in test for row in table.inputs.numpy())
    if shared:
        raise UserError(
            f"{shared} test rows are training rows too: so few different rows exist at this size "
            "that a score would measure memory of the training set. Make the length or the "
            "vocabulary larger, or use fewer training rows."
        )


def fingerprint(args: Mapping[str, Any], *arrays: NDArray[Any] | bytes) -> str:
    """Short hash of a task's arguments and of data, such as a probe of what its generator makes."""
    digest = hashlib.sha256(json.dumps(args, sort_keys=True).encode())
    for array in arrays:
        digest.update(array if isinstance(array, bytes) else np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:12]


def distinct(scores: NDArray[np.float64], count: int) -> Tokens:
    """In each row the indices of the `count` smallest scores, smallest first.

    Of independent uniform scores this is a draw without replacement.
    """
    nearest = np.argpartition(scores, count - 1, axis=1)[:, :count]
    order = np.argsort(np.take_along_axis(scores, nearest, axis=1), axis=1)
    return np.take_along_axis(nearest, order, axis=1)
