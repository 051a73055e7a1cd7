"""Folded coefficients: their gradients, also at gates of 0 and 1, and under lanes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ablate.components.recurrence.folding import fold

R, N, C = 2, 4, 2


def gates(*, momentum: bool, scaled: bool, again: bool) -> list[Tensor | None]:
    torch.manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, dtype=torch.float64)

    keep, theta = draw(R, N), draw(R, N)
    keep[0, 1], theta[0, 2], theta[1, 0] = 0, 1, 0
    window = (R, N, C)
    made = [keep, theta if momentum else None, draw(R, N) if scaled else None, draw(*window),
            draw(*window) if again else None]  # fmt: skip
    return [None if x is None else x.requires_grad_() for x in made]


@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_gradients_are_those_of_finite_differences(
    momentum: bool, scaled: bool, again: bool
) -> None:
    given = gates(momentum=momentum, scaled=scaled, again=again)
    assert torch.autograd.gradcheck(lambda *x: fold(*x), given)


def test_idle_sources_are_in_no_window() -> None:
    given = gates(momentum=True, scaled=True, again=True)
    plain, wider = fold(*given), fold(*given, idle=2)  # type: ignore[arg-type]
    for part in (wider[1], wider[3].mT):
        assert not part[..., :2].any()
    moved = (wider[0], wider[1][..., 2:], wider[2], wider[3][:, 2:])
    weights = [torch.randn_like(part) for part in plain]

    def slopes(parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        total = torch.stack([(w * x).sum() for w, x in zip(weights, parts, strict=True)]).sum()
        return torch.autograd.grad(total, [x for x in given if x is not None])

    for one, other in zip((*plain, *slopes(plain)), (*moved, *slopes(moved)), strict=True):
        torch.testing.assert_close(one, other)


def test_lanes_are_more_rows() -> None:
    given = gates(momentum=True, scaled=True, again=True)
    lanes = [torch.stack([x, 0.5 * x]).detach() for x in given if x is not None]

    def total(*one: Tensor) -> Tensor:
        return torch.stack([part.square().sum() for part in fold(*one)]).sum()

    slopes = torch.func.grad(total, tuple(range(5)))
    mapped = torch.func.vmap(slopes)(*lanes)
    for lane in range(2):
        alone = slopes(*(x[lane] for x in lanes))
        for one, many in zip(alone, mapped, strict=True):
            torch.testing.assert_close(many[lane], one)
            assert one.abs().max() > 0.1
