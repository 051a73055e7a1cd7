"""The definition: one token after the other, from the equations, in plain torch.

Inner gradients come from autograd on the written-out loss of the window, at the memory of the
chunk's start. Slow and readable; it shares no arithmetic with the chunked form, which is tested
against it.

    S_n = theta_n S_{n-1} + a_n grad sum_{j<c} gamma_n[j] loss(M_base; k_{n-j}, v_{n-j})
    M_n = alpha_n M_{n-1} - b_n P(S_n),     y_n = M_n(q_n)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ablate.components.recurrence.coefficients import Gates

Weights = tuple[Tensor, ...]


@dataclass(frozen=True)
class Definition:
    """What is computed, in words.

    gated: weights are (W2, W3, W1), else layers of GELU from the first map on. residual: the key is
    added. norm: gain and offset (h e) of a layer norm before that. bias: "l2" or "dot".
    step_inside: the step multiplies the gradient, else the write. steps: Newton-Schulz steps, None
    to write the momentum at every token; `coefficients` are its (a, b, c), the last for all further
    steps, and `scale` the size of what it gives. group: tokens between orthogonalised writes.
    truncated: windows end at their chunk's start. read_before: y_n = M_{n-1}(q_n).
    """

    bias: str
    chunk: int
    window: int
    step_inside: bool
    steps: int | None = None
    coefficients: tuple[tuple[float, float, float], ...] = ((3.4445, -4.7750, 2.0315),)
    scale: str = "none"
    group: int = 1
    eps: float = 1e-7
    gated: bool = False
    truncated: bool = False
    read_before: bool = False
    residual: bool = False
    norm: tuple[Tensor, Tensor] | None = None


def output(definition: Definition, weights: Weights, key: Tensor, phi: Tensor) -> Tensor:
    """M(k) for one token of each row and head: `key` b h d, `phi` b h f -> b h e."""
    y = phi
    if definition.gated:
        w2, w3, w1 = weights
        gate = torch.einsum("bhof,bhf->bho", w3, phi)
        y = torch.einsum("bhoi,bhi->bho", w1, _gelu(torch.einsum("bhof,bhf->bho", w2, phi)) * gate)
    else:
        for j, w in enumerate(weights):
            y = torch.einsum("bhoi,bhi->bho", w, _gelu(y) if j else y)
    if definition.norm is not None:
        gain, offset = definition.norm
        variance = y.var(-1, correction=0, keepdim=True)
        y = gain * (y - y.mean(-1, keepdim=True)) / torch.sqrt(variance + 1e-6) + offset
    return key + y if definition.residual else y


def _gelu(z: Tensor) -> Tensor:
    return 0.5 * z * (1 + torch.erf(z / math.sqrt(2)))


def loss(definition: Definition, y: Tensor, v: Tensor) -> Tensor:
    """Loss of one token, b h."""
    if definition.bias == "l2":
        return 0.5 * ((y - v) ** 2).sum(-1)
    return -(y * v).sum(-1)


def newton_schulz(definition: Definition, s: Tensor) -> Tensor:
    """NS_k of every matrix, one at a time."""
    if not definition.steps:
        return s
    rows, done = s.reshape(-1, *s.shape[-2:]), []
    for matrix in rows:
        x = matrix / (torch.sqrt((matrix * matrix).sum()) + definition.eps)
        tall = x.shape[0] > x.shape[1]
        x = x.T if tall else x
        for step in range(definition.steps):
            a, b, c = definition.coefficients[min(step, len(definition.coefficients) - 1)]
            gram = x @ x.T
            x = a * x + b * gram @ x + c * gram @ gram @ x
        x = x.T if tall else x
        sizes = {"shape": (x.shape[0] / x.shape[1]) ** 0.5, "rms": 0.2 * max(x.shape) ** 0.5}
        size = sizes.get(definition.scale, 1.0)
        done.append(x * (max(1.0, size) if definition.scale == "shape" else size))
    return torch.stack(done).reshape(s.shape)


def run_oracle(
    definition: Definition,
    features: Callable[[Tensor], Tensor],
    q: Float[Tensor, "b t h d"],
    k: Float[Tensor, "b t h d"],
    v: Float[Tensor, "b t h e"],
    gates: Gates,
    weights: Weights,
    momentum: Weights | None = None,
) -> tuple[Float[Tensor, "b t h e"], Weights, Weights]:
    """Outputs, last weights and last momentum of a fresh sequence.

    `weights` and `momentum` are the memory before the first token, `[b h o i]` each.
    """
    if momentum is None:
        momentum = tuple(torch.zeros_like(w) for w in weights)
    phi_k, phi_q = features(k), features(q)
    base, pending, outputs = weights, torch.zeros_like(gates.lr[:, 0]), []
    for t in range(q.shape[1]):
        if t % definition.chunk == 0:
            base = tuple(w if w.requires_grad else w.detach().requires_grad_() for w in weights)
        total = torch.zeros((), dtype=v.dtype)
        reach = t % definition.chunk + 1 if definition.truncated else t + 1
        if definition.read_before:
            outputs.append(output(definition, weights, q[:, t], phi_q[:, t]))
        for j in range(min(definition.window, reach)):
            y = output(definition, base, k[:, t - j], phi_k[:, t - j])
            total = total + (gates.gamma[:, t, :, j] * loss(definition, y, v[:, t - j])).sum()
        gradients = torch.autograd.grad(total, base, create_graph=True)
        keep, lr = gates.keep[:, t, :, None, None], gates.lr[:, t, :, None, None]
        theta = 0.0 if gates.theta is None else gates.theta[:, t, :, None, None]
        inside = lr if definition.step_inside else 1.0
        outside = 1.0 if definition.step_inside else lr
        momentum = tuple(theta * s + inside * g for s, g in zip(momentum, gradients, strict=True))
        weights = tuple(keep * w for w in weights)
        if definition.steps is None:
            weights = tuple(w - outside * s for w, s in zip(weights, momentum, strict=True))
        else:
            pending = gates.keep[:, t] * pending + gates.lr[:, t]
            place = t % definition.chunk + 1
            if place % definition.group == 0 or place == definition.chunk:
                size = pending[..., None, None]
                weights = tuple(
                    w - size * newton_schulz(definition, s)
                    for w, s in zip(weights, momentum, strict=True)
                )
                pending = torch.zeros_like(pending)
        if not definition.read_before:
            outputs.append(output(definition, weights, q[:, t], phi_q[:, t]))
    return torch.stack(outputs, dim=1), weights, momentum
