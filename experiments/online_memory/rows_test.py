from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ablate.components.bias import L2, Bias, Dot, Huber
from ablate.components.dims import Dims
from ablate.components.feature_map import Identity
from ablate.components.inner_optimizer import GradientDescent, InnerOptimizer, Momentum, Muon
from ablate.components.memory import GatedMLPMemory, MatrixMemory, MLPMemory
from ablate.components.neural_memory import NeuralMemory
from ablate.components.newton_schulz import NewtonSchulz
from ablate.components.recurrence.oracle import Definition, run_oracle
from ablate.components.retention import ResetRetention, Retention, ScalarRetention
from ablate.components.window import OmegaWindow
from ablate.experiments.online_memory.rows import MemoryRows

WIDTH, LENGTH = 4, 12
DIMS = Dims(model=3, heads=1, key=WIDTH, value=WIDTH)
STEPS = [0.05, 0.4, 0.1]


def layer_of(
    memory: Callable[..., nn.Module] = MLPMemory,
    optimizer: type[InnerOptimizer] = GradientDescent,
    *,
    bias: type[Bias] = L2,
    retention: Callable[[Dims], Retention] = ScalarRetention,
    window: int = 1,
    chunk: int = 1,
    seed: int = 0,
) -> NeuralMemory:
    muon = optimizer is Muon
    layer = NeuralMemory(
        DIMS,
        memory=memory(DIMS, WIDTH),
        feature_map=Identity(DIMS),
        window=OmegaWindow(DIMS, length=window, gates="none"),
        bias=bias(DIMS),
        retention=retention(DIMS),
        inner_optimizer=optimizer(DIMS, lr_max=0.2),
        newton_schulz=NewtonSchulz(DIMS, steps=3) if muon else None,
        chunk=chunk,
        read="before",
    )
    generator = torch.Generator().manual_seed(seed)
    for module in layer.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, generator=generator)
        if hasattr(module, "init_weights"):
            module.init_weights(lambda _: generator)
    return layer.double()


def pairs(rows: int, length: int = LENGTH) -> tuple[Tensor, Tensor]:
    drawn = np.random.default_rng(5).standard_normal((2, rows, length, WIDTH)) / WIDTH**0.5
    keys, values = torch.from_numpy(drawn)
    return keys, values


def run(layers: list[NeuralMemory], steps: Any, ends: tuple[int, ...] = (LENGTH,)) -> Tensor:
    rows = MemoryRows(layers, *pairs(len(layers)), steps=steps)
    return torch.cat([rows.advance(end)[0] for end in ends], dim=1)


def test_a_matrix_with_squared_errors_is_the_delta_rule() -> None:
    layers = [layer_of(MatrixMemory, seed=seed) for seed in range(3)]
    said = run(layers, STEPS).numpy()
    keys, values = (part.numpy() for part in pairs(3))
    kept = 1 / (1 + np.exp(-4.0))  # where the gate of retention starts
    for row, (layer, step) in enumerate(zip(layers, STEPS, strict=True)):
        weights = layer.memory.w[0].detach().numpy().copy()
        for t in range(LENGTH):
            np.testing.assert_allclose(said[row, t], weights @ keys[row, t], rtol=1e-9, atol=1e-12)
            error = weights @ keys[row, t] - values[row, t]
            weights = kept * weights - step * np.outer(error, keys[row, t])


@pytest.mark.parametrize(
    ("memory", "optimizer", "bias", "window", "chunk"),
    [
        (MatrixMemory, Momentum, L2, 1, 1),
        (MatrixMemory, GradientDescent, Dot, 4, 1),
        (MLPMemory, GradientDescent, L2, 4, 1),
        (MLPMemory, Muon, L2, 1, 1),
        (MLPMemory, Momentum, Dot, 3, 5),
        (GatedMLPMemory, Muon, L2, 4, 1),
    ],
)
def test_rows_equal_the_equations_token_by_token(
    memory: type[nn.Module],
    optimizer: type[InnerOptimizer],
    bias: type[Bias],
    window: int,
    chunk: int,
) -> None:
    layers = [
        layer_of(memory, optimizer, bias=bias, window=window, chunk=chunk, seed=seed)
        for seed in range(3)
    ]
    definition = Definition(
        bias="dot" if bias is Dot else "l2",
        chunk=chunk,
        window=window,
        step_inside=optimizer is not Muon,
        steps=3 if optimizer is Muon else None,
        gated=memory is GatedMLPMemory,
        residual=memory is not MatrixMemory,
        read_before=True,
    )
    keys, values = (part.unsqueeze(2) for part in pairs(3))
    nothing = torch.zeros(3, LENGTH, DIMS.model, dtype=torch.float64)
    gates, _ = layers[0].gates(nothing, layers[0].initial_state(3, dtype=torch.float64))
    rate = torch.tensor(STEPS, dtype=torch.float64)[:, None, None].expand_as(gates.lr)
    start = tuple(
        torch.cat(parts)
        for parts in zip(
            *(one.initial_state(1, dtype=keys.dtype).weights for one in layers), strict=True
        )
    )
    expected, _, _ = run_oracle(
        definition, lambda x: x, keys, keys, values, replace(gates, lr=rate), start
    )
    torch.testing.assert_close(
        run(layers, STEPS), expected.squeeze(2).detach(), rtol=1e-8, atol=1e-10
    )


@pytest.mark.parametrize("retention", [ScalarRetention, ResetRetention])
@pytest.mark.parametrize(("window", "chunk"), [(1, 1), (5, 1), (3, 4)])
def test_rows_equal_memories_alone_wherever_the_sequence_is_cut(
    retention: type[Retention], window: int, chunk: int
) -> None:
    layers = [
        layer_of(retention=retention, bias=Huber, window=window, chunk=chunk, seed=seed)
        for seed in range(3)
    ]
    together = run(layers, STEPS, (1, 3, 9, LENGTH))
    keys, values = pairs(3)
    for row, layer in enumerate(layers):
        alone = MemoryRows([layer], keys[row : row + 1], values[row : row + 1], steps=[STEPS[row]])
        expected = alone.advance(LENGTH)[0][0]
        torch.testing.assert_close(together[row], expected, rtol=1e-9, atol=1e-12)
    assert (together[0, -1] - together[1, -1]).abs().max() > 1e-3


def test_without_a_step_the_gate_says_it() -> None:
    layers = [layer_of(seed=0), layer_of(seed=0)]
    keys, values = (part[:1].expand(2, -1, -1) for part in pairs(1))
    rows = MemoryRows(layers, keys, values, steps=[None, 0.1])  # half of lr_max 0.2
    said, sizes = rows.advance(LENGTH)
    assert sizes.unique().tolist() == pytest.approx([0.1])
    torch.testing.assert_close(said[0], said[1])


def test_a_row_that_diverges_leaves_the_others_as_they_were() -> None:
    layers = [layer_of(seed=seed) for seed in range(3)]
    wild = run(layers, [0.05, 1e60, 0.1])
    assert not wild[1].isfinite().all()
    torch.testing.assert_close(wild[[0, 2]], run(layers, STEPS)[[0, 2]], rtol=1e-12, atol=0)
