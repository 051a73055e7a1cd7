"""Checks of a model as something that a machine runs: number formats and the compiler."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jaxtyping
import torch
from torch import Tensor

from ablate.components.backbone import ProjectedMixer, unit
from ablate.components.state_size import tensors
from ablate.conformance.subject import Subject, check, gap
from ablate.trial.streams import torch_generator

TOLERANCE = 1e-9  # on logits of order 1 in float64
STATE_BOUND = 1e-4
PROMPT = 5


@check(
    "under bf16 autocast the state, and so the gates and scans that make it, stay in float32",
    "What a memory adds up loses every small part, and a gate near 1 becomes 1. Usual causes: a "
    "linear map or einsum inside the recurrence without autocast switched off, inputs that are "
    "not cast to float32 first. A cache that grows by its tokens may be in bf16.",
)
def check_precision(subject: Subject) -> tuple[bool, str]:
    """Feed mixers the same bf16 numbers in both formats, and compare what they carry."""
    model = subject.build(dtype=torch.float32)
    worst, wrong, count = 0.0, [], 0
    for layer in _mixers(model):
        inputs = _bf16_inputs(layer)
        with torch.no_grad():
            exact = _state(layer, [part.float() for part in inputs])
            with torch.autocast("cpu", torch.bfloat16):
                mixed = _state(layer, inputs)
                one, two = (_state(layer, [part[:, :n] for part in inputs]) for n in (1, 2))
        for wide, narrow in zip(exact, mixed, strict=True):
            if wide.dtype == narrow.dtype == torch.float32 and wide.numel():
                count += 1
                worst = max(worst, gap(wide, narrow) / max(1.0, wide.abs().max().item()))
        for first, second in zip(one, two, strict=False):
            if first.shape == second.shape and first.dtype in (torch.bfloat16, torch.float16):
                kind = type(layer.mixer).__name__
                wrong.append(f"{kind} carries {first.dtype} of shape {list(first.shape)}")
    measured = f"{count} tensors of state, largest relative difference {worst:.2g}"
    return not wrong and worst <= STATE_BOUND, "; ".join([measured, *wrong])


def _state(layer: ProjectedMixer, inputs: Sequence[Tensor]) -> list[Tensor]:
    return list(tensors(layer.mixer(*inputs)[1]))


def _mixers(model: torch.nn.Module) -> Iterator[ProjectedMixer]:
    """One of each class."""
    layers = (layer for layer in model.modules() if isinstance(layer, ProjectedMixer))
    yield from {type(layer.mixer): layer for layer in layers}.values()


def _bf16_inputs(layer: ProjectedMixer) -> list[Tensor]:
    dims, rows, length = layer.dims, 2, 9
    generator = torch_generator(0, "conformance/precision")

    def draw(*shape: int) -> Tensor:
        return torch.randn(rows, length, *shape, generator=generator)

    q, k = unit(draw(dims.heads, dims.key)), unit(draw(dims.heads, dims.key))
    inputs = (q, k, draw(dims.heads, dims.value), draw(dims.model))
    return [part.bfloat16() for part in inputs]


@check(
    "torch.compile gives the logits, gradients and state of the plain model",
    "A faster run would be another model. Usual causes: an operation in place that the graph "
    "reorders, a branch on torch.compiler.is_compiling(), a Python number that changes from call "
    "to call and is frozen into the graph, an autograd.Function that keeps things on itself.",
)
def check_compiled(subject: Subject) -> tuple[bool, str]:
    """Compile for a prompt, and go on from its state with the plain model.

    Graphs are captured and differentiated ahead of time; no machine code is made, which would take
    minutes and test the compiler more than the model. Breaks between graphs are allowed.
    """
    found = {False: subject.copy(), True: subject.copy()}
    logits, state = _run_compiled(found[True], subject.tokens[:, :PROMPT])
    plain, _ = found[False](subject.tokens[:, :PROMPT])
    plain.sin().sum().backward()
    with torch.no_grad():
        rest = found[False](subject.tokens[:, PROMPT:], state)[0]
    differ = {
        "logits": gap(logits, plain),
        "logits after its state": gap(rest, subject.logits[:, PROMPT:]),
    }
    for (name, one), other in zip(
        found[False].named_parameters(), found[True].parameters(), strict=True
    ):
        if one.grad is not None:
            differ[f"gradient of {name}"] = (
                torch.inf if other.grad is None else gap(one.grad, other.grad)
            )
    worst = max(differ, key=lambda name: differ[name])
    passed = all(value <= TOLERANCE for value in differ.values())
    return passed, f"largest difference {differ[worst]:.2g}" + ("" if passed else f" ({worst})")


def _run_compiled(model: torch.nn.Module, tokens: Tensor) -> tuple[Tensor, Any]:
    """Logits and state of a compiled call; gradients lie on the parameters of `model`."""
    torch.compiler.reset()
    try:
        with warnings.catch_warnings(), _unchecked_shapes():
            # The compiler says what it cannot see through, which is no fault of the model.
            warnings.simplefilter("ignore")
            logits, state = torch.compile(model, backend="aot_eager")(tokens)
            logits.sin().sum().backward()
    finally:
        torch.compiler.reset()
    return logits.detach(), state


@contextmanager
def _unchecked_shapes() -> Iterator[None]:
    """Without run-time checks of annotated shapes: they compare the compiler's stand-ins."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
