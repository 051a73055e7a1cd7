"""Several online MLPs of one shape, each on its own pairs, as one program: the lanes of a pack.

What `learner.OnlineMLP` does for one, step by step and with the same initial weights. A layer's
weights are one tensor ``[lane out in]``; its products with vectors are written as a multiplication
and a sum, several times faster here than batched matrix products, which are not made for single
columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import gelu

from ablate.experiments.learnability.learner import (
    Moments,
    OptimizerName,
    first_weights,
    make_update,
    shapes_of,
)


class MLPLanes:
    """Bias-free MLPs with exact GELU that learn side by side.

    Each lane has its own learning rate, though the optimisers know only one: a lane holds its
    weights over the share s of its rate in that one, so that a step of the common rate moves the
    weights themselves by s times as much.

    Args:
        widths: of the input, each hidden layer and the output.
        optimizer: PyTorch's Adam, RMSprop or SGD, with its defaults.
        rates: learning rate of each lane.
        draws: where each lane's initial weights come from.
        dtype: of weights and inputs.
    """

    def __init__(
        self,
        widths: list[int],
        *,
        optimizer: OptimizerName,
        rates: Sequence[float],
        draws: Sequence[np.random.Generator],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._shapes = shapes_of(widths)
        self._optimizer: OptimizerName = optimizer
        self._rate = rates[0]
        share = torch.tensor(rates, dtype=torch.float64)[:, None] / rates[0]
        self._share = None if bool((share == 1).all()) else share.to(dtype)
        drawn = torch.stack([first_weights(widths, draw) for draw in draws]) / share
        parts = drawn.to(dtype).split([rows * columns for rows, columns in self._shapes], dim=1)
        weights = torch.cat([part.flatten() for part in parts])
        self._hold(weights, Moments.blank(weights))

    def _hold(self, weights: Tensor, moments: Moments) -> None:
        gradient = torch.zeros_like(weights)
        self._weights, self._moments = weights, moments
        self._layers, self._gradients = self._split(weights), self._split(gradient)
        self._update = make_update(self._optimizer, weights, gradient, moments, self._rate)

    def _split(self, flat: Tensor) -> list[Tensor]:
        lanes = flat.numel() // sum(rows * columns for rows, columns in self._shapes)
        parts = flat.split([lanes * rows * columns for rows, columns in self._shapes])
        return [p.view(lanes, *shape) for p, shape in zip(parts, self._shapes, strict=True)]

    @property
    def weights(self) -> list[Float[Tensor, "lane out in"]]:
        """Each layer's weights."""
        if self._share is None:
            return self._layers
        return [layer * self._share[:, :, None] for layer in self._layers]

    @torch.no_grad()
    def keep(self, lanes: Int[Tensor, " kept"]) -> None:
        """Go on with these lanes only; what they hold stays as it is."""

        def kept(flat: Tensor) -> Tensor:
            return torch.cat([layer[lanes].flatten() for layer in self._split(flat)])

        first, second, steps = self._moments
        if self._share is not None:
            self._share = self._share[lanes]
        self._hold(kept(self._weights), Moments(kept(first), kept(second), steps))

    @torch.no_grad()
    def step(
        self, x: Float[Tensor, "lane d"], target: Float[Tensor, "lane d"]
    ) -> Float[Tensor, " lane"]:
        """Take one step in each lane on |M(x) - o|^2 / |o|^2; the values before the step."""
        sums: list[Tensor] = []
        inputs = [x]
        last = len(self._layers) - 1
        for layer in range(last):
            sums.append(self._product(layer, inputs[-1][:, None, :], dim=2))
            inputs.append(gelu(sums[-1]))
        error = self._product(last, inputs[-1][:, None, :], dim=2).sub_(target)
        scale = torch.linalg.vecdot(target, target)
        loss: Tensor = torch.linalg.vecdot(error, error).div_(scale)
        delta = error.mul_((2 / scale)[:, None])
        for layer in range(last, -1, -1):
            column = delta[:, :, None]
            if layer:
                upstream = self._product(layer, column, dim=1)
                delta = torch.ops.aten.gelu_backward(upstream, sums[layer - 1])
            torch.mul(column, inputs[layer][:, None, :], out=self._gradients[layer])
        self._update()
        return loss

    def _product(self, layer: int, vectors: Tensor, *, dim: int) -> Tensor:
        """Each lane's matrix times its vector, which lies along `dim`.

        The layer's gradient is not needed yet, and lends its memory.
        """
        room = self._gradients[layer]
        product: Tensor = torch.mul(self._layers[layer], vectors, out=room).sum(dim)
        return product if self._share is None else product.mul_(self._share)
