"""An MLP that learns online: one optimiser step on each pair, its loss noted before the step.

The optimisers are PyTorch's own. The backward pass is written out, since a pair's gradient is one
outer product per layer; all weights lie in one flat parameter, so that a step is one fused call.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import gelu

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
        shapes = list(zip(widths[1:], widths[:-1], strict=True))
        flat = np.concatenate(
            [draws.uniform(-1, 1, rows * columns) / columns**0.5 for rows, columns in shapes]
        )
        self._flat = torch.nn.Parameter(torch.from_numpy(flat).to(dtype))
        self._flat.grad = torch.zeros_like(self._flat)
        self.weights = _matrices(self._flat.detach(), shapes)
        self.gradients = _matrices(self._flat.grad, shapes)
        self._optimizer = _make_optimizer(optimizer, self._flat, lr)

    @torch.no_grad()
    def step(self, x: Float[Tensor, " d"], target: Float[Tensor, " d"]) -> Float[Tensor, ""]:
        """Take one step on |M(x) - o|^2 / |o|^2 and return its value before the step."""
        loss = self.backward(x, target)
        self._optimizer.step()
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


def _matrices(flat: Tensor, shapes: list[tuple[int, int]]) -> list[Tensor]:
    parts = torch.split(flat, [rows * columns for rows, columns in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _make_optimizer(name: OptimizerName, flat: Tensor, lr: float) -> torch.optim.Optimizer:
    if name == "adam":
        return torch.optim.Adam([flat], lr=lr, fused=True)
    if name == "rmsprop":
        return torch.optim.RMSprop([flat], lr=lr, foreach=False)
    return torch.optim.SGD([flat], lr=lr, fused=True)
