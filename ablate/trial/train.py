"""Train one sequence model for its budget of tokens: AdamW, warm-up, cosine, clipped gradients."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ablate.experiments.task import UNSCORED, Batch, Row, SequenceTask
from ablate.trial.adamw import PlainAdamW
from ablate.trial.metrics import non_finite, to_floats
from ablate.trial.streams import generator


@dataclass(frozen=True)
class TrainConfig:
    """How the outer loop learns.

    Args:
        lr: peak learning rate of AdamW.
        weight_decay: on matrices only; norms, gates' offsets and other vectors have none.
        warmup: share of all steps over which the learning rate rises; then it falls as a cosine.
        clip: largest norm of the gradient.
        evaluations: how often the model is scored, the last time at the end.
        beta1: decay of AdamW's first moment.
        beta2: decay of AdamW's second moment.

    Raises:
        ValueError: a value outside its range.
    """

    lr: float = 3e-3
    weight_decay: float = 0.1
    warmup: float = 0.1
    clip: float = 1.0
    evaluations: int = 8
    beta1: float = 0.9
    beta2: float = 0.95

    def __post_init__(self) -> None:
        rules = {
            "lr": (self.lr > 0, "above 0"),
            "weight_decay": (self.weight_decay >= 0, "at least 0"),
            "warmup": (0 <= self.warmup < 1, "a share in [0, 1)"),
            "clip": (self.clip > 0, "above 0"),
            "evaluations": (self.evaluations >= 1, "at least 1"),
            "beta1": (0 <= self.beta1 < 1, "in [0, 1)"),
            "beta2": (0 <= self.beta2 < 1, "in [0, 1)"),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                raise ValueError(f"train.{name} is {getattr(self, name)!r}; it must be {rule}.")


class Diverged(Exception):
    """A loss or a metric stopped being finite."""

    def __init__(self, step: int, names: list[str], last: dict[str, float], last_step: int) -> None:
        kept = ", ".join(f"{name} {value:.6g}" for name, value in last.items()) or "none"
        at = f" (step {last_step})" if last else ""
        super().__init__(
            f"{', '.join(names)} not finite at step {step}; last finite values{at}: {kept}"
        )
        self.step = step
        self.last = last


def steps_of(task: SequenceTask) -> int:
    """Optimiser steps that use up the task's budget of tokens; at least one."""
    return max(1, math.ceil(task.tokens / (task.batch * task.context)))


def evaluated_steps(config: TrainConfig, steps: int) -> set[int]:
    """After which of so many steps the model is scored."""
    evaluations = min(config.evaluations, steps)
    return {math.ceil(steps * part / evaluations) for part in range(1, evaluations + 1)}


@dataclass
class Progress:
    """How far training is: with the model, the optimizer and the data, all it needs to go on.

    Args:
        step: optimiser steps taken.
        seconds: spent in them, without evaluations.
        losses: of the steps since the last row.
        last_step: step of the last row.
        last: its metrics.
        rows: reported so far.
    """

    step: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    last_step: int = 0
    last: dict[str, float] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)


class Loop:
    """A model, its optimizer and its data, which move one step at a time."""

    def __init__(
        self,
        model: nn.Module,
        task: SequenceTask,
        config: TrainConfig,
        *,
        seed: int,
        steps: int,
        micro_batches: int = 1,
    ) -> None:
        """Put the parts together; nothing is drawn or computed yet.

        Args:
            model: trained in place.
            task: where batches are from.
            config: how to learn.
            seed: of the data.
            steps: that the learning rate is spread over.
            micro_batches: parts that each batch is computed in, to save memory; the gradient is
                that of the whole batch.
        """
        self.model, self.task, self.config = model, task, config
        self.seed, self.steps, self.micro_batches = seed, steps, micro_batches
        self.optimizer = make_optimizer(model, config)
        self.parameters = [part for part in model.parameters() if part.requires_grad]
        self.rewind()
        model.train()

    def rewind(self) -> None:
        """Go back to the first batch."""
        self.generator = generator(self.seed, "data")
        self.batches = self.task.batches(self.generator)
        self.drawn = 0

    def draw(self) -> Batch:
        """The next batch."""
        self.drawn += 1
        return next(self.batches)

    def step(self, step: int) -> float:
        """Do optimiser step number `step`, from 0; the batch's loss in nats per scored token.

        A loss that is not finite is returned too, but never stepped on.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr * schedule(step, self.steps, self.config.warmup)
        device = self.parameters[0].device
        inputs, targets = (torch.as_tensor(part).to(device) for part in self.draw())
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._differentiate(inputs, targets)
        if math.isfinite(loss):
            nn.utils.clip_grad_norm_(self.parameters, self.config.clip)
            self.optimizer.step()
        return loss

    def _differentiate(self, inputs: Tensor, targets: Tensor) -> float:
        if self.micro_batches == 1:
            loss = token_loss(self.model(inputs)[0], targets)
            value = loss.item()
            if math.isfinite(value):
                loss.backward()
            return value
        scored = (targets != UNSCORED).sum()
        total = 0.0
        parts = inputs.chunk(self.micro_batches), targets.chunk(self.micro_batches)
        for rows, wanted in zip(*parts, strict=True):
            # Each part counts by its scored tokens, as it does in the mean over the whole batch.
            loss = token_loss(self.model(rows)[0], wanted, reduction="sum") / scored
            loss.backward()
            total += loss.item()
        return total


def _start(loop: Loop) -> Progress:
    return Progress()


def _go_on(loop: Loop, progress: Progress) -> None:
    pass


def train(
    model: nn.Module,
    task: SequenceTask,
    config: TrainConfig,
    *,
    seed: int,
    report: Callable[[Row], None],
    warn: Callable[[str], None] = lambda text: None,
    micro_batches: int = 1,
    begin: Callable[[Loop], Progress] = _start,
    after_step: Callable[[Loop, Progress], None] = _go_on,
) -> None:
    """Train `model` in place and report a row at each evaluation.

    A row's seconds are those spent in training steps, without the evaluations.

    Args:
        model: with its initial weights.
        task: what it learns.
        config: how.
        seed: of the data.
        report: takes each row.
        warn: takes each remark, in a line.
        micro_batches: parts that each batch is computed in.
        begin: may bring the loop to where an earlier run was, and says where that is; its rows are
            reported again.
        after_step: called between steps, when the loop is at rest.

    Raises:
        Diverged: a loss or a metric is NaN or infinite; the row that shows it is reported first.
        MetricError: the task scored something that is no number.
    """
    steps = steps_of(task)
    marks = evaluated_steps(config, steps)
    loop = Loop(model, task, config, seed=seed, steps=steps, micro_batches=micro_batches)
    progress = begin(loop)
    for row in progress.rows:
        report(row)
    while progress.step < steps:
        began = time.perf_counter()
        loss = loop.step(progress.step)
        progress.step += 1
        progress.losses.append(loss)
        progress.seconds += time.perf_counter() - began
        if not math.isfinite(loss) or progress.step in marks:
            evaluate(loop, progress, report, warn)
        after_step(loop, progress)


def evaluate(
    loop: Loop, progress: Progress, report: Callable[[Row], None], warn: Callable[[str], None]
) -> None:
    """Report a row: the mean loss since the last one and the score, or a loss that is not finite.

    Raises:
        Diverged: something in it is not finite.
    """
    step, losses, task = progress.step, progress.losses, loop.task
    bad = not math.isfinite(losses[-1])
    metrics = {"train/loss": losses[-1] if bad else sum(losses) / len(losses)}
    if not bad:
        metrics |= _score(loop.model, task, warn)
    row = Row(step, step * task.batch * task.context, progress.seconds, metrics)
    report(row)
    if names := non_finite(metrics):
        if bad and len(losses) > 1:
            last = progress.last | {"train/loss": losses[-2]}
            raise Diverged(step, names, last, step - 1)
        raise Diverged(step, names, progress.last, progress.last_step)
    progress.rows.append(row)
    progress.last_step, progress.last, progress.losses = step, metrics, []


def _score(model: nn.Module, task: SequenceTask, warn: Callable[[str], None]) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        metrics, gaps = to_floats(task.score(model))
    model.train()
    for name in gaps:
        warn(f"metric '{name}' was None: a gap in its curve")
    return metrics


def run_steps(
    model: nn.Module, task: SequenceTask, config: TrainConfig, *, seed: int, steps: int
) -> Iterator[float]:
    """Do `steps` optimiser steps and yield each one's loss, in nats per scored token."""
    loop = Loop(model, task, config, seed=seed, steps=steps)
    for step in range(steps):
        yield loop.step(step)


def token_loss(logits: Tensor, targets: Tensor, *, reduction: str = "mean") -> Tensor:
    """Cross-entropy in nats of the tokens whose target is not -100, in float32 at least.

    Args:
        logits: ``[b t vocab]``.
        targets: ``[b t]``.
        reduction: ``mean`` or ``sum`` over these tokens.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    return cross_entropy(
        logits.flatten(0, 1).to(wide),
        targets.flatten(),
        ignore_index=UNSCORED,
        reduction=reduction,
    )


def schedule(step: int, steps: int, warmup: float) -> float:
    """The learning rate over its peak at `step` of `steps`: linear warm-up, then a cosine to 0."""
    rising = math.ceil(steps * warmup)
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def is_trained(config: Mapping[str, Any]) -> bool:
    """Whether a trial trains a model; a task's own learner is none, a memory alone only learns."""
    return config.get("model") is not None and config.get("train", {}) is not None


def make_optimizer(model: nn.Module, config: TrainConfig) -> PlainAdamW:
    """AdamW over all trainable parameters; only those with two dimensions or more decay."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    return PlainAdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2))
