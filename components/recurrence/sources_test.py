"""Stretches with their halo, against a loop over stretches: values, gradients, and lanes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ablate.components.recurrence.sources import with_halo


def by_loop(x: Tensor, halo: int, length: int) -> Tensor:
    starts = range(0, x.shape[1] - halo, length)
    return torch.stack([x[:, start : start + halo + length] for start in starts])


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(("halo", "length"), [(2, 4), (4, 4), (9, 4), (3, 1)])
def test_each_stretch_has_the_tokens_before_it(rows: int, halo: int, length: int) -> None:
    x = torch.randn(rows, halo + 5 * length, 3, dtype=torch.float64, requires_grad=True)
    got, wanted = with_halo(x, halo, length), by_loop(x, halo, length)
    assert got.shape == (5, rows, halo + length, 3)
    assert torch.equal(got, wanted)
    weight = torch.randn_like(got)
    (slope,) = torch.autograd.grad((got * weight).sum(), x)
    (expected,) = torch.autograd.grad((wanted * weight).sum(), x)
    torch.testing.assert_close(slope, expected)


def test_lanes_are_as_alone() -> None:
    x, weight = torch.randn(3, 2, 7, 3), torch.randn(2, 2, 5, 3)

    def slope(one: Tensor) -> Tensor:
        return torch.func.grad(lambda given: (with_halo(given, 3, 2) * weight).sum())(one)

    assert torch.equal(torch.func.vmap(slope)(x), torch.stack([slope(one) for one in x]))
