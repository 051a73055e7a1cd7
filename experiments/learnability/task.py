"""How fast an MLP learns a function online: Atlas section 6.4, Figure 6, at the paper's width."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ablate.errors import UserError
from ablate.experiments.learnability.lanes import MLPLanes
from ablate.experiments.learnability.learner import OnlineMLP, OptimizerName, shapes_of
from ablate.experiments.learnability.targets import Pairs, Stream, Target, make_pairs
from ablate.experiments.task import Row, at_least, check_limits

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
        sizes = ("hidden_layers", "expansion", "length", "dim", "rank", "window")
        check_limits(self, at_least(1, *sizes))
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

    def pairs(self, stream: Stream) -> Pairs:
        """Draw the sequence."""
        return make_pairs(
            self.target,
            stream,
            length=self.length,
            dim=self.dim,
            rank=self.rank,
            window=self.window,
        )

    def pack_key(self) -> str:
        """Tasks with equal keys can learn side by side: one optimiser, shape and length."""
        return f"{self.optimizer} {self.widths} {self.length}"

    def lane_bytes(self) -> int:
        """What a step touches of one learner: its weights, their gradient and two moments."""
        return 4 * 4 * sum(rows * columns for rows, columns in shapes_of(self.widths))

    def run_lanes(
        self,
        lanes: Sequence[LearnabilityTask],
        streams: Sequence[Stream],
        report: Callable[[Mapping[int, Row]], None],
    ) -> None:
        """Learn one sequence in each lane, and report of each what `run` reports.

        A lane that diverges is reported and dropped; the others go on as they were.

        Args:
            lanes: tasks of this one's `pack_key`.
            streams: of each lane.
            report: told of the rows at one step, by the lane's number.
        """
        started = time.perf_counter()
        inputs, outputs = _pairs_of(lanes, streams)
        learner = MLPLanes(
            self.widths,
            optimizer=self.optimizer,
            rates=[lane.rate for lane in lanes],
            draws=[stream("learner") for stream in streams],
        )
        numbers = list(range(len(lanes)))
        losses = torch.zeros(self.length, len(lanes))
        done = 0
        for end in report_steps(self.length):
            for position in range(done, end):
                losses[position] = learner.step(inputs[position], outputs[position])
            done = end
            rows, going = {}, []
            for place, number in enumerate(numbers):
                mean = running_mean(losses[:, place], end)
                ended = end == self.length or not math.isfinite(mean)
                rows[number] = _row(end, mean, time.perf_counter() - started, ended=ended)
                going += [] if ended else [place]
            report(rows)
            if not going:
                return
            if len(going) < len(numbers):
                numbers = [numbers[place] for place in going]
                kept = torch.tensor(going)
                inputs, outputs, losses = (part[:, kept] for part in (inputs, outputs, losses))
                learner.keep(kept)

    def run(self, stream: Stream, report: Callable[[Row], None]) -> None:
        """Learn one sequence, and report the mean loss of the last `AVERAGED` positions.

        About `REPORTS` rows, evenly spaced, hold ``train/loss``; the last one also ``final/loss``,
        the same number. A learner that diverges reports what it got, and stops there.
        """
        started = time.perf_counter()
        inputs, outputs = self.pairs(stream)
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
            report(_row(end, mean, time.perf_counter() - started, ended=ended))
            if ended:
                return


def _pairs_of(lanes: Sequence[LearnabilityTask], streams: Sequence[Stream]) -> Pairs:
    """Each lane's pairs, ``[t lane d]``; lanes that differ in their learner only share a draw."""
    drawn: dict[object, Pairs] = {}
    for lane, stream in zip(lanes, streams, strict=True):
        if (key := (stream, lane.target, lane.rank, lane.window)) not in drawn:
            drawn[key] = lane.pairs(stream)
    found = [
        drawn[stream, lane.target, lane.rank, lane.window]
        for lane, stream in zip(lanes, streams, strict=True)
    ]
    inputs, outputs = zip(*found, strict=True)
    return torch.stack(inputs, dim=1), torch.stack(outputs, dim=1)


def _row(step: int, mean: float, seconds: float, *, ended: bool) -> Row:
    metrics = {"train/loss": mean} | ({"final/loss": mean} if ended else {})
    return Row(step, step, seconds, metrics)


def report_steps(length: int, reports: int = REPORTS) -> list[int]:
    """Where to report: evenly spaced, the last at the end; no step twice."""
    return sorted({max(1, round(length * part / reports)) for part in range(1, reports + 1)})


def running_mean(losses: Tensor, end: int) -> float:
    """Mean of the `AVERAGED` losses before position `end`, or of all if there are fewer."""
    return losses[max(0, end - AVERAGED) : end].mean(dtype=torch.float64).item()


TASK = LearnabilityTask
