"""Layers to measure: one at one size, in words, so that another process can build it again.

A layer is a norm, three projections and a memory of one head, as titans-pytorch's is. A core is the
recurrence alone, on given queries, keys, values and gates, as fla's references are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ablate.components.bias import L2
from ablate.components.dims import Dims
from ablate.components.feature_map import Identity, Polynomial
from ablate.components.inner_optimizer import GradientDescent, InnerOptimizer, Momentum, Muon
from ablate.components.memory import MatrixMemory, MLPMemory
from ablate.components.neural_memory import NeuralMemory
from ablate.components.newton_schulz import NewtonSchulz
from ablate.components.recurrence.chunked import run_chunked
from ablate.components.recurrence.coefficients import Gates
from ablate.components.recurrence.oracle import Definition, run_oracle
from ablate.components.retention import NoRetention, ScalarRetention
from ablate.components.window import OmegaWindow
from benchmarks.peers import fla_reference, titans_pytorch


@dataclass(frozen=True)
class Case:
    """What is run.

    side: "layer", "core" or "oracle" of Ablate, "titans-pytorch", or "fla NAME". chunk: tokens
    whose gradients share one memory, for titans-pytorch those that share their gates. base: for
    titans-pytorch, tokens whose gradients share one memory; None for all of the call's. norm:
    M(k) = k + LN(W k) (TTT-Linear). forgets: whether the memory decays. span: chunks between
    states that are kept for the backward pass.
    """

    side: str
    dim: int = 64
    tokens: int = 2048
    chunk: int = 64
    window: int = 1
    degree: int = 1
    layers: int = 1
    optimizer: str = "momentum"
    steps: int = 5
    base: int | None = None
    norm: bool = False
    forgets: bool = True
    span: int | None = None


@dataclass(frozen=True)
class Runnable:
    """`call` gives outputs `[1 t ...]`; `leaves` are what it is differentiated by."""

    call: Callable[[], Tensor]
    leaves: list[Tensor]
    tokens: int

    def forward(self) -> Tensor:
        """Without autograd."""
        with torch.no_grad():
            return self.call()

    def both(self) -> tuple[Tensor | None, ...]:
        """Forward and backward, for every parameter and input."""
        y = self.call()
        weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
        return torch.autograd.grad((y * weight).sum(), self.leaves, allow_unused=True)


class Layer(nn.Module):
    """A norm, projections and our memory."""

    def __init__(self, memory: NeuralMemory) -> None:
        super().__init__()
        width = memory.dims.model
        self.norm = nn.RMSNorm(width)
        self.queries, self.keys, self.values = (
            nn.Linear(width, width, bias=False) for _ in range(3)
        )
        self.memory = memory

    def forward(self, x: Tensor) -> Tensor:
        """Mix `x`, b t m."""
        x = self.norm(x)
        q, k, v = (part(x).unsqueeze(2) for part in (self.queries, self.keys, self.values))
        y, _ = self.memory(q, k, v, x)
        mixed: Tensor = y.squeeze(2)
        return mixed


def neural_memory(case: Case) -> NeuralMemory:
    """Our memory, of one head, with its weights drawn."""
    dims = Dims(model=case.dim, heads=1, key=case.dim, value=case.dim)
    identity = case.degree == 1
    features = Identity(dims) if identity else Polynomial(dims, degree=case.degree)
    memory: nn.Module = (
        MatrixMemory(dims, features.width, norm=case.norm, residual=case.norm)
        if case.layers == 1
        else MLPMemory(dims, features.width, expansion=4, layers=case.layers, residual=False)
    )
    layer = NeuralMemory(
        dims,
        memory=memory,
        feature_map=features,
        window=OmegaWindow(
            dims,
            length=case.window,
            gates="reader" if case.window > 1 else "none",
            normalised=True,
        ),
        bias=L2(dims),
        retention=ScalarRetention(dims) if case.forgets else NoRetention(dims),
        inner_optimizer=_optimizer(case, dims),
        newton_schulz=NewtonSchulz(dims, steps=case.steps) if case.optimizer == "muon" else None,
        chunk=case.chunk,
    )
    generator = torch.Generator().manual_seed(0)
    for module in layer.modules():
        draw: Any = getattr(module, "init_weights", None)
        if draw is not None:
            draw(lambda _: generator)
    layer.span = case.span
    return layer


def _optimizer(case: Case, dims: Dims) -> InnerOptimizer:
    made: dict[str, Callable[[], InnerOptimizer]] = {
        "gd": lambda: GradientDescent(dims, lr_max=1 / case.dim),
        "decayed": lambda: GradientDescent(dims, lr_max=1 / case.dim, prediction="decayed"),
        "momentum": lambda: Momentum(dims, lr_max=1 / case.dim),
        "muon": lambda: Muon(dims, lr_max=1 / case.dim),
    }
    return made[case.optimizer]()


def make(case: Case) -> Runnable:
    """Build it, with the same inputs for the same size."""
    torch.manual_seed(0)  # titans-pytorch and nn.Linear draw from the global generator
    if case.side not in ("layer", "titans-pytorch"):
        return _core(case)
    x = torch.randn(1, case.tokens, case.dim).requires_grad_()
    if case.side == "layer":
        ours = Layer(neural_memory(case))
        return Runnable(lambda: ours(x), [x, *ours.parameters()], case.tokens)
    theirs = titans_pytorch(
        case.dim,
        chunk=case.chunk,
        layers=case.layers,
        momentum=case.optimizer != "gd",
        newton_schulz=case.optimizer == "muon",
        base=case.base,
        lr_max=1 / case.dim,
    )
    return Runnable(lambda: theirs(x)[0], [x, *theirs.parameters()], case.tokens)


def _core(case: Case) -> Runnable:
    shape = (1, case.tokens, 1)
    q, k, v = (torch.randn(*shape, case.dim) for _ in range(3))
    q, k = (nn.functional.normalize(part, dim=-1) for part in (q, k))
    lr, keep, theta = 0.5 * torch.rand(shape), 1 - 0.1 * torch.rand(shape), torch.rand(shape)
    keep = keep if case.forgets else torch.ones(shape)
    leaves = [part.requires_grad_() for part in (q, k, v, keep, lr, theta)]
    if case.side.startswith("fla "):
        reference = fla_reference(case.side.removeprefix("fla "), case.chunk)
        return Runnable(lambda: reference(*leaves), leaves, case.tokens)
    memory = neural_memory(case)
    run = {"core": _recurrence, "oracle": _oracle}[case.side](case, memory)

    def call() -> Tensor:
        decay = theta if memory.inner_optimizer.has_momentum else None
        gates = Gates(keep=keep, lr=lr, theta=decay, gamma=torch.ones(*shape, case.window))
        return run(q, k, v, gates)

    return Runnable(call, leaves, case.tokens)


Run = Callable[[Tensor, Tensor, Tensor, Gates], Tensor]


def _zero(memory: NeuralMemory) -> tuple[Tensor, ...]:
    """References start from nothing."""
    return tuple(torch.zeros(1, *w.shape) for w in memory.memory.initial())  # type: ignore[operator]


def _recurrence(case: Case, memory: NeuralMemory) -> Run:
    state = memory.initial_state(1)
    zero = _zero(memory)
    state = type(state)(**{**vars(state), "weights": zero, "base": zero if case.chunk > 1 else ()})
    return lambda q, k, v, gates: run_chunked(memory.rule(), q, k, v, gates, state)[0]


def _oracle(case: Case, memory: NeuralMemory) -> Run:
    definition = Definition(
        bias="l2",
        chunk=case.chunk,
        window=case.window,
        step_inside=memory.inner_optimizer.step_inside,
        steps=case.steps if case.optimizer == "muon" else None,
    )

    def run(q: Tensor, k: Tensor, v: Tensor, gates: Gates) -> Tensor:
        with torch.enable_grad():  # its inner gradients are autograd's
            features: Any = memory.feature_map
            return run_oracle(definition, features, q, k, v, gates, _zero(memory))[0]

    return run
