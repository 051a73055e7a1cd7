"""A memory layer from short words, with weights drawn, for the tests of this folder."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn

from ablate.components.bias import L2, Bias, Dot
from ablate.components.dims import Dims
from ablate.components.feature_map import Identity, Polynomial
from ablate.components.inner_optimizer import (
    GradientDescent,
    ImplicitGradientDescent,
    InnerOptimizer,
    LeastSquares,
    Momentum,
    Muon,
    Nesterov,
)
from ablate.components.memory import (
    GatedMLPMemory,
    MatrixMemory,
    MLPMemory,
    Output,
)
from ablate.components.multi_step import MultiStepGradientDescent
from ablate.components.neural_memory import NeuralMemory
from ablate.components.newton_schulz import NewtonSchulz
from ablate.components.retention import Retention, ScalarRetention
from ablate.components.vector_memory import VectorMemory
from ablate.components.window import OmegaWindow

MakeLayer = Callable[..., NeuralMemory]


MEMORIES: dict[str, Callable[..., nn.Module]] = {
    "matrix": MatrixMemory,
    "vector": VectorMemory,
    "matrix norm": functools.partial(MatrixMemory, residual=True, norm=True),
    "mlp": functools.partial(MLPMemory, expansion=2),
    "mlp of 1": functools.partial(MLPMemory, layers=1),
    "mlp of 3": functools.partial(MLPMemory, expansion=2, layers=3, residual=False),
    "mlp norm": functools.partial(MLPMemory, expansion=2, norm=True),
    "gated": functools.partial(GatedMLPMemory, expansion=2),
    "gated norm": functools.partial(GatedMLPMemory, expansion=2, residual=False, norm=True),
}

OPTIMIZERS: dict[str, Callable[..., InnerOptimizer]] = {
    "gd": GradientDescent,
    "constant": functools.partial(GradientDescent, gated=False),
    "multi step": MultiStepGradientDescent,
    "three steps": functools.partial(
        MultiStepGradientDescent, steps=3, prediction="undecayed", conv_width=2
    ),
    "decayed": functools.partial(GradientDescent, prediction="decayed"),
    "implicit": ImplicitGradientDescent,
    "least squares": LeastSquares,
    "momentum": Momentum,
    "nesterov": Nesterov,
    "muon": Muon,
}
SCALAR = functools.partial(ScalarRetention, init=2.0)


def _draw(layer: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for module in layer.modules():
        if isinstance(module, nn.Linear | nn.Conv1d):
            nn.init.normal_(module.weight, std=0.4, generator=generator)
        init: Callable[..., None] | None = getattr(module, "init_weights", None)
        if init is not None:
            init(lambda _: generator)
        if isinstance(module, Output) and module.norm:
            nn.init.normal_(module.gain, mean=1.0, std=0.3, generator=generator)
            nn.init.normal_(module.offset, std=0.3, generator=generator)


def _make(
    memory: str = "mlp",
    optimizer: str = "muon",
    *,
    window: int = 3,
    chunk: int = 4,
    bias: str | Callable[[Dims], Bias] = "l2",
    retention: Callable[[Dims], Retention] = SCALAR,
    degree: int = 2,
    constant: bool = True,
    rank: int | None = None,
    key: int = 3,
    value: int | None = None,
    steps: int = 3,
    granularity: str | int = "token",
    gates: str = "reader",
    border: str = "halo",
    read: str = "after",
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> NeuralMemory:
    dims = Dims(model=5, heads=2, key=key, value=value or (key - 1 if memory == "matrix" else key))
    features: Polynomial | Identity = (
        Polynomial(dims, degree=degree, constant=constant, rank=rank)
        if degree > 1
        else Identity(dims)
    )
    orthogonal = NewtonSchulz(dims, steps=steps, granularity=granularity)
    layer = NeuralMemory(
        dims,
        memory=MEMORIES[memory](dims, features.width),
        feature_map=features,
        window=OmegaWindow(dims, length=window, gates=gates, border=border),
        bias=({"l2": L2, "dot": Dot}[bias] if isinstance(bias, str) else bias)(dims),
        retention=retention(dims),
        inner_optimizer=OPTIMIZERS[optimizer](dims, lr_max=0.3),
        newton_schulz=orthogonal if optimizer == "muon" else None,
        chunk=chunk,
        read=read,
    )
    _draw(layer, seed)
    return layer.to(dtype)


@pytest.fixture(scope="session")
def make_layer() -> MakeLayer:
    return _make
