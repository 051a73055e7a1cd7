"""What a model costs before it runs: parameters, state, arithmetic, and a probe of its speed."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ablate.components.state_size import state_bytes
from ablate.errors import UserError
from ablate.experiments.catalogue import make_task
from ablate.experiments.task import SequenceTask
from ablate.trial.build import build_model
from ablate.trial.space import Model
from ablate.trial.train import TrainConfig, run_steps, steps_of, token_loss

PROBE_STEPS = 2
REAL = 1e8


@dataclass(frozen=True)
class Cost:
    """What one model costs.

    Args:
        parameters: trainable and fixed numbers of the model.
        state_bytes: what it carries for one row after one context.
        flops_per_token: matrix products, convolutions and attention of one training step
            (forward and backward), for one token; elementwise work is not counted.
        seconds_per_trial: estimated on this machine, if it was probed.
    """

    parameters: int | None = None
    state_bytes: int | None = None
    flops_per_token: float | None = None
    seconds_per_trial: float | None = None


@dataclass(frozen=True)
class Probe:
    """How long a trial will take, and the losses of its first steps (equal losses: a no-op?)."""

    seconds: float
    losses: tuple[float, ...]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let PyTorch use `count` threads inside, and as many as before after."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Flops(TorchDispatchMode):
    """Sums the formulas of `torch.utils.flop_counter`.

    Its own FlopCounterMode imports torch's compiler first, which takes longer than the counting.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.total += formula(*args, **kwargs, out_val=out)
        return out


def measure_cost(
    model: Model, vocab: int, context: int, *, allow: Iterable[str] = (), where: str = ""
) -> Cost:
    """Build the model and count over one row of one context.

    Raises:
        UserError: a value that a constructor refuses.
    """
    key = json.dumps({**model, "name": ""}, sort_keys=True)
    try:
        return _measure(key, vocab, context, tuple(allow))
    except UserError as error:
        raise UserError(f"{where}: {error}" if where else str(error)) from error


@functools.lru_cache(maxsize=1024)
def _measure(model: str, vocab: int, context: int, allow: tuple[str, ...]) -> Cost:
    spec: Model = json.loads(model)
    device = "cpu" if _is_small(spec, context) else "meta"
    counter = _Flops()
    # Tensors this small are slower on many threads, and far slower on a busy machine.
    with threads(1):
        built = build_model(spec, vocab, seed=0, device=device, allow=allow)
        tokens = torch.zeros(1, context, dtype=torch.int64, device=device)
        # The CPU's fused attention has no formula in torch's table; the two products in it have.
        with counter, sdpa_kernel(SDPBackend.MATH):
            logits, state = built(tokens)
            token_loss(logits, tokens).backward()
    return Cost(
        parameters=sum(parameter.numel() for parameter in built.parameters()),
        state_bytes=state_bytes(state),
        flops_per_token=counter.total / context,
    )


def _is_small(model: Model, context: int) -> bool:
    """Whether a real step is quicker than the meta device, whose kernels are written in Python."""
    backbone = model["backbone"]
    return bool(backbone["dim"] ** 2 * backbone["layers"] * context < REAL)


def probe(config: dict[str, Any], *, cpus: int = 1, allow: Iterable[str] = ()) -> Probe:
    """Train two real steps (after one to warm up) and score once; say how long all will take.

    It runs on the CPU with `cpus` threads.
    """
    task = cast(SequenceTask, make_task(config["task"]["name"], config["task"]["args"]))
    train_config = TrainConfig(**config["train"])
    with threads(max(1, cpus)):
        model = build_model(config["model"], task.vocab, seed=0, allow=allow)
        steps = run_steps(model, task, train_config, seed=0, steps=PROBE_STEPS + 1)
        losses = [next(steps)]
        began = time.perf_counter()
        losses += list(steps)
        stepping = (time.perf_counter() - began) / PROBE_STEPS
        began = time.perf_counter()
        with torch.no_grad():
            task.score(model)
        scoring = time.perf_counter() - began
    seconds = stepping * steps_of(task) + scoring * train_config.evaluations
    return Probe(seconds, tuple(losses))
