from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ablate.components.backbone import unit
from ablate.components.dims import Dims
from ablate.components.sketch import PolySketch

DIMS = Dims(model=5, heads=2, key=4, value=3)


def make(seed: int = 0, **options: int) -> PolySketch:
    made = PolySketch(DIMS, **options).double()

    def stream(name: str) -> torch.Generator:
        return torch.Generator().manual_seed(10 * seed + int(name.removeprefix("level")))

    made.init_weights(stream)
    return made


def pairs(count: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    q, k = torch.randn(2, count, 4, dtype=torch.float64, generator=generator)
    return unit(q), unit(q + 0.7 * k)


def test_degree_two_is_exact() -> None:
    q, k = pairs()
    lift = make(degree=2)
    assert lift.width == 16
    assert not list(lift.parameters())
    torch.testing.assert_close((lift(q) * lift(k)).sum(-1), (q * k).sum(-1) ** 2)


@pytest.mark.parametrize("degree", [4, 8])
def test_sketches_are_unbiased_and_their_error_falls_as_they_grow(degree: int) -> None:
    """E[S(q) . S(k)] = (q . k)^(p/2), with a variance of order 1 / r."""
    q, k = pairs()
    want = (q * k).sum(-1) ** (degree // 2)
    spread = []
    for sketch in (32, 256):
        drawn = [make(seed, degree=degree, sketch=sketch) for seed in range(300)]
        halves = torch.stack([(one.sketched(q) * one.sketched(k)).sum(-1) for one in drawn])
        error = (halves.mean(0) - want).abs()
        assert (error < 5 * halves.std(0) / 300**0.5).all()
        spread.append(halves.var(0).mean())
        kernel = (drawn[0](q) * drawn[0](k)).sum(-1)
        torch.testing.assert_close(kernel, halves[0] ** 2)
    assert 5 < spread[0] / spread[1] < 14  # 8 times wider


def test_the_kernel_is_near_the_power_and_never_negative() -> None:
    q, k = pairs(40)
    lift = make(degree=4, sketch=256)
    kernel = lift(q) @ lift(k).T
    assert (kernel >= 0).all()
    assert (kernel - (q @ k.T) ** 4).abs().mean() < 0.15


def test_projections_are_fixed_unless_learned_and_shapes_are_free() -> None:
    assert not any(part.requires_grad for part in make(sketch=3).parameters())
    lift = PolySketch(DIMS, degree=8, sketch=3, learnable=True).double()
    lift.init_weights(lambda _: torch.Generator())
    assert [tuple(part.shape) for part in lift.levels] == [(4, 4, 3), (2, 3, 3)]
    x = torch.randn(2, 5, 3, 4, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(lift(x)[1, 2], lift(x[1, 2]))
    assert torch.autograd.gradcheck(lift, x[:1, :1].detach().requires_grad_(), fast_mode=True)


@pytest.mark.parametrize(
    ("options", "rule"),
    [({"degree": 3}, "degree=3: must be 2, 4, 8"), ({"sketch": 0}, "sketch=0: must be a whole")],
)
def test_bad_options_are_refused(options: dict[str, int], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        PolySketch(DIMS, **options)
