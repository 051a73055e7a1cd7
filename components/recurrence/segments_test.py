"""States that are kept or made again give the same numbers; nothing grows with tokens x weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablate.components.bias import L2
from ablate.components.dims import Dims
from ablate.components.feature_map import Polynomial
from ablate.components.inner_optimizer import Momentum, Muon
from ablate.components.memory import MatrixMemory, MLPMemory
from ablate.components.neural_memory import NeuralMemory
from ablate.components.newton_schulz import NewtonSchulz
from ablate.components.recurrence import segments
from ablate.components.retention import ScalarRetention
from ablate.components.window import OmegaWindow

T, D = 64, 16


def layer(kind: str, chunk: int = 4) -> NeuralMemory:
    torch.manual_seed(0)
    dims = Dims(model=D, heads=1, key=D, value=D)
    features = Polynomial(dims, degree=2)
    deep, muon = kind == "mlp", kind == "muon"
    memory: nn.Module = (MLPMemory if deep else MatrixMemory)(dims, features.width)
    made = NeuralMemory(
        dims, memory=memory, feature_map=features, window=OmegaWindow(dims, length=2),
        bias=L2(dims), retention=ScalarRetention(dims),
        inner_optimizer=(Muon if muon else Momentum)(dims),
        newton_schulz=NewtonSchulz(dims, steps=2) if muon else None, chunk=chunk,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    for module in made.modules():
        draw: Any = getattr(module, "init_weights", None)
        if draw is not None:
            draw(lambda _: generator)
    return made


def run(made: NeuralMemory) -> tuple[list[Tensor], int]:
    """Output and gradients; bytes that autograd was given to keep, each storage once."""
    torch.manual_seed(1)
    x = torch.randn(1, T, D)
    q, k, v = (
        nn.functional.normalize(torch.randn(1, T, 1, D), dim=-1).requires_grad_() for _ in range(3)
    )
    kept: dict[int, int] = {}

    def keep(part: Tensor) -> Tensor:
        storage = part.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return part

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda part: part):
        y, _ = made(q, k, v, x)
    inputs = [q, k, v, *(p for p in made.parameters() if p.requires_grad)]
    return [y, *torch.autograd.grad(y.sin().sum(), inputs, allow_unused=True)], sum(kept.values())


@pytest.mark.parametrize("kind", ["matrix", "mlp", "muon"])
def test_states_made_again_are_the_same(kind: str) -> None:
    made = layer(kind)
    plain, much = run(made)
    made.span = 4
    again, little = run(made)
    assert little < much / 4
    assert plain[1].abs().max() > 1e-3
    assert torch.equal(plain[0], again[0])
    for one, other in zip(plain, again, strict=True):  # parameters' gradients sum in another order
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["matrix", "muon"])
def test_no_matrix_for_each_token_is_kept(kind: str) -> None:
    made = layer(kind, chunk=16)
    width = made.memory.shapes[0][1]  # type: ignore[union-attr,index]
    _, kept = run(made)
    assert width == 153
    assert kept < T * D * width * 4 / 2  # weight and momentum of every token would be four times it


def test_many_states_are_kept_by_their_root(monkeypatch: pytest.MonkeyPatch) -> None:
    state = (torch.zeros(2, 2, 8, 8),)
    assert segments.kept_every(None, 16, state) is None
    assert segments.kept_every(16, 16, state) is None
    monkeypatch.setattr(segments, "KEPT", 16 * 2 * 2 * 8 * 8 * 4 - 1)
    assert segments.kept_every(None, 16, state) == 4
    with torch.no_grad():
        assert segments.kept_every(4, 16, state) is None
