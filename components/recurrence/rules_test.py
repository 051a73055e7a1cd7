"""Every retention, step and bias equals a token loop written from its equation.

Outputs, last weights, last momentum and every gradient, in float64, with unequal widths where the
memory allows it and with gates at exactly 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablate.components.bias import L2, Dot, Huber, Lp, ValueShift
from ablate.components.dims import Dims
from ablate.components.feature_map import Identity
from ablate.components.inner_optimizer import (
    GradientDescent,
    ImplicitGradientDescent,
    Momentum,
    Muon,
    Nesterov,
)
from ablate.components.memory import GatedMLPMemory, MatrixMemory, MLPMemory
from ablate.components.neural_memory import NeuralMemory
from ablate.components.newton_schulz import NewtonSchulz
from ablate.components.nonlinear_retention import (
    BregmanSigmoid,
    ElasticNet,
    LqRetention,
    SimplexRetention,
    SoftThreshold,
)
from ablate.components.recurrence.chunked import run_chunked
from ablate.components.recurrence.coefficients import Gates
from ablate.components.recurrence.oracle import Definition, newton_schulz
from ablate.components.retention import ChannelRetention, ResetRetention, ScalarRetention
from ablate.components.window import OmegaWindow

ROWS, HEADS, KEY, VALUE = 2, 2, 4, 3
Loss = Callable[[Tensor, Tensor], Tensor]
Pick = tuple[type[nn.Module], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """One layer: classes with their options, and how its loss and weights are written."""

    memory: str = "matrix"
    optimizer: Pick = (GradientDescent, {})
    retention: Pick = (ScalarRetention, {})
    bias: Pick = (L2, {})
    window: int = 1
    chunk: int = 4
    tokens: int = 10
    read: str = "after"
    loss: Loss = field(default=lambda y, v: 0.5 * ((y - v) ** 2).sum(-1))
    weights: Callable[[nn.Module, Tensor], Tensor] = field(default=lambda _, a: a)
    shrink: Callable[[Tensor, Tensor], Tensor] = field(default=lambda z, _: z)


def _layer(case: Case) -> NeuralMemory:
    dims = Dims(5, HEADS, KEY, VALUE if case.memory == "matrix" else KEY)
    make = {
        "matrix": MatrixMemory,
        "mlp": partial(MLPMemory, expansion=2),
        "gated": partial(GatedMLPMemory, expansion=2),
    }
    optimizer: Any = case.optimizer[0](dims, **case.optimizer[1])
    layer = NeuralMemory(
        dims,
        memory=make[case.memory](dims, KEY),
        feature_map=Identity(dims),
        window=OmegaWindow(dims, length=case.window),
        bias=case.bias[0](dims, **case.bias[1]),  # type: ignore[arg-type]
        retention=case.retention[0](dims, **case.retention[1]),  # type: ignore[arg-type]
        inner_optimizer=optimizer,
        newton_schulz=NewtonSchulz(dims, steps=2) if isinstance(optimizer, Muon) else None,
        chunk=case.chunk,
        read=case.read,
    )
    generator = torch.Generator().manual_seed(7)
    for module in layer.modules():
        init: Any = getattr(module, "init_weights", None)
        if init is not None:
            init(lambda _: generator)
    return layer.double()


class Leaves:
    """Everything that a gradient is taken for."""

    def __init__(self, layer: NeuralMemory, case: Case) -> None:
        generator = torch.Generator().manual_seed(0)
        bth, dims = (ROWS, case.tokens, HEADS), layer.dims

        def normal(*shape: int, scale: float = 1.0) -> Tensor:
            drawn = torch.randn(*shape, dtype=torch.float64, generator=generator)
            return (drawn * scale).requires_grad_()

        def gate(*shape: int, zero: int | None = None, one: int | None = None) -> Tensor:
            drawn = torch.rand(*shape, dtype=torch.float64, generator=generator)
            for token, value in ((zero, 0.0), (one, 1.0)):
                if token is not None:
                    drawn[:, token] = value
            return drawn.requires_grad_()

        self.q, self.k, self.v = (normal(*bth, n) for n in (dims.key, dims.key, dims.value))
        side = layer.retention.side
        channels = () if side is None else (layer.retention.channels,)
        self.keep, self.lr = gate(*bth, *channels, zero=3, one=6), gate(*bth, zero=2)
        self.theta, self.gamma = gate(*bth, zero=4, one=7), gate(*bth, case.window, zero=8)
        self.delta = gate(*bth, 1)
        shapes = layer.memory.shapes
        self.weights = tuple(normal(ROWS, HEADS, *s, scale=0.5) for s in shapes)
        self.momentum = tuple(normal(ROWS, HEADS, *s, scale=0.2) for s in shapes)
        self.has_momentum = layer.inner_optimizer.has_momentum
        self.all = [self.q, self.k, self.v, self.keep, self.lr, self.gamma, *self.weights]
        self.all += [self.theta, *self.momentum] if self.has_momentum else []
        self.all += [self.delta] if layer.bias.extra else []
        self.all += [p for part in (layer.bias, layer.retention) for p in _own(part)]

    def target(self, layer: NeuralMemory) -> Tensor:
        return torch.cat([self.v, self.delta], dim=-1) if layer.bias.extra else self.v


def _own(part: nn.Module) -> list[Tensor]:
    return [p for name, p in part.named_parameters() if name in ("log_scale", "log_factor")]


def _run(layer: NeuralMemory, case: Case, x: Leaves) -> list[Tensor]:
    gates = Gates(x.keep, x.lr, x.theta if x.has_momentum else None, x.gamma)
    state = replace(
        layer.initial_state(ROWS, dtype=torch.float64),
        weights=x.weights,
        base=x.weights if case.chunk > 1 else (),
        momentum=x.momentum if x.has_momentum else (),
    )
    y, state = run_chunked(layer.rule(), x.q, x.k, x.target(layer), gates, state)
    return [y, *state.weights, *state.momentum]


def _output(weights: tuple[Tensor, ...], key: Tensor) -> Tensor:
    if len(weights) == 1:
        return torch.einsum("bhoi,bhi->bho", weights[0], key)
    hidden = nn.functional.gelu(torch.einsum("bhoi,bhi->bho", weights[0], key))
    if len(weights) == 3:
        hidden = hidden * torch.einsum("bhoi,bhi->bho", weights[1], key)
    return key + torch.einsum("bhoi,bhi->bho", weights[-1], hidden)


def _kept(layer: NeuralMemory, keep: Tensor, weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    side = layer.retention.side
    if side == "both":
        columns, rows = keep.split([KEY, keep.shape[-1] - KEY], dim=-1)
        return (torch.diag_embed(rows) @ weights[0] @ torch.diag_embed(columns),)
    if side is None:
        return tuple(keep[..., None, None] * w for w in weights)
    if side == "value":
        return tuple(torch.diag_embed(keep) @ w for w in weights)
    columns = {1: 1, 2: 1, 3: 2}[len(weights)]
    diagonal = torch.diag_embed(keep)
    return (
        *(w @ diagonal for w in weights[:columns]),
        *(diagonal @ w for w in weights[columns:]),
    )


def _read_now(
    layer: NeuralMemory, case: Case, a: tuple[Tensor, ...], inside: tuple[Tensor, ...], t: int
) -> tuple[Tensor, ...]:
    if layer.retention.applied == "chunk" and t % case.chunk:
        return inside
    return tuple(case.weights(layer.retention, w) for w in a)


def _loop(layer: NeuralMemory, case: Case, x: Leaves) -> list[Tensor]:
    optimizer, target = layer.inner_optimizer, x.target(layer)
    a, s, outputs = x.weights, x.momentum, []
    for t in range(case.tokens):
        keep, lr, theta = x.keep[:, t], x.lr[:, t], x.theta[:, t, :, None, None]
        if t % case.chunk == 0:
            if layer.retention.resets in ("memory", "both"):
                a = tuple(w.expand(ROWS, *w.shape) for w in layer.memory.initial())
            if layer.retention.resets in ("momentum", "both"):
                s = tuple(torch.zeros_like(m) for m in s)
            base = inside = tuple(case.weights(layer.retention, w) for w in a)
        if case.read == "before":
            outputs.append(_output(_read_now(layer, case, a, inside, t), x.q[:, t]))
        at = _kept(layer, keep, base) if optimizer.decayed else base
        at = tuple(w if w.requires_grad else w.requires_grad_() for w in at)
        total = torch.zeros((), dtype=torch.float64)
        for j in range(min(case.window, t + 1)):
            y = _output(at, x.k[:, t - j])
            total = total + (x.gamma[:, t, :, j] * case.loss(y, target[:, t - j])).sum()
        gradients = torch.autograd.grad(total, at, create_graph=True)
        if optimizer.implicit:
            lr = lr / (1 + lr * x.gamma[:, t, :, 0] * (x.k[:, t] ** 2).sum(-1))
        step = lr[..., None, None]
        if isinstance(optimizer, Muon):
            s = tuple(theta * m + g for m, g in zip(s, gradients, strict=True))
            how = Definition(bias="l2", chunk=1, window=1, step_inside=False, steps=2)
            write = tuple(step * newton_schulz(how, m) for m in s)
        elif optimizer.has_momentum:
            s = tuple(theta * m + step * g for m, g in zip(s, gradients, strict=True))
            write = s
            if optimizer.nesterov:
                write = tuple(theta * m + step * g for m, g in zip(s, gradients, strict=True))
        else:
            write = tuple(step * g for g in gradients)
        a, inside = (
            tuple(w - u for w, u in zip(_kept(layer, keep, old), write, strict=True))
            for old in (a, inside)
        )
        a = tuple(case.shrink(w, step) for w in a)
        if case.read == "after":
            outputs.append(_output(_read_now(layer, case, a, inside, t + 1), x.q[:, t]))
    return [torch.stack(outputs, dim=1), *a, *(s if x.has_momentum else ())]


def _simplex(retention: Any, a: Tensor) -> Tensor:
    powers = torch.exp(a) / torch.exp(a).sum(-1, keepdim=True)
    powers = powers - 1 / a.shape[-1] if retention.centred else powers
    return powers * torch.exp(retention.log_scale)[:, None, None] * math.sqrt(a.shape[-1])


def _lq(printed: bool, q: float) -> Callable[[nn.Module, Tensor], Tensor]:
    def weights(_: nn.Module, a: Tensor) -> Tensor:
        norm = ((a.abs() ** q).sum((-2, -1), keepdim=True) + 1e-6) ** (1 / q)
        power = a if printed else a.sign() * a.abs() ** (q - 1)
        return power / norm ** (q - 2)

    return weights


def _soft(z: Tensor, gamma: Tensor | float) -> Tensor:
    return torch.where(z.abs() > gamma, z - gamma * z.sign(), 0.0)


def _arctan(z: Tensor, gamma: Tensor | float) -> Tensor:
    safe = torch.as_tensor(gamma, dtype=z.dtype).clamp_min(1e-12)
    return z.abs() * torch.atan(z / safe) * 2 / math.pi


def _norm_huber(y: Tensor, t: Tensor) -> Tensor:
    length, delta = (y - t[..., :-1]).norm(dim=-1), t[..., -1]
    return torch.where(length <= delta, 0.5 * length**2, delta * (length - delta / 2))


def _cubic(y: Tensor, v: Tensor) -> Tensor:
    return (((y - v) ** 2 + 1e-6) ** 1.5).sum(-1) / 3


def _dot(y: Tensor, v: Tensor) -> Tensor:
    return -(y * v).sum(-1)


GD, DECAYED = (GradientDescent, {}), (GradientDescent, {"prediction": "decayed"})
MOMENTUM, NESTEROV, MUON = (Momentum, {}), (Nesterov, {}), (Muon, {})
BOTH = (ChannelRetention, {"side": "both"})
KEYS, VALUES = (ChannelRetention, {}), (ChannelRetention, {"side": "value"})
AT_ENDS = {"applied": "chunk"}
SIMPLEX = (SimplexRetention, {})
CASES = {
    "nesterov": Case(optimizer=NESTEROV, window=3),
    "nesterov mlp": Case("mlp", NESTEROV, window=2, chunk=3),
    "decayed": Case(optimizer=DECAYED),
    "online": Case(chunk=1, tokens=40),
    "online decayed": Case(optimizer=DECAYED, chunk=1, tokens=40),
    "online momentum": Case(optimizer=MOMENTUM, chunk=1, tokens=40),
    "online nesterov": Case(optimizer=NESTEROV, chunk=1),
    "implicit": Case(optimizer=(ImplicitGradientDescent, {}), chunk=1),
    "implicit frozen": Case(optimizer=(ImplicitGradientDescent, {"prediction": "undecayed"})),
    "key channels": Case(optimizer=MOMENTUM, retention=KEYS, window=3),
    "key channels dot": Case(retention=KEYS, window=2, bias=(Dot, {}), loss=_dot),
    "key channels online": Case(retention=KEYS, chunk=1, tokens=34),
    "key channels online momentum": Case(optimizer=MOMENTUM, retention=KEYS, chunk=1),
    "key channels online decayed": Case(optimizer=DECAYED, retention=KEYS, chunk=1),
    "key channels decayed": Case(optimizer=DECAYED, retention=KEYS),
    "key channels mlp": Case("mlp", MOMENTUM, KEYS, window=2),
    "key channels mlp nesterov": Case("mlp", NESTEROV, KEYS),
    "key channels gated": Case("gated", MOMENTUM, KEYS, window=2),
    "key channels read before": Case(retention=KEYS, read="before"),
    "online read before": Case(optimizer=DECAYED, chunk=1, tokens=34, read="before"),
    "value channels": Case(optimizer=MOMENTUM, retention=VALUES, window=3),
    "value channels online": Case(retention=VALUES, chunk=1),
    "value channels decayed": Case(optimizer=DECAYED, retention=VALUES),
    "both channels": Case(retention=BOTH),
    "both channels dot": Case(retention=BOTH, bias=(Dot, {}), loss=_dot, read="before"),
    "both channels online": Case(retention=BOTH, chunk=1),
    "both channels decayed": Case(optimizer=DECAYED, retention=BOTH, chunk=3),
    "simplex": Case(retention=SIMPLEX, window=2, weights=_simplex),
    "simplex online": Case(retention=SIMPLEX, chunk=1, weights=_simplex),
    "simplex mlp": Case("mlp", MOMENTUM, SIMPLEX, weights=_simplex),
    "simplex read before": Case("gated", retention=SIMPLEX, weights=_simplex, read="before"),
    "simplex muon": Case("mlp", MUON, SIMPLEX, weights=_simplex),
    "simplex centred": Case(retention=(SimplexRetention, {"centred": True}), weights=_simplex),
    "simplex at chunk ends": Case(
        "mlp", MOMENTUM, (SimplexRetention, AT_ENDS), window=2, weights=_simplex
    ),
    "simplex at chunk ends muon": Case(
        "mlp", MUON, (SimplexRetention, AT_ENDS), weights=_simplex, read="before"
    ),
    "lq at chunk ends": Case(
        retention=(LqRetention, AT_ENDS), weights=_lq(printed=False, q=4), chunk=1
    ),
    "bregman at chunk ends": Case(
        retention=(BregmanSigmoid, AT_ENDS), weights=lambda _, a: 1 / (1 + torch.exp(-a))
    ),
    "lq": Case(retention=(LqRetention, {}), weights=_lq(printed=False, q=4)),
    "lq mlp": Case("mlp", retention=(LqRetention, {"q": 3.0}), weights=_lq(printed=False, q=3)),
    "lq printed": Case(
        "mlp", MOMENTUM, (LqRetention, {"form": "printed"}), weights=_lq(printed=True, q=4)
    ),
    "soft threshold": Case(
        retention=(SoftThreshold, {"threshold": 0.2}), weights=lambda _, a: _soft(a, 0.2)
    ),
    "soft threshold smooth": Case(
        retention=(SoftThreshold, {"threshold": 0.2, "smooth": True}),
        weights=lambda _, a: _arctan(a, 0.2),
    ),
    "bregman": Case(
        "mlp", retention=(BregmanSigmoid, {}), weights=lambda _, a: 1 / (1 + torch.exp(-a))
    ),
    "elastic net": Case(
        window=2,
        retention=(ElasticNet, {"sparsity": 0.3}),
        shrink=lambda z, lr: _soft(z, 0.3 * lr),
    ),
    "elastic net momentum smooth": Case(
        "mlp",
        MOMENTUM,
        (ElasticNet, {"sparsity": 0.3, "smooth": True}),
        shrink=lambda z, lr: _arctan(z, 0.3 * lr),
    ),
    "elastic net muon": Case(
        "mlp", MUON, (ElasticNet, {"sparsity": 0.3}), shrink=lambda z, lr: _soft(z, 0.3 * lr)
    ),
    "reset both": Case("mlp", MOMENTUM, (ResetRetention, {})),
    "reset memory": Case(optimizer=MOMENTUM, retention=(ResetRetention, {"what": "memory"})),
    "reset momentum": Case("mlp", MOMENTUM, (ResetRetention, {"what": "momentum"})),
    "huber": Case("mlp", bias=(Huber, {}), loss=_norm_huber, window=3),
    "huber online": Case(bias=(Huber, {}), loss=_norm_huber, window=2, chunk=1),
    "cubic": Case("mlp", MUON, bias=(Lp, {}), loss=_cubic, window=2),
    "moneta": Case(
        "mlp",
        retention=(LqRetention, {"form": "printed"}),
        bias=(Lp, {}),
        loss=_cubic,
        weights=_lq(printed=True, q=4),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_layer_equals_its_equations(name: str) -> None:
    case = CASES[name]
    layer = _layer(case)
    x = Leaves(layer, case)
    got, want = _run(layer, case, x), _loop(layer, case, x)
    generator = torch.Generator().manual_seed(9)
    seeds = [torch.randn(w.shape, dtype=w.dtype, generator=generator) for w in want]
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-9, atol=1e-9)
    # A reset cuts the sequence's start off, and with it its gradient.
    got_grads = torch.autograd.grad(got, x.all, seeds, allow_unused=True)
    want_grads = torch.autograd.grad(want, x.all, seeds, allow_unused=True)
    for g, w in zip(got_grads, want_grads, strict=True):
        torch.testing.assert_close(_or_zero(g), _or_zero(w), rtol=1e-8, atol=1e-8)


def _or_zero(grad: Tensor | None) -> Tensor:
    return torch.zeros((), dtype=torch.float64) if grad is None else grad


def test_a_learned_value_shift_equals_its_equations() -> None:
    case = Case("mlp", bias=(ValueShift, {"delta": 0.3}), window=2)
    layer = _layer(case)
    bias: Any = layer.bias

    def loss(y: Tensor, v: Tensor) -> Tensor:
        square = ((y - v) ** 2).sum(-1)
        return 0.5 * square + 0.3 * torch.exp(bias.log_factor) * torch.sqrt(square + 1e-6)

    case = replace(case, loss=loss)
    x = Leaves(layer, case)
    got, want = _run(layer, case, x), _loop(layer, case, x)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-9, atol=1e-9)
    for g, w in zip(
        torch.autograd.grad(got[0].sum(), x.all),
        torch.autograd.grad(want[0].sum(), x.all),
        strict=True,
    ):
        torch.testing.assert_close(g, w, rtol=1e-8, atol=1e-8)
