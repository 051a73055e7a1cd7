"""Train one sequence model for its budget of tokens: AdamW, warm-up, cosine, clipped gradients."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ablate.experiments.task import Row, SequenceTask
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


def train(
    model: nn.Module,
    task: SequenceTask,
    config: TrainConfig,
    *,
    seed: int,
    report: Callable[[Row], None],
    warn: Callable[[str], None] = lambda text: None,
) -> None:
    """Train `model` in place and report a row at each evaluation.

    A row's seconds are those spent in training steps, without the evaluations.

    Raises:
        Diverged: a loss or a metric is NaN or infinite; the row that shows it is reported first.
        MetricError: the task scored something that is no number.
    """
    steps = steps_of(task)
    evaluations = min(config.evaluations, steps)
    marks = {math.ceil(steps * part / evaluations) for part in range(1, evaluations + 1)}
    losses: list[float] = []
    last: tuple[int, dict[str, float]] = (0, {})
    clock, began = 0.0, time.perf_counter()
    for step, loss in enumerate(run_steps(model, task, config, seed=seed, steps=steps), start=1):
        losses.append(loss)
        bad = not math.isfinite(loss)
        if not bad and step not in marks:
            continue
        clock += time.perf_counter() - began
        metrics = {"train/loss": loss if bad else sum(losses) / len(losses)}
        if not bad:
            metrics |= _score(model, task, warn)
        report(Row(step, step * task.batch * task.context, clock, metrics))
        if names := non_finite(metrics):
            if bad and len(losses) > 1:
                last = (step - 1, last[1] | {"train/loss": losses[-2]})
            raise Diverged(step, names, last[1], last[0])
        last, losses, began = (step, metrics), [], time.perf_counter()


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
    """Do `steps` optimiser steps and yield each one's loss, in nats per scored token.

    A loss that is not finite is yielded too, but never stepped on.
    """
    optimizer = make_optimizer(model, config)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    device = parameters[0].device
    batches = task.batches(generator(seed, "data"))
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = config.lr * schedule(step, steps, config.warmup)
        inputs, targets = (torch.as_tensor(part).to(device) for part in next(batches))
        loss = token_loss(model(inputs)[0], targets)
        value = loss.item()
        if math.isfinite(value):
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, config.clip)
            optimizer.step()
        yield value


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats over the tokens whose target is not -100, in float32 at least."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    return cross_entropy(logits.flatten(0, 1).to(wide), targets.flatten(), ignore_index=-100)


def schedule(step: int, steps: int, warmup: float) -> float:
    """The learning rate over its peak at `step` of `steps`: linear warm-up, then a cosine to 0."""
    rising = math.ceil(steps * warmup)
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW over all trainable parameters; only those with two dimensions or more decay."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2))
