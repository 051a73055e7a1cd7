"""Memories that pairs are written into, one layer or more on features, and who writes them.

    M(k) = W_L gelu( ... gelu(W_1 phi(k)))       loss = 1/2 sum_i |M(k_i) - v_i|^2

A write is one pass: a step on the gradient of all pairs together (Atlas App. C). Everything here is
in float64, so that an error of zero is told from a small one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import gelu

from ablate.components.dims import Dims
from ablate.components.feature_map import Polynomial
from ablate.components.newton_schulz import orthogonalise

FeatureMap: TypeAlias = Literal["identity", "monomial", "kronecker", "elementwise"]
Writer: TypeAlias = Literal["exact", "gd", "momentum", "muon", "adam"]
Weights: TypeAlias = list[Tensor]
Step: TypeAlias = Callable[[Weights, Weights, float], None]

KEPT = {"gd": 0.0, "momentum": 0.9, "muon": 0.95}
NEWTON_SCHULZ_STEPS = 5
ADAM = (0.9, 0.99, 1e-12)


def lift(keys: Float[Tensor, "n d"], feature_map: FeatureMap, degree: int) -> Float[Tensor, "n f"]:
    """The features of each key, by the components' own maps (Atlas Eq. 4-5)."""
    if feature_map == "identity":
        return keys
    dims = Dims(model=1, heads=1, key=keys.shape[1], value=1)
    made = Polynomial(dims, degree=degree, construction=feature_map, learnable=False).double()
    lifted: Tensor = made(keys)
    return lifted


def read(weights: Weights, features: Float[Tensor, "n f"]) -> Float[Tensor, "n e"]:
    """What the memory says to each key."""
    for weight in weights[:-1]:
        features = gelu(features @ weight.T)
    said: Tensor = features @ weights[-1].T
    return said


def write_exactly(
    features: Float[Tensor, "n f"], values: Float[Tensor, "n e"]
) -> Float[Tensor, "e f"]:
    """The matrix with the least squared error, and of those the smallest: V^T pinv(phi(K))^T."""
    inverse: Tensor = torch.linalg.pinv(features)
    return (inverse @ values).T


def write(
    weights: Weights,
    features: Float[Tensor, "n f"],
    values: Float[Tensor, "n e"],
    *,
    writer: Writer,
    lr: float,
    passes: int,
) -> Iterator[Float[Tensor, " n"]]:
    """Write all pairs, pass by pass, in place: squared errors before each pass and after the last.

    Gradient descent and momentum step by `lr` over the features' largest eigenvalue, so that 1 is
    stable for a matrix without momentum. Muon and Adam take steps of a fixed size, which falls
    linearly to zero; without that they could not settle.
    """
    step = _adam(weights) if writer == "adam" else _momentum(weights, writer)
    scale = 1.0
    if writer in ("gd", "momentum"):
        scale = 1 / torch.linalg.matrix_norm(features, ord=2).square().item()
    for done in range(passes):
        for weight in weights:
            weight.requires_grad_()
        errors = (read(weights, features) - values).square().sum(-1)
        gradients = torch.autograd.grad(0.5 * errors.sum(), weights)
        yield errors.detach()
        falling = 1 - done / passes if writer in ("muon", "adam") else 1.0
        with torch.no_grad():
            step(weights, list(gradients), lr * scale * falling)
    with torch.no_grad():
        yield (read(weights, features) - values).square().sum(-1)


def _momentum(weights: Weights, writer: Writer) -> Step:
    sums = [torch.zeros_like(weight) for weight in weights]
    kept = KEPT[writer]

    def step(weights: Weights, gradients: Weights, lr: float) -> None:
        for weight, gradient, total in zip(weights, gradients, sums, strict=True):
            total.mul_(kept).add_(gradient)
            made = orthogonalise(total, steps=NEWTON_SCHULZ_STEPS) if writer == "muon" else total
            weight.sub_(made, alpha=lr)

    return step


def _adam(weights: Weights) -> Step:
    moments = [(torch.zeros_like(weight), torch.zeros_like(weight)) for weight in weights]
    first_kept, second_kept, eps = ADAM
    count = 0

    def step(weights: Weights, gradients: Weights, lr: float) -> None:
        nonlocal count
        count += 1
        for weight, gradient, (first, second) in zip(weights, gradients, moments, strict=True):
            first.lerp_(gradient, 1 - first_kept)
            second.lerp_(gradient.square(), 1 - second_kept)
            size = (second / (1 - second_kept**count)).sqrt_().add_(eps)
            weight.addcdiv_(first, size, value=-lr / (1 - first_kept**count))

    return step
