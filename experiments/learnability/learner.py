"""An MLP that learns online: one optimiser step on each pair, its loss noted before the step.

The optimisers are PyTorch's own. The backward pass is written out, since a pair's gradient is one
outer product per layer; all weights lie in one flat tensor, so that a step is one fused call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import gelu
from torch.optim.adam import adam
from torch.optim.rmsprop import rmsprop

OptimizerName = Literal["adam", "rmsprop", "sgd"]


class OnlineMLP:
    """A bias-free MLP with exact GELU: y = W_L gelu( ... gelu(W_1 x)).

    Args:
        widths: of the input, each hidden layer and the output.
        optimizer: PyTorch's Adam, RMSprop or SGD, with its defaults.
        lr: learning rate.
        draws: initial weights are uniform in +-1/sqrt(fan in), as in `torch.nn.Linear`.
        dtype: of weights and inputs.
    """

    def __init__(
        self,
        widths: list[int],
        *,
        optimizer: OptimizerName,
        lr: float,
        draws: np.random.Generator,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        shapes = shapes_of(widths)
        weights = first_weights(widths, draws).to(dtype)
        gradient = torch.zeros_like(weights)
        self.weights = _matrices(weights, shapes)
        self.gradients = _matrices(gradient, shapes)
        self._update = make_update(optimizer, weights, gradient, Moments.blank(weights), lr)

    @torch.no_grad()
    def step(self, x: Float[Tensor, " d"], target: Float[Tensor, " d"]) -> Float[Tensor, ""]:
        """Take one step on |M(x) - o|^2 / |o|^2 and return its value before the step."""
        loss = self.backward(x, target)
        self._update()
        return loss

    @torch.no_grad()
    def backward(self, x: Float[Tensor, " d"], target: Float[Tensor, " d"]) -> Float[Tensor, ""]:
        """Set `gradients` to those of the normalised loss, and return the loss."""
        sums: list[Tensor] = []
        inputs = [x]
        for weight in self.weights[:-1]:
            sums.append(torch.mv(weight, inputs[-1]))
            inputs.append(gelu(sums[-1]))
        error = torch.mv(self.weights[-1], inputs[-1]).sub_(target)
        scale = torch.dot(target, target)
        loss = torch.dot(error, error) / scale
        delta = error.mul_(2 / scale)
        for layer in range(len(self.weights) - 1, -1, -1):
            torch.outer(delta, inputs[layer], out=self.gradients[layer])
            if layer:
                upstream = torch.mv(self.weights[layer].t(), delta)
                delta = torch.ops.aten.gelu_backward(upstream, sums[layer - 1])
        return loss


def shapes_of(widths: list[int]) -> list[tuple[int, int]]:
    """Rows and columns of each layer's matrix."""
    return list(zip(widths[1:], widths[:-1], strict=True))


def first_weights(widths: list[int], draws: np.random.Generator) -> Float[Tensor, " p"]:
    """All layers' initial weights behind each other, in float64."""
    drawn = [
        draws.uniform(-1, 1, rows * columns) / columns**0.5 for rows, columns in shapes_of(widths)
    ]
    return torch.from_numpy(np.concatenate(drawn))


def _matrices(flat: Tensor, shapes: list[tuple[int, int]]) -> list[Tensor]:
    parts = torch.split(flat, [rows * columns for rows, columns in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


class Moments(NamedTuple):
    """What an optimiser carries: running means of the gradient and its square, and the steps."""

    first: Tensor
    second: Tensor
    steps: Tensor

    @classmethod
    def blank(cls, weights: Tensor) -> Moments:
        """Those before the first step."""
        return cls(torch.zeros_like(weights), torch.zeros_like(weights), torch.tensor(0.0))


def make_update(
    name: OptimizerName, flat: Tensor, gradient: Tensor, moments: Moments, lr: float
) -> Callable[[], Any]:
    """One step of `torch.optim`'s optimiser of that name, with its defaults, in place.

    The functions behind the classes: making a class imports the compiler, which costs more than a
    whole curve.
    """
    first, second, steps = moments
    if name == "adam":
        return partial(
            adam,
            [flat],
            [gradient],
            [first],
            [second],
            [],
            [steps],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=lr,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )
    if name == "rmsprop":
        return partial(
            rmsprop,
            [flat],
            [gradient],
            [second],
            [],
            [],
            [steps],
            foreach=False,
            lr=lr,
            alpha=0.99,
            eps=1e-8,
            weight_decay=0.0,
            momentum=0.0,
            centered=False,
        )
    return partial(flat.add_, gradient, alpha=-lr)
