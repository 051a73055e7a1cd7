from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from ablate.experiments.task import UNSCORED, Batch
from ablate.trial.build import build_model
from ablate.trial.build_test import tiny
from ablate.trial.train import Loop, TrainConfig
from ablate.trial.train_test import Counting


class Uneven(Counting):
    """Five rows, of which each has another number of scored tokens, and one none."""

    batch = 5

    def batches(self, generator: np.random.Generator) -> Iterator[Batch]:
        """The same rows with some targets taken out."""
        for inputs, all_targets in super().batches(generator):
            targets = all_targets.clone()
            for row, scored in enumerate((8, 1, 3, 0, 5)):
                targets[row, scored:] = UNSCORED
            yield Batch(inputs, targets)


def gradients(micro_batches: int) -> tuple[float, list[torch.Tensor]]:
    """Loss and gradients of one step in float64."""
    task = Uneven()
    task.batch = 5
    model = build_model(tiny("transformer"), task.vocab, seed=0, dtype=torch.float64)
    config = TrainConfig(clip=1e9)
    loop = Loop(model, task, config, seed=0, steps=10, micro_batches=micro_batches)
    loss = loop.step(0)
    return loss, [part.grad for part in loop.parameters if part.grad is not None]


@pytest.mark.parametrize("micro_batches", [2, 3, 5, 8])
def test_the_gradient_of_the_parts_is_that_of_the_whole_batch(micro_batches: int) -> None:
    loss, whole = gradients(1)
    found, parts = gradients(micro_batches)
    assert found == pytest.approx(loss, rel=1e-6)
    assert len(whole) == len(parts) > 10
    for one, other in zip(whole, parts, strict=True):
        # The loss is summed in float32 at least; the gradients here are float64.
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)
