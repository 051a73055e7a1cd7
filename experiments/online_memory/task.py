"""Learnability (Atlas section 6.4) of our memories: the learner is the memory layer of a model."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.components.memory_layer import MemoryLayer
from ablate.errors import UserError
from ablate.experiments.learnability.targets import Pairs, Stream, Target, make_pairs
from ablate.experiments.learnability.task import PROTOCOL as PAIRS
from ablate.experiments.learnability.task import report_steps, running_mean
from ablate.experiments.online_memory.rows import MemoryRows
from ablate.experiments.task import Draw, Draws, Row, at_least, check_limits

PROTOCOL = f"online-memory-1 {PAIRS}"
"""Changed with anything that changes the pairs drawn."""
REPORTS = 16
HELD_OUT = 2
"""Draws on which a cell's step size is chosen."""
FLOOR = 1e-4
"""Loss below which a function counts as learned: a matrix gets a low-rank one down to rounding."""


@dataclass(frozen=True, kw_only=True)
class OnlineMemoryTask:
    """One curve: a memory reads each input before it writes the pair.

    Keys are the inputs and values the outputs, both over sqrt(width), so that a key's length is
    about 1, as in our models. The width is the head width. Gates are the constants that they
    start from. Nothing is projected, and nothing is trained.

    Args:
        target: function to learn (Atlas 6.4, items 1 to 5, in this order).
        rates: step sizes to choose from: the one with the lowest final loss on `HELD_OUT` draws,
            the same in all trials of a cell. One is taken as it is, none leaves the step to the
            inner optimiser's own gate (half of its ``lr_max``).
        length: positions, each with one write.
        rank: of the ``low_rank`` target.
        window: tokens that the attention of ``window_mlp`` sees.

    Raises:
        UserError: a number is out of range.
    """

    target: Target = "low_rank"
    rates: tuple[float, ...] = ()
    length: int = 512
    rank: int = 4
    window: int = 64

    name: ClassVar[Literal["online_memory"]] = "online_memory"
    metrics: ClassVar[tuple[str, ...]] = (
        "final/loss",
        "final/log10_loss",
        "final/rate",
        "train/loss",
        "train/log10_loss",
    )

    def __post_init__(self) -> None:
        check_limits(self, at_least(1, "length", "rank", "window"))
        if not all(0 < rate < math.inf for rate in self.rates):
            raise UserError(f"task_args.rates={list(self.rates)}: all must be above 0.")

    def data_identity(self) -> str:
        """Hash of the generator's version: the pairs follow from it, the arguments and the seed."""
        return hashlib.sha256(PROTOCOL.encode()).hexdigest()[:12]

    def info(self) -> dict[str, float | str]:
        """The generator's version, and the loss of a memory that always answers zero."""
        return {"protocol": PROTOCOL, "zero_output_loss": 1.0}

    def pairs(self, stream: Stream, width: int) -> Pairs:
        """Draw the sequence that a memory of that width sees."""
        drawn = make_pairs(
            self.target, stream, length=self.length, dim=width, rank=self.rank, window=self.window
        )
        return drawn[0] / math.sqrt(width), drawn[1] / math.sqrt(width)

    def pack_key(self) -> str:
        """Memories of one model can learn side by side if their sequences are as long."""
        return str(self.length)

    def learn(
        self,
        lanes: Sequence[OnlineMemoryTask],
        draws: Sequence[Draws],
        report: Callable[[Mapping[int, Row]], None],
    ) -> None:
        """Learn one sequence in each lane, and report its mean loss over the last 128 positions.

        `REPORTS` rows, evenly spaced, hold ``train/loss`` and its logarithm ``train/log10_loss``;
        the last one has both also as ``final/``, and ``final/rate``, the step size. A memory that
        diverges reports what it got, and stops there.

        Args:
            lanes: tasks of this one's `pack_key`.
            draws: of each lane.
            report: told of the rows at one step, by the lane's number.
        """
        started = time.perf_counter()
        rates = _chosen(lanes, draws)
        curves = _Curves(lanes, [draw(0) for draw in draws], rates)
        going = list(range(len(lanes)))
        for end in report_steps(self.length, REPORTS):
            curves.advance(end)
            rows, seconds = {}, time.perf_counter() - started
            for lane in going:
                mean = running_mean(curves.losses[lane], end)
                ended = end == self.length or not math.isfinite(mean)
                rows[lane] = _row(end, mean, curves.sizes[lane], seconds, ended=ended)
            going = [lane for lane in going if "final/loss" not in rows[lane].metrics]
            report(rows)
            if not going:
                return


class _Curves:
    """The losses of many memories, each on its own pairs."""

    def __init__(
        self,
        tasks: Sequence[OnlineMemoryTask],
        draws: Sequence[Draw],
        rates: Sequence[float | None],
    ) -> None:
        layers = [cast(MemoryLayer[Any], draw.layer) for draw in draws]
        width, like = layers[0].dims.key, next(layers[0].parameters())
        drawn: dict[object, Pairs] = {}
        for task, draw in zip(tasks, draws, strict=True):
            if (key := (task, id(draw.layer))) not in drawn:
                drawn[key] = task.pairs(draw.stream, width)
        pairs = [drawn[task, id(draw.layer)] for task, draw in zip(tasks, draws, strict=True)]
        keys, self._values = (torch.stack(parts).to(like) for parts in zip(*pairs, strict=True))
        self._rows = MemoryRows(layers, keys, self._values, steps=rates)
        self._done = 0
        self.losses: Float[Tensor, "lane t"] = torch.zeros(keys.shape[:2], dtype=keys.dtype)
        self.sizes = [0.0] * len(tasks)

    def advance(self, end: int) -> None:
        """Learn up to position `end`."""
        here, self._done = slice(self._done, end), end
        said, sizes = self._rows.advance(end)
        values = self._values[:, here]
        lost = (said - values).square().sum(-1) / values.square().sum(-1)
        self.losses[:, here] = lost.cpu()
        self.sizes = sizes[:, -1].tolist()


def _chosen(lanes: Sequence[OnlineMemoryTask], draws: Sequence[Draws]) -> list[float | None]:
    """Each lane's step size: the best of its `rates` on the held-out draws."""
    wanted = list(dict.fromkeys(lane for lane in lanes if len(lane.rates) > 1))
    best: dict[OnlineMemoryTask, float] = {}
    if wanted:
        held_out = [draws[0](number + 1) for number in range(HELD_OUT)]
        tried = [(task, rate, draw) for task in wanted for rate in task.rates for draw in held_out]
        curves = _Curves(
            [task for task, _, _ in tried],
            [draw for _, _, draw in tried],
            [rate for _, rate, _ in tried],
        )
        curves.advance(lanes[0].length)
        finals = [running_mean(losses, lanes[0].length) for losses in curves.losses]
        for task in wanted:
            means = {
                rate: sum(
                    final
                    for final, (one, size, _) in zip(finals, tried, strict=True)
                    if (one, size) == (task, rate)
                )
                for rate in task.rates
            }
            best[task] = min(means, key=lambda rate: _or_inf(means[rate]))
    return [best.get(lane, lane.rates[0] if lane.rates else None) for lane in lanes]


def _or_inf(loss: float) -> float:
    return math.inf if math.isnan(loss) else loss


def _row(step: int, mean: float, rate: float, seconds: float, *, ended: bool) -> Row:
    log = math.log10(max(mean, FLOOR)) if math.isfinite(mean) else mean
    metrics = {"train/loss": mean, "train/log10_loss": log}
    if ended:
        metrics |= {"final/loss": mean, "final/log10_loss": log, "final/rate": rate}
    return Row(step, step, seconds, metrics)


TASK = OnlineMemoryTask
