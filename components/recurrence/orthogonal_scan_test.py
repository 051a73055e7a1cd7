"""A scan of orthogonalised writes against matrices for every write, in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from ablate.components.newton_schulz import COEFFICIENTS, orthogonalise
from ablate.components.orthogonal_sums import orthogonal_sums
from ablate.components.recurrence.coefficients import OrthogonalWeights
from ablate.components.recurrence.orthogonal_scan import Orthogonal, scan_orthogonal

G, P, S, N, W, O, I = 3, 2, 4, 3, 2, 2, 3  # noqa: E741  # the letters of the shapes
SHAPES = (
    (P, O, I), (P, O, I), (G, P, S, I), (G, P, S, O), (G, P, N, I),
    (G, P, N, 1), (G, P, 1, 1), (G, P, 1, 1), (G, P, S, 1), (G, P, W, 1), (G, P, W, S),
    (G, P, N, W), (G, P, 1, W),
)  # fmt: skip
PARTS = (
    "carry", "end_carry", "next_carry", "next_read", "momentum_carry", "momentum_read", "write",
    "end_write",
)  # fmt: skip
SCHEDULE = COEFFICIENTS["quintic"] * 2


def how(*, errors: bool) -> Orthogonal:
    return Orthogonal(orthogonal_sums, SCHEDULE, 1e-7, 0.7, errors)


def draw() -> list[Tensor]:
    stream = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=stream, dtype=torch.float64) for shape in SHAPES]


def scanned(tensors: tuple[Tensor, ...], *, errors: bool) -> tuple[Tensor, ...]:
    parts = dict(zip(PARTS, tensors[5:], strict=True))
    w = OrthogonalWeights(pending=tensors[6][..., 0, 0], **parts)
    return scan_orthogonal(*tensors[:5], w, how(errors=errors))


def plainly(tensors: tuple[Tensor, ...], *, errors: bool) -> tuple[Tensor, ...]:
    weight, momentum, zs, values, right, *parts = tensors
    read = []
    for g in range(G):
        carry, end_carry, next_carry, next_read, first, each, write, end = (x[g] for x in parts)
        start = weight
        u = (zs[g] @ weight.mT if errors else 0) - values[g]
        outer = torch.einsum("pso,psi->psoi", u, zs[g])
        momenta = first.unsqueeze(-1) * momentum.unsqueeze(1)
        momenta = momenta + torch.einsum("pws,psoi->pwoi", each, outer)
        made = 0.7 * orthogonalise(momenta, steps=2, coefficients=SCHEDULE)
        seen = carry.unsqueeze(-1) * weight.unsqueeze(1)
        seen = seen - torch.einsum("pnw,pwoi->pnoi", write, made)
        read.append(torch.einsum("pnoi,pni->pno", seen, right[g]))
        weight = end_carry * weight - torch.einsum("pw,pwoi->poi", end[:, 0], made)
        momentum = next_carry * momentum + (next_read.unsqueeze(-1) * outer).sum(1)
    return torch.stack(read), start, weight, momentum


@pytest.mark.parametrize("errors", [True, False])
def test_a_scan_and_every_gradient_are_those_of_matrices(*, errors: bool) -> None:
    inputs = tuple(x.requires_grad_() for x in draw())
    found, true = scanned(inputs, errors=errors), plainly(inputs, errors=errors)
    weights = [torch.randn_like(y) for y in true]
    slopes = [torch.autograd.grad(outputs, inputs, weights) for outputs in (found, true)]
    torch.testing.assert_close(found, true, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-9, atol=1e-10)
    assert all(slope.abs().max() > 1e-3 for slope in slopes[1])


def test_lanes_have_the_gradients_of_each_alone() -> None:
    shared, *lanes = draw()[::-1]
    stacked = [torch.stack([x, x.flip(-1)]) for x in lanes[::-1]]

    def total(*tensors: Tensor) -> Tensor:
        made = scanned((*tensors, shared), errors=True)
        return sum((y.sin().sum() for y in made), torch.zeros(()))

    slopes: Callable[..., tuple[Tensor, ...]] = grad(total, argnums=tuple(range(len(stacked))))
    found = vmap(slopes)(*stacked)
    for lane in range(2):
        alone = slopes(*(x[lane] for x in stacked))
        torch.testing.assert_close(tuple(x[lane] for x in found), alone)
