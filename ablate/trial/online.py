"""Trials of a memory that learns alone (`ablate.experiments.task.MemoryTask`): its layer and costs.

The layer is that of a model, without the block around it: no projections, no convolution. It reads
each token before it writes it, whatever the model's `read` says.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import Any, cast

from ablate.components.backbone import Backbone
from ablate.components.memory_layer import MemoryLayer
from ablate.components.state_size import state_bytes
from ablate.errors import UserError
from ablate.experiments.task import Draw, Draws, MemoryTask, SequenceTask, Task
from ablate.trial.build import initialise, make_mixer, make_part
from ablate.trial.cost import Cost, measure_cost
from ablate.trial.space import ALONE, Model, resolve
from ablate.trial.streams import generator

HELD_OUT = 2**31
"""Seeds from here on are those of held-out draws: a study's are smaller."""


def memory_layer(model: Model, *, allow: Iterable[str] = ()) -> MemoryLayer[Any]:
    """The memory of a model, without values yet.

    Raises:
        UserError: a value or combination that a constructor refuses, or a model whose memory
            cannot learn from keys and values alone.
    """
    allow = tuple(allow)
    spec = resolve(model, allow=allow)
    if spec["hybrid"]["_target_"] != ALONE["_target_"]:
        raise UserError("hybrid: a memory learns alone here; leave the hybrid out.")
    if spec["read"] is not None:
        spec["read"] = "before"
    backbone = make_part("backbone", spec["backbone"], allow=allow, where="")
    assert isinstance(backbone, Backbone)
    layer = make_mixer(spec, backbone, allow, "")
    if not isinstance(layer, MemoryLayer):
        raise UserError(
            f"memory: {type(layer).__name__} is no memory that writes by an inner optimiser."
        )
    if layer.dims.heads != 1:
        raise UserError(
            f"backbone.heads={layer.dims.heads}: one memory learns here; set "
            "model_args.backbone.heads: 1."
        )
    if layer.inner_optimizer.steps > 1 or layer.retention.ties:
        raise UserError(
            "several steps for each token and tied retention make keys from the block's "
            "input, but here the keys are given."
        )
    return layer


def memory_cost(model: Model, *, allow: Iterable[str] = (), where: str = "") -> Cost:
    """What one sequence carries; nothing is trained, so there are no parameters to count.

    Raises:
        UserError: see `memory_layer`.
    """
    try:
        return _count(json.dumps(model, sort_keys=True), tuple(allow))
    except UserError as error:
        raise UserError(f"{where}: {error}" if where else str(error)) from error


def cost_of(model: Model | None, task: Task, *, allow: Iterable[str] = (), where: str = "") -> Cost:
    """What a trial of a model costs on any kind of task; nothing is known of a task's own learner.

    Raises:
        UserError: a value or combination that a constructor refuses.
    """
    if model is None:
        return Cost()
    if isinstance(task, MemoryTask):
        return memory_cost(model, allow=allow, where=where)
    rows = cast(SequenceTask, task)
    return measure_cost(model, rows.vocab, rows.context, batch=rows.batch, allow=allow, where=where)


@functools.lru_cache(maxsize=4096)
def _count(model: str, allow: tuple[str, ...]) -> Cost:
    layer = memory_layer(json.loads(model), allow=allow)
    return Cost(state_bytes=state_bytes(layer.initial_state(1)))


def draws_of(model: Model, seed: int, *, device: str, allow: Iterable[str] = ()) -> Draws:
    """A trial's own draw and the held-out ones, as `MemoryTask.learn` takes them."""

    def draw(number: int) -> Draw:
        chosen = HELD_OUT + number if number else seed
        layer = memory_layer(model, allow=allow)
        initialise(layer, chosen)
        return Draw(layer.to(device), lambda name: generator(chosen, name))

    return draw
