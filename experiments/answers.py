"""What a model answers at the scored positions, and how such answers are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ablate.experiments.rows import Rows
from ablate.experiments.task import UNSCORED

Predictor: TypeAlias = Callable[..., tuple[Tensor, Any]]
"""A model, or anything called like one: ``(tokens, state=None) -> (logits, state)``."""


class Answers(NamedTuple):
    """One entry for each scored position, on the CPU.

    `predicted` and `targets` are tokens, `nats` is the target's negative log-probability, `rows`
    the row that the position stands in.
    """

    predicted: Tensor
    targets: Tensor
    nats: Tensor
    rows: Tensor


def device_of(model: object) -> torch.device:
    """Where the model's parameters lie; the CPU for one that has none."""
    if isinstance(model, nn.Module):
        for parameter in model.parameters():
            return parameter.device
    return torch.device("cpu")


@torch.no_grad()
def read_answers(model: Predictor, table: Rows, *, batch: int) -> Answers:
    """Run `batch` rows at a time and keep what is said at the scored positions."""
    device = device_of(model)
    found = []
    for start in range(0, len(table.inputs), batch):
        inputs, targets = (part[start : start + batch] for part in table)
        logits = model(inputs.to(device))[0]
        scored = targets != UNSCORED
        chosen = logits[scored.to(device)]
        found.append(answers(chosen, targets[scored], start + scored.nonzero()[:, 0]))
    return join(found)


def answers(logits: Tensor, targets: Tensor, rows: Tensor) -> Answers:
    """Judge ``[n vocab]`` logits against ``[n]`` targets."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).cpu()
    nats = cross_entropy(wide, targets, reduction="none")
    return Answers(wide.argmax(dim=-1), targets, nats, rows)


def join(parts: Iterable[Answers]) -> Answers:
    """Several answers as one."""
    return Answers(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def accuracy(found: Answers) -> float:
    """Share of the scored positions whose most likely token is the target (micro)."""
    return (found.predicted == found.targets).double().mean().item()


def loss(found: Answers) -> float:
    """Mean negative log-probability of the targets, in nats."""
    return found.nats.double().mean().item()


def rows_correct(found: Answers) -> Tensor:
    """For each row that has a scored position: is every one of its answers right?"""
    wrong = found.predicted != found.targets
    _, index = torch.unique(found.rows, return_inverse=True)
    return torch.bincount(index, weights=wrong.double()) == 0


def macro_accuracy(found: Answers) -> float:
    """Mean over classes of the share of each class's targets that was right.

    A class that is neither a target nor predicted does not count; one that is predicted but never
    a target counts as 0. This is the default of torchmetrics' ``MulticlassAccuracy``.
    """
    classes = torch.unique(torch.cat((found.predicted, found.targets)))
    targets = torch.searchsorted(classes, found.targets)
    right = found.predicted == found.targets
    total = torch.bincount(targets, minlength=len(classes)).double()
    correct = torch.bincount(targets, weights=right.double(), minlength=len(classes))
    return (correct / total.clamp(min=1)).mean().item()


def macro_batch_mean(found: Answers, batch: int) -> float:
    """Mean over batches of `batch` rows of each batch's macro accuracy."""
    groups = found.rows // batch
    scores = [
        macro_accuracy(Answers(*(column[groups == group] for column in found)))
        for group in torch.unique(groups)
    ]
    return sum(scores) / len(scores)
