from __future__ import annotations

import pytest
import torch

from ablate.components.dims import Dims
from ablate.components.memory import GatedMLPMemory, MatrixMemory, MLPMemory, gelu_and_slope

DIMS = Dims(model=5, heads=2, key=3, value=3)


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_gelu_and_slope_equal_autograd_to_second_order() -> None:
    z = torch.linspace(-6, 6, 41, dtype=torch.float64, requires_grad=True)
    value, slope = gelu_and_slope(z)
    want = torch.nn.functional.gelu(z)
    torch.testing.assert_close(value, want)
    (want_slope,) = torch.autograd.grad(want.sum(), z, create_graph=True)
    torch.testing.assert_close(slope, want_slope)
    assert torch.autograd.gradcheck(gelu_and_slope, z)


@pytest.mark.parametrize("residual", [True, False])
def test_mlp_gradients_are_the_outer_products_of_its_loss(residual: bool) -> None:
    memory = MLPMemory(DIMS, 7, expansion=2, residual=residual)
    w2 = _random(4, 6, 7).requires_grad_()
    w1 = _random(4, 3, 6, seed=1).requires_grad_()
    phi, raw, v = _random(4, 1, 7, seed=2), _random(4, 1, 3, seed=3), _random(4, 1, 3, seed=4)
    y = torch.nn.functional.gelu(phi @ w2.mT) @ w1.mT + (raw if residual else 0.0)
    want = torch.autograd.grad(0.5 * ((y - v) ** 2).sum(), (w2, w1))
    us, inner = memory.gradients((phi @ w2.mT,), raw, (w2, w1), lambda y: y - v)
    for u, z, grad in zip(us, (phi, *inner), want, strict=True):
        torch.testing.assert_close(u.mT @ z, grad)


@pytest.mark.parametrize("norm", [True, False])
def test_gated_gradients_are_the_outer_products_of_its_loss(norm: bool) -> None:
    memory = GatedMLPMemory(DIMS, 7, expansion=2, norm=norm).double()
    memory.init_weights(lambda _: torch.Generator().manual_seed(0))
    if norm:
        memory.output.gain.data.copy_(_random(2, 3, seed=8))
        memory.output.offset.data.copy_(_random(2, 3, seed=9))
    shapes = ((4, 6, 7), (4, 6, 7), (4, 3, 6))
    w2, w3, w1 = (_random(*shape, seed=n).requires_grad_() for n, shape in enumerate(shapes))
    phi, raw, v = _random(4, 1, 7, seed=5), _random(4, 1, 3, seed=3), _random(4, 1, 3, seed=4)
    y = (torch.nn.functional.gelu(phi @ w2.mT) * (phi @ w3.mT)) @ w1.mT
    if norm:
        gain, offset = (p.repeat(2, 1).unsqueeze(1) for p in memory.output.parameters())
        y = torch.nn.functional.layer_norm(y, (3,), eps=1e-6) * gain + offset
    want = torch.autograd.grad(0.5 * ((raw + y - v) ** 2).sum(), (w2, w3, w1))
    front = (phi @ w2.mT, phi @ w3.mT)
    torch.testing.assert_close(memory.read(front, raw, lambda j, z: z @ w1.mT), raw + y)
    us, inner = memory.gradients(front, raw, (w2, w3, w1), lambda y: y - v)
    for u, z, grad in zip(us, (phi, phi, *inner), want, strict=True):
        torch.testing.assert_close(u.mT @ z, grad)


def test_a_norm_makes_the_size_of_the_branch_irrelevant() -> None:
    memory = MatrixMemory(DIMS, 7, norm=True, residual=True)
    memory.output.init_weights(lambda _: torch.Generator())
    branch, raw = _random(4, 5, 3), _random(4, 5, 3, seed=1)
    y = memory.read((branch,), raw, lambda j, z: z)
    torch.testing.assert_close(
        memory.read((branch * 50,), raw, lambda j, z: z), y, atol=1e-4, rtol=0
    )
    torch.testing.assert_close(
        (y - raw).var(-1, correction=0), torch.ones(4, 5).double(), rtol=1e-3, atol=0
    )


def test_layers_are_named_from_the_last_and_none_starts_dead() -> None:
    memory = MLPMemory(DIMS, 7, expansion=2, layers=4)
    memory.init_weights(lambda _: torch.Generator().manual_seed(0))
    assert memory.names == ("w4", "w3", "w2", "w1")
    assert memory.shapes == ((6, 7), (6, 6), (6, 6), (3, 6))
    assert all(w.abs().max() > 0.01 for w in memory.initial())
    assert MLPMemory(DIMS, 7, layers=1).shapes == ((3, 7),)


def test_reads_apply_the_network() -> None:
    memory = MLPMemory(DIMS, 7, expansion=2)
    front, raw, w1 = _random(4, 5, 6), _random(4, 5, 3, seed=1), _random(4, 3, 6, seed=2)
    y = memory.read((front,), raw, lambda j, z: z @ w1.mT if j == 1 else z * torch.nan)
    torch.testing.assert_close(y, raw + torch.nn.functional.gelu(front) @ w1.mT)
    assert MatrixMemory(DIMS, 7).read((raw,), raw, lambda j, z: z) is raw


def test_initial_weights_are_small_drawn_by_name_and_not_zero() -> None:
    asked: list[str] = []

    def stream(name: str) -> torch.Generator:
        asked.append(name)
        return torch.Generator().manual_seed(0)

    memory = MLPMemory(DIMS, 7)
    memory.init_weights(stream)
    assert asked == ["w2", "w1"]
    assert memory.shapes == ((12, 7), (3, 12))
    assert [tuple(w.shape) for w in memory.initial()] == [(2, 12, 7), (2, 3, 12)]
    assert 0 < memory.w1.abs().max() < 0.5


def test_a_matrix_starts_from_zero_or_from_learned_weights() -> None:
    fixed = MatrixMemory(DIMS, 7, learned_initial=False)
    fixed.init_weights(lambda _: torch.Generator())
    assert not list(fixed.parameters())
    assert (fixed.initial()[0] == 0).all()
    learned = MatrixMemory(DIMS, 7)
    learned.init_weights(lambda _: torch.Generator().manual_seed(0))
    assert learned.initial()[0].shape == (2, 3, 7)
    assert 0.01 < learned.w.std() < 0.03


def test_a_residual_between_unequal_widths_is_refused() -> None:
    wide = Dims(model=5, heads=2, key=3, value=4)
    with pytest.raises(ValueError, match="key width 3 and value width 4.*residual=False"):
        MLPMemory(wide, 7)
    assert MLPMemory(wide, 7, residual=False).shapes == ((12, 7), (4, 12))


def test_an_expansion_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="expansion=0: must be a whole number >= 1"):
        MLPMemory(DIMS, 7, expansion=0)
    with pytest.raises(ValueError, match="layers=0: must be a whole number >= 1"):
        MLPMemory(DIMS, 7, layers=0)


@pytest.mark.parametrize("kind", [MLPMemory, GatedMLPMemory])
def test_a_deep_start_may_stay_as_drawn(kind: type[MLPMemory] | type[GatedMLPMemory]) -> None:
    learned, fixed = (kind(DIMS, 4, learned_initial=learned) for learned in (True, False))
    for one in (learned, fixed):
        one.init_weights(lambda _: torch.Generator().manual_seed(1))
    assert all(w.requires_grad for w in learned.initial())
    assert not any(w.requires_grad for w in fixed.initial())
    for mine, theirs in zip(learned.initial(), fixed.initial(), strict=True):
        assert torch.equal(mine, theirs)
