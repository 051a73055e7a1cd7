"""How fast an MLP learns a function online: Atlas section 6.4, Figure 6, at the paper's width."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ablate.errors import UserError
from ablate.experiments.learnability.learner import OnlineMLP, OptimizerName
from ablate.experiments.learnability.targets import Stream, Target, make_pairs
from ablate.experiments.task import Row

PROTOCOL = "learnability-1"
"""Changed with anything that changes the pairs drawn."""
AVERAGED = 128
"""Positions in the running mean of the loss."""
REPORTS = 32
DEFAULT_LR: dict[OptimizerName, float] = {"adam": 3e-4, "rmsprop": 3e-4, "sgd": 0.1}


@dataclass(frozen=True, kw_only=True)
class LearnabilityTask:
    """One curve of Figure 6: a target function, a learner, an optimiser.

    Args:
        target: function to learn (Atlas 6.4, items 1 to 5, in this order).
        optimizer: of the learner.
        lr: its learning rate; None takes `DEFAULT_LR`, which is our choice (the paper gives none).
        hidden_layers: of the learner; the paper's panels have 2 and 3.
        expansion: hidden width over `dim`; the paper's panels have 1 and 4.
        length: positions, each with one step (not given in the paper).
        dim: width of inputs and outputs.
        rank: of the ``low_rank`` target (not given in the paper).
        window: of the ``window_mlp`` target.

    Raises:
        UserError: a number is out of range.
    """

    target: Target = "low_rank"
    optimizer: OptimizerName = "adam"
    lr: float | None = None
    hidden_layers: int = 2
    expansion: int = 1
    length: int = 4096
    dim: int = 256
    rank: int = 32
    window: int = 512

    name: ClassVar[Literal["learnability"]] = "learnability"
    metrics: ClassVar[tuple[str, ...]] = ("final/loss", "train/loss")

    def __post_init__(self) -> None:
        for field in fields(self):
            given = getattr(self, field.name)
            if isinstance(given, int) and given < 1:
                raise UserError(f"task_args.{field.name}={given!r}: must be at least 1.")
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise UserError(f"task_args.lr={self.lr!r}: must be above 0, or null for the default.")

    @property
    def rate(self) -> float:
        """The learning rate used."""
        return DEFAULT_LR[self.optimizer] if self.lr is None else self.lr

    @property
    def widths(self) -> list[int]:
        """Widths of the learner's layers, input and output included."""
        return [self.dim, *[self.expansion * self.dim] * self.hidden_layers, self.dim]

    def data_identity(self) -> str:
        """Hash of the generator's version: the pairs follow from it, the arguments and the seed."""
        return hashlib.sha256(PROTOCOL.encode()).hexdigest()[:12]

    def info(self) -> dict[str, float | str]:
        """The learner's size and rate, and the loss of a learner that always answers zero."""
        widths = self.widths
        return {
            "protocol": PROTOCOL,
            "lr": self.rate,
            "learner_parameters": float(
                sum(rows * columns for rows, columns in zip(widths[1:], widths, strict=False))
            ),
            "zero_output_loss": 1.0,
        }

    def run(self, stream: Stream, report: Callable[[Row], None]) -> None:
        """Learn one sequence, and report the mean loss of the last `AVERAGED` positions.

        About `REPORTS` rows, evenly spaced, hold ``train/loss``; the last one also ``final/loss``,
        the same number. A learner that diverges reports what it got, and stops there.
        """
        started = time.perf_counter()
        inputs, outputs = make_pairs(
            self.target,
            stream,
            length=self.length,
            dim=self.dim,
            rank=self.rank,
            window=self.window,
        )
        learner = OnlineMLP(
            self.widths, optimizer=self.optimizer, lr=self.rate, draws=stream("learner")
        )
        losses = torch.zeros(self.length)
        done = 0
        for end in report_steps(self.length):
            for position in range(done, end):
                losses[position] = learner.step(inputs[position], outputs[position])
            done = end
            mean = running_mean(losses, end)
            ended = end == self.length or not math.isfinite(mean)
            metrics = {"train/loss": mean} | ({"final/loss": mean} if ended else {})
            report(Row(end, end, time.perf_counter() - started, metrics))
            if ended:
                return


def report_steps(length: int) -> list[int]:
    """Where to report: evenly spaced, the last at the end; no step twice."""
    return sorted({max(1, round(length * part / REPORTS)) for part in range(1, REPORTS + 1)})


def running_mean(losses: Tensor, end: int) -> float:
    """Mean of the `AVERAGED` losses before position `end`, or of all if there are fewer."""
    return losses[max(0, end - AVERAGED) : end].mean(dtype=torch.float64).item()


TASK = LearnabilityTask
