"""How long a trial takes on this machine: estimated from what is counted, or probed."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from ablate.experiments.catalogue import make_task
from ablate.experiments.task import SequenceTask
from ablate.trial.build import build_model
from ablate.trial.cost import Work, threads
from ablate.trial.train import TrainConfig, run_steps, steps_of

PROBE_STEPS = 2
FORWARD = 1 / 3  # of a training step, the rest is backward


@dataclass(frozen=True)
class Rates:
    """What this machine does with one thread or more: FLOP/s, bytes/s, seconds an operation."""

    flops: float
    bytes: float
    operation: float


@dataclass(frozen=True)
class Probe:
    """How long a trial will take, and what its first steps show.

    Args:
        seconds: of the whole trial.
        losses: of the first steps; equal losses are a sign of equal models.
        unreached: parameters that no gradient has reached.
    """

    seconds: float
    losses: tuple[float, ...]
    unreached: tuple[str, ...] = ()


@functools.lru_cache(maxsize=8)
def machine_rates(cpus: int = 1) -> Rates:
    """Time a matrix product, a sum and a tiny sum with `cpus` threads, once; 0.1 s."""
    with threads(cpus):
        square, long, tiny = torch.ones(512, 512), torch.ones(1 << 22), torch.ones(8)
        tracked = torch.ones(8, requires_grad=True)
        product = _best(lambda: square @ square)
        add = _best(lambda: long + 1.0)
        small = _best(lambda: [tracked * tiny for _ in range(100)]) / 100
    return Rates(2 * 512**3 / product, long.numel() * 4 / add, small)


def _best(action: Callable[[], object]) -> float:
    """The shortest of a few runs, which other programs disturbed least."""
    times = []
    for _ in range(4):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)


def estimate_seconds(
    work: Work, task: SequenceTask, config: TrainConfig, *, scored: int, cpus: int = 1
) -> float:
    """A trial's time from its counts and this machine's rates; right to a factor of a few.

    Args:
        work: one training step of one row.
        scored: tokens that the model reads each time it is scored.
    """
    rates = machine_rates(cpus)
    compute = work.flops / rates.flops + work.written / rates.bytes
    step = work.operations * rates.operation + task.batch * compute
    return step * _steps(task, config, scored)


def gpu_seconds(
    work: Work, task: SequenceTask, config: TrainConfig, *, scored: int, rate: float
) -> float:
    """A trial's time on GPUs that are not here: its operations at `rate` a second, nothing else.

    Small matrices do not reach that rate, so for most memories the true time is longer.
    """
    return work.flops * task.batch / rate * _steps(task, config, scored)


def _steps(task: SequenceTask, config: TrainConfig, scored: int) -> float:
    """All that a trial does, training and scoring, in training steps."""
    scorings = config.evaluations * scored / (task.batch * task.context)
    return steps_of(task) + FORWARD * scorings


class _Reader(nn.Module):
    """Stands in for a model and counts the tokens that it is given."""

    reconstructs = True

    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.vocab = vocab
        self.tokens = 0

    def forward(self, tokens: Tensor, state: object = None) -> tuple[Tensor, None]:
        """Say that all tokens are as likely."""
        self.tokens += tokens.numel()
        return torch.zeros(1, 1, 1).expand(*tokens.shape, self.vocab), None


def score_tokens(task: SequenceTask) -> int:
    """Tokens that a model reads when `task` scores it once: it says so, or a stand-in counts."""
    if (known := getattr(task, "scored_tokens", None)) is not None:
        return int(known())
    reader = _Reader(task.vocab)
    with torch.no_grad():
        task.score(reader)
    return reader.tokens


def probe(
    config: dict[str, Any], *, scored: int, cpus: int = 1, allow: Iterable[str] = ()
) -> Probe:
    """Train two real steps (after one to warm up) and read one batch; say how long all will take.

    It runs on the CPU with `cpus` threads.

    Args:
        config: of a cell: model, task, train.
        scored: tokens that the model reads each time it is scored.
    """
    task = cast(SequenceTask, make_task(config["task"]["name"], config["task"]["args"]))
    train = TrainConfig(**config["train"])
    with threads(max(1, cpus)):
        model = build_model(config["model"], task.vocab, seed=0, allow=allow)
        steps = run_steps(model, task, train, seed=0, steps=PROBE_STEPS + 1)
        losses = [next(steps)]
        began = time.perf_counter()
        losses += list(steps)
        step = (time.perf_counter() - began) / PROBE_STEPS
        unreached = tuple(
            name
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any())
        )
        began = time.perf_counter()
        with torch.no_grad():
            model(torch.zeros(task.batch, task.context, dtype=torch.int64))
        read = (time.perf_counter() - began) / (task.batch * task.context)
    seconds = step * steps_of(task) + read * scored * train.evaluations
    return Probe(seconds, tuple(losses), unreached)
