"""What a task is: a name, data with an identity, and either batches for a model or its own learner.

A task is a folder below ``experiments/`` whose ``task.py`` says ``TASK = <class>``. The class takes
keyword-only typed arguments with defaults: they are what a study's ``task_args`` may set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from torch import Tensor, nn

from ablate.errors import UserError

UNSCORED = -100
"""Target of a position that no loss is taken at."""


Limits: TypeAlias = Mapping[str, tuple[int, int | None]]
"""Arguments of a task that are whole numbers: the least and the most; None is no limit."""


def at_least(least: int, *names: str) -> Limits:
    """The limits of arguments that have no most."""
    return dict.fromkeys(names, (least, None))


def check_limits(task: object, limits: Limits) -> None:
    """Refuse a task with an argument outside its limits; one that is None has none.

    Raises:
        UserError: names the first such argument and what it may be.
    """
    for name, (least, most) in limits.items():
        given = getattr(task, name)
        if given is not None and (given < least or (most is not None and given > most)):
            rule = f"at least {least}" if most is None else f"in [{least}, {most}]"
            raise UserError(f"task_args.{name}={given}: must be {rule}.")


class Batch(NamedTuple):
    """One step of training data: both int64, shape ``[b t]``.

    ``targets[i, j]`` is what the model must say after ``inputs[i, : j + 1]``, or `UNSCORED`.
    """

    inputs: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Row:
    """What a learner reports at one step.

    Args:
        step: optimiser steps taken so far.
        tokens: positions seen so far.
        seconds: time since the learner started.
        metrics: named ``split/metric``, such as ``train/loss``; may be infinite or not a number.
    """

    step: int
    tokens: int
    seconds: float
    metrics: dict[str, float]


@runtime_checkable
class Task(Protocol):
    """What every task has."""

    @property
    def name(self) -> str:
        """The folder's name."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all that it reports at the end of a trial: what a study may measure."""

    def data_identity(self) -> str:
        """Short hash of the data really used; part of a cell's identity."""

    def info(self) -> dict[str, float | str]:
        """Facts about the data to log once, such as the score of a trivial predictor."""


@runtime_checkable
class SequenceTask(Task, Protocol):
    """A task for a sequence model that `ablate.trial.train` trains on next-token loss."""

    @property
    def vocab(self) -> int:
        """Number of tokens."""

    @property
    def context(self) -> int:
        """Tokens of one row."""

    @property
    def batch(self) -> int:
        """Rows of one batch."""

    @property
    def tokens(self) -> int:
        """Training budget in tokens."""

    def batches(self, generator: np.random.Generator) -> Iterator[Batch]:
        """Training batches without end; the same generator gives the same batches."""

    def score(self, model: nn.Module) -> dict[str, float]:
        """Judge the model on fixed held-out data; draws nothing and leaves the model as it was.

        ``model(tokens)`` gives ``(logits, state)``.
        """


@runtime_checkable
class LearnerTask(Task, Protocol):
    """A task that brings its own learner and needs no model."""

    def run(
        self,
        stream: Callable[[str], np.random.Generator],
        report: Callable[[Row], None],
    ) -> None:
        """Learn once, drawing only from named streams, and report some rows on the way."""


@runtime_checkable
class PackableTask(LearnerTask, Protocol):
    """A learner task of which several can learn side by side, as lanes of one program."""

    def pack_key(self) -> str:
        """Equal in tasks that can share a program."""

    def lane_bytes(self) -> int:
        """What one step touches of one learner, in bytes."""

    def run_lanes(
        self,
        lanes: Sequence[Any],
        streams: Sequence[Callable[[str], np.random.Generator]],
        report: Callable[[Mapping[int, Row]], None],
    ) -> None:
        """Do in each lane what `run` does alone; rows of one step are reported together.

        A lane whose metrics are not finite is reported once more and then dropped.

        Args:
            lanes: tasks of this one's `pack_key`, itself the first.
            streams: each lane's; lanes of one seed have the same.
            report: told of rows by the lane's number.
        """


class Draw(NamedTuple):
    """What chance gives a memory: its initial weights (in a layer), and streams for its data."""

    layer: nn.Module
    stream: Callable[[str], np.random.Generator]


Draws: TypeAlias = Callable[[int], Draw]
"""``draws(0)`` is a trial's own draw; ``draws(n)`` is held-out draw n, the same for all trials."""


@runtime_checkable
class MemoryTask(Task, Protocol):
    """A task for one memory layer, which learns as it reads; nothing around it, nothing trained.

    Several of them are lanes of one program where their models are equal.
    """

    def pack_key(self) -> str:
        """Equal in tasks that can share a program, given equal models."""

    def learn(
        self,
        lanes: Sequence[Any],
        draws: Sequence[Draws],
        report: Callable[[Mapping[int, Row]], None],
    ) -> None:
        """Learn once in each lane; rows of one step are reported together.

        A lane whose metrics are not finite is reported once more and then left out.

        Args:
            lanes: tasks of this one's `pack_key`, itself the first; their models are equal.
            draws: each lane's layer, a mixer that reads before it writes, and streams.
            report: told of rows by the lane's number.
        """
