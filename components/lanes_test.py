"""The written-out derivatives under `torch.func.vmap`, as packed trials use them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from ablate.components.dims import Dims
from ablate.components.feature_map import Polynomial
from ablate.components.memory import gelu_and_slope
from ablate.components.newton_schulz import orthogonalise
from ablate.components.recurrence.coefficients import decay_matrix

POLYNOMIAL = Polynomial(Dims(8, 2, 4, 4), degree=3).double().requires_grad_(requires_grad=False)
with torch.no_grad():
    for parameter in POLYNOMIAL.parameters():
        parameter.fill_(0.3)


def both(x: Tensor) -> Tensor:
    value, slope = gelu_and_slope(x)
    return value * slope.sin()


@pytest.mark.parametrize("of_lanes", [(0,), (1,)])
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda s: orthogonalise(s, steps=5), (4, 3, 5)),
        (lambda s: orthogonalise(s, steps=3), (4, 5, 3)),
        (POLYNOMIAL, (6, 4)),
        (both, (6, 4)),
        (lambda rate: decay_matrix(rate.sigmoid()), (2, 3, 7)),
    ],
    ids=["wide", "tall", "polynomial", "gelu", "decay"],
)
def test_lanes_have_the_values_and_gradients_of_each_alone(
    function: Callable[[Tensor], Tensor], shape: tuple[int, ...], of_lanes: tuple[int]
) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(5, *shape, generator=generator, dtype=torch.float64)
    weight = torch.randn(function(x[0]).shape, generator=generator, dtype=torch.float64)

    def scored(one: Tensor) -> Tensor:
        return (function(one) * weight).sum()

    slopes, values = vmap(grad_and_value(scored), in_dims=of_lanes)(x.movedim(0, of_lanes[0]))
    for lane in range(5):
        alone = x[lane].clone().requires_grad_()
        value = scored(alone)
        (slope,) = torch.autograd.grad(value, alone)
        torch.testing.assert_close(values[lane], value, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(slopes[lane], slope, rtol=1e-10, atol=1e-12)
        assert slope.abs().max() > 1e-3
