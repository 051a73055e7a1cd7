"""Train several sequence models of one shape as one program (`torch.func.vmap`).

The gradient is that of `ablate.trial.train.Loop`, mapped over lanes; AdamW and the clipping are
written out on one matrix ``[lane parameter]``, each lane with its own rates. Scoring is done model
by model, as it is alone.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from ablate.experiments.catalogue import make_task
from ablate.experiments.task import SequenceTask
from ablate.trial.packed import Pack
from ablate.trial.run import facts_of
from ablate.trial.train import (
    Loop,
    Progress,
    TrainConfig,
    evaluate,
    evaluated_steps,
    schedule,
    steps_of,
    token_loss,
)

EPS = 1e-8  # AdamW's, as PyTorch has it


def train_lanes(pack: Pack) -> None:
    """Train the pack's models; each lane reports what `ablate.trial.train.train` reports alone."""
    loops = [_loop(pack, lane) for lane in range(len(pack.trials))]
    pack.send()
    lanes = list(range(len(loops)))
    stacked = ModelLanes(loops)
    progress = [Progress() for _ in loops]
    steps = loops[0].steps
    marks = evaluated_steps(loops[0].config, steps)
    for step in range(steps):
        pack.tick()
        losses = stacked.step(step)
        share = pack.tick()
        for lane, loss in zip(lanes, losses, strict=True):
            progress[lane].step += 1
            progress[lane].seconds += share
            progress[lane].losses.append(loss)
        _report(pack, lanes, loops, progress, due=step + 1 in marks)
        running = [place for place, lane in enumerate(lanes) if not pack.trials[lane].ended]
        if len(running) < len(lanes):
            lanes = [lanes[place] for place in running]
            stacked.keep(torch.tensor(running))


def _report(
    pack: Pack, lanes: list[int], loops: list[Loop], progress: list[Progress], *, due: bool
) -> None:
    """Evaluate the lanes that are due, or whose loss is not finite; look whether any is to stop."""
    for lane in lanes:
        trial, done = pack.trials[lane], progress[lane]
        if due or not math.isfinite(done.losses[-1]):
            row = partial(evaluate, loops[lane], done, trial.row, trial.warnings.append)
            pack.attempt(lane, row)
        elif stop := trial.guard.wanted():
            trial.finish(stop)
    pack.send()


def _loop(pack: Pack, lane: int) -> Loop:
    """Build one lane's model and start its trial."""
    trial = pack.trials[lane]
    config, seed = trial.spec["config"], int(trial.spec["seed"])
    task = cast(SequenceTask, make_task(config["task"]["name"], config["task"]["args"]))
    model = trial.build(task.vocab)
    trial.start(trial.costs(task), facts_of(task))
    train = TrainConfig(**(config.get("train") or {}))
    return Loop(model, task, train, seed=seed, steps=steps_of(task))


class ModelLanes:
    """Models, their AdamW and their data, moved one step at a time, all by one program.

    Args:
        loops: one for each lane, of models with the same parts and tasks of the same shape. Their
            models always hold the lanes' weights.
    """

    def __init__(self, loops: Sequence[Loop]) -> None:
        self._loops = list(loops)
        first = loops[0].model
        named = [(name, p) for name, p in first.named_parameters() if p.requires_grad]
        # Those that decay come first, so that they are one block of columns.
        named.sort(key=lambda pair: pair[1].ndim < 2)
        self._shapes = {name: parameter.shape for name, parameter in named}
        self._decaying = sum(p.numel() for _, p in named if p.ndim >= 2)
        parameters, buffers = stack_module_state([loop.model for loop in loops])
        self._fixed = buffers | {
            name: value for name, value in parameters.items() if name not in self._shapes
        }
        weights = torch.cat([parameters[name].detach().flatten(1) for name in self._shapes], dim=1)
        self._gradient = vmap(grad_and_value(partial(_loss, first)))
        self._steps = 0
        self._hold(weights, torch.zeros_like(weights), torch.zeros_like(weights))

    def _hold(self, weights: Tensor, first: Tensor, second: Tensor) -> None:
        self._weights, self._first, self._second = weights, first, second
        sizes = [shape.numel() for shape in self._shapes.values()]
        parts = weights.split(sizes, dim=1)
        self._parameters = {
            name: part.unflatten(1, shape)
            for part, (name, shape) in zip(parts, self._shapes.items(), strict=True)
        }
        for lane, loop in enumerate(self._loops):
            for name, parameter in loop.model.named_parameters():
                if name in self._parameters:
                    parameter.data = self._parameters[name][lane]

    def keep(self, lanes: Int[Tensor, " kept"]) -> None:
        """Go on with these lanes only; what they hold stays as it is."""
        self._loops = [self._loops[lane] for lane in lanes.tolist()]
        lanes = lanes.to(self._weights.device)
        self._fixed = {name: value[lanes] for name, value in self._fixed.items()}
        self._hold(self._weights[lanes], self._first[lanes], self._second[lanes])

    def step(self, step: int) -> list[float]:
        """Do optimiser step number `step`, from 0; each lane's loss in nats per scored token."""
        drawn = [loop.draw() for loop in self._loops]
        device = self._weights.device
        inputs, targets = (
            torch.stack([torch.as_tensor(part) for part in parts]).to(device)
            for parts in zip(*drawn, strict=True)
        )
        with _mappable(device):
            slopes, losses = self._gradient(self._parameters, self._fixed, inputs, targets)
        gradient = torch.cat([slopes[name].flatten(1) for name in self._shapes], dim=1)
        self._update(gradient, step)
        found: list[float] = losses.tolist()
        return found

    @torch.no_grad()
    def _update(self, gradient: Float[Tensor, "lane p"], step: int) -> None:
        """Clip and step, in place, as `clip_grad_norm_` and `torch.optim.AdamW` do."""
        self._steps += 1
        configs = [loop.config for loop in self._loops]
        rate = self._column(
            [
                c.lr * schedule(step, loop.steps, c.warmup)
                for c, loop in zip(configs, self._loops, strict=True)
            ]
        )
        decay = self._column([config.weight_decay for config in configs])
        beta1 = self._column([config.beta1 for config in configs])
        beta2 = self._column([config.beta2 for config in configs])
        unbias1 = self._column([1 - config.beta1**self._steps for config in configs])
        unbias2 = self._column([1 - config.beta2**self._steps for config in configs])
        clip = self._column([config.clip for config in configs])
        norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
        gradient.mul_((clip / (norm + 1e-6)).clamp_(max=1))
        self._weights[:, : self._decaying].mul_(1 - rate * decay)
        self._first.lerp_(gradient, 1 - beta1)
        self._second.mul_(beta2).addcmul_(gradient, gradient * (1 - beta2))
        spread = self._second.sqrt().div_(unbias2.sqrt()).add_(EPS)
        self._weights.sub_(torch.div(self._first, spread, out=spread).mul_(rate / unbias1))

    def _column(self, values: list[float]) -> Float[Tensor, "lane 1"]:
        like = self._weights
        return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]


def _loss(
    model: nn.Module,
    parameters: dict[str, Tensor],
    fixed: dict[str, Tensor],
    inputs: Tensor,
    targets: Tensor,
) -> Tensor:
    return token_loss(functional_call(model, (parameters, fixed), (inputs,))[0], targets)


@contextmanager
def _mappable(device: torch.device) -> Iterator[None]:
    """Let PyTorch map every operation, without a word about those that it maps one by one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        if device.type == "cpu":
            # The flash kernel for the CPU has no rule for lanes; products and a softmax have.
            with sdpa_kernel(SDPBackend.MATH):
                yield
        else:
            yield
