"""A memory layer from short words, with weights drawn, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from ablate.components.bias import L2, Dot
from ablate.components.dims import Dims
from ablate.components.feature_map import Identity, Polynomial
from ablate.components.inner_optimizer import GradientDescent, Momentum, Muon
from ablate.components.memory import MatrixMemory, MLPMemory
from ablate.components.neural_memory import NeuralMemory
from ablate.components.newton_schulz import NewtonSchulz
from ablate.components.retention import ScalarRetention
from ablate.components.window import OmegaWindow

MakeLayer = Callable[..., NeuralMemory]


def _draw(layer: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for module in layer.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.4, generator=generator)
        init: Callable[..., None] | None = getattr(module, "init_weights", None)
        if init is not None:
            init(lambda _: generator)


def _make(
    memory: str = "mlp",
    optimizer: str = "muon",
    *,
    window: int = 3,
    chunk: int = 4,
    bias: str = "l2",
    degree: int = 2,
    key: int = 3,
    value: int | None = None,
    steps: int = 3,
    granularity: str | int = "token",
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> NeuralMemory:
    dims = Dims(model=5, heads=2, key=key, value=value or (key if memory == "mlp" else key - 1))
    features: Polynomial | Identity = (
        Polynomial(dims, degree=degree) if degree > 1 else Identity(dims)
    )
    kinds = {"gd": GradientDescent, "momentum": Momentum, "muon": Muon}
    if memory == "matrix":
        made: nn.Module = MatrixMemory(dims, features.width)
    else:
        made = MLPMemory(dims, features.width, expansion=2)
    orthogonal = NewtonSchulz(dims, steps=steps, granularity=granularity)
    layer = NeuralMemory(
        dims,
        memory=made,
        feature_map=features,
        window=OmegaWindow(dims, length=window),
        bias={"l2": L2, "dot": Dot}[bias](dims),
        retention=ScalarRetention(dims, init=2.0),
        inner_optimizer=kinds[optimizer](dims, lr_max=0.3),
        newton_schulz=orthogonal if optimizer == "muon" else None,
        chunk=chunk,
    )
    _draw(layer, seed)
    return layer.to(dtype)


@pytest.fixture(scope="session")
def make_layer() -> MakeLayer:
    return _make
