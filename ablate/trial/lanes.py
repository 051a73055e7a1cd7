"""Which trials can be lanes of one program, and how many of them a worker holds well."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from ablate.experiments.catalogue import make_task
from ablate.experiments.task import MemoryTask, PackableTask, SequenceTask
from ablate.trial.build import build_model
from ablate.trial.space import target_class
from ablate.trial.train import is_trained, token_loss

RATES = ("lr", "weight_decay", "warmup", "clip", "beta1", "beta2")
"""Settings of ``train`` that lanes may differ in: they are numbers of the program."""
MOST_LANES = 64
BUSY = 2**17
"""Numbers (rows x tokens x width) above which an operation on all lanes leaves the cache, and has
long hidden what starting it costs: more lanes bring nothing. Measured: docs/performance.md."""
FEWEST = 16
"""Room for fewer lanes means operations so large that a pack gains next to nothing."""
LENGTH = 9  # tokens of the probe
TOLERANCE = 1e-3  # of the probe's gradients, in float32
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
CACHE_BYTES = 2**21
"""Share of the last cache that is assumed where the system does not say."""


def shape_of(spec: dict[str, Any]) -> str | None:
    """Equal in trials that can share a program; None if the trial has to run alone."""
    if spec.get("alone") or int(spec.get("micro_batches") or 1) > 1:
        return None
    files = spec.get("files") or {}
    if files and (Path(files["study"]) / "checkpoints" / spec["id"]).exists():
        return None  # it goes on from there, which a pack cannot
    config = spec["config"]
    shared: dict[str, Any] = {key: spec.get(key) for key in ("resources", "allow")}
    if is_trained(config):
        train = {key: v for key, v in (config.get("train") or {}).items() if key not in RATES}
        model = _without_starts(config["model"], tuple(spec.get("allow") or ()))
        shared |= {"model": model, "task": config["task"], "train": train}
    else:
        task = make_task(config["task"]["name"], config["task"]["args"])
        if not isinstance(task, (MemoryTask, PackableTask)):
            return None
        model = config.get("model")
        shared |= {"model": model, "task": task.name, "learner": task.pack_key()}
    return json.dumps(shared, sort_keys=True, default=str)


def _without_starts(model: dict[str, Any], allow: tuple[str, ...]) -> dict[str, Any]:
    """The model without what its components name in ``starts``: such options set initial values
    and nothing else, so lanes may differ in them."""
    found = {}
    for axis, part in model.items():
        if isinstance(part, dict) and "_target_" in part:
            starts = getattr(target_class(part["_target_"], allow=allow), "starts", ())
            part = {key: value for key, value in part.items() if key not in starts}
        found[axis] = part
    return found


def most_lanes(spec: dict[str, Any]) -> int:
    """How many trials of this shape one worker runs well as a pack; 1 if a pack brings nothing."""
    config, resources = spec["config"], spec.get("resources") or {}
    task = make_task(config["task"]["name"], config["task"]["args"])
    if isinstance(task, MemoryTask):
        return MOST_LANES  # rows of one call, which saves what starting operations costs
    if config.get("model") is None:
        room = cache_share() // cast(PackableTask, task).lane_bytes()
        return max(1, min(MOST_LANES, room))
    if float(resources.get("gpus") or 0) > 0 and torch.cuda.is_available():
        return _lanes_of_gpu(spec, float(resources["gpus"]))
    sequences = cast(SequenceTask, task)
    width = sequences.batch * sequences.context * int(config["model"]["backbone"]["dim"])
    lanes = min(MOST_LANES, BUSY // width)
    return lanes if lanes >= FEWEST else 1


def _lanes_of_gpu(spec: dict[str, Any], share: float) -> int:
    """As many as fit into half of the trial's share of the free memory."""
    needed = (spec.get("cost") or {}).get("memory_bytes")
    if not needed:
        return 1
    free, whole = torch.cuda.mem_get_info()
    return max(1, min(MOST_LANES, int(min(free, share * whole) / 2 / needed)))


def cache_share() -> int:
    """Bytes of cache that one core can count on: its own, or half its part of the last one."""
    found = []
    for folder in CACHES.glob("index*"):
        try:
            size = int((folder / "size").read_text().strip().removesuffix("K")) * 1024
            sharers = _count((folder / "shared_cpu_list").read_text())
        except (OSError, ValueError):
            continue
        found.append(size if sharers == 1 else size // sharers // 2)
    return max(found, default=CACHE_BYTES)


def _count(cpus: str) -> int:
    """How many a list such as ``0-3,8`` names."""
    ends = [part.split("-") for part in cpus.strip().split(",")]
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)


def why_alone(specs: Sequence[dict[str, Any]]) -> str | None:
    """Why models of one shape cannot be lanes, in a few words; None if they can.

    The first and the last are differentiated as a pack and each alone, on the trial's kind of
    device where there is one here: a component may do what `torch.func.vmap` cannot map, or have a
    mapping rule that is wrong.
    """
    spec = specs[0]
    config = spec["config"]
    if not is_trained(config):
        return None
    task = cast(SequenceTask, make_task(config["task"]["name"], config["task"]["args"]))
    allow = tuple(spec.get("allow") or ())
    gpus = float((spec.get("resources") or {}).get("gpus") or 0)
    device = "cuda" if gpus and torch.cuda.is_available() else "cpu"
    models = [
        build_model(one["config"]["model"], task.vocab, seed=seed, device=device, allow=allow)
        for seed, one in enumerate((specs[0], specs[-1]))
    ]
    length = min(LENGTH, task.context)
    tokens = torch.arange(2 * (length + 1), device=device).reshape(2, 1, -1) % task.vocab
    inputs, targets = tokens[..., :-1], tokens[..., 1:]

    def loss(parameters: Any, buffers: Any, one: Any, wanted: Any) -> Any:
        logits = functional_call(models[0], (parameters, buffers), (one,))[0]
        return token_loss(logits, wanted)

    parameters, buffers = stack_module_state(models)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            slopes, _ = vmap(grad_and_value(loss))(parameters, buffers, inputs, targets)
    except Exception as problem:
        first = str(problem).strip().splitlines() or [""]
        return f"vmap fails on it ({type(problem).__name__}: {first[0][:120]})"
    for lane, model in enumerate(models):
        token_loss(model(inputs[lane])[0], targets[lane]).backward()
        for name, parameter in model.named_parameters():
            alone = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            gap = (slopes[name][lane] - alone).norm() / alone.norm().clamp(min=1e-6)
            if not gap <= TOLERANCE:
                return f"its gradient by {name} is another one under vmap"
    return None
