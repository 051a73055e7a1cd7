"""Sums over orthogonalised momenta against a matrix for each write, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from ablate.components.newton_schulz import COEFFICIENTS, Schedule, orthogonalise
from ablate.components.orthogonal_sums import orthogonal_sums

EPS = 1e-7


def plainly(tensors: tuple[Tensor, ...], schedule: Schedule) -> tuple[Tensor, Tensor]:
    s0, u, z, carry, read, write, end, right = tensors
    momenta = carry[..., None, None] * s0[:, None]
    momenta = momenta + torch.einsum("pws,pso,psi->pwoi", read, u, z)
    made = orthogonalise(momenta, steps=len(schedule), coefficients=schedule, eps=EPS)
    y = torch.einsum("pnw,pwoi,pni->pno", write, made, right)
    return y, torch.einsum("pw,pwoi->poi", end, made)


def draw(*sizes: int, lanes: tuple[int, ...] = ()) -> tuple[Tensor, ...]:
    """Inputs for o rows, i columns, s sources, w writes and n tokens."""
    o, i, s, w, n = sizes
    stream = torch.Generator().manual_seed(0)
    shapes = (
        (2, o, i), (2, s, o), (2, s, i), (2, w), (2, w, s), (2, n, w), (2, w), (2, n, i),
    )  # fmt: skip
    return tuple(
        torch.randn((*lanes, *shape), generator=stream, dtype=torch.float64) for shape in shapes
    )


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((4, 6, 5, 3, 4), id="few features"),
        pytest.param((6, 4, 5, 3, 4), id="tall"),
        pytest.param((3, 13, 4, 3, 4), id="coordinates forward only"),
        pytest.param((3, 40, 4, 3, 5), id="coordinates both ways"),
        pytest.param((3, 40, 4, 3, 0), id="nothing is read"),
        pytest.param((2, 30, 1, 1, 1), id="one token"),
    ],
)
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_sums_and_every_gradient_are_those_of_a_matrix_for_each_write(
    sizes: tuple[int, ...], steps: int
) -> None:
    schedule = COEFFICIENTS["polar"][:steps]
    inputs = tuple(x.requires_grad_() for x in draw(*sizes))
    found = orthogonal_sums(*inputs, schedule=schedule, eps=EPS)
    true = plainly(inputs, schedule)
    stream = torch.Generator().manual_seed(1)
    weights = [torch.randn(y.shape, generator=stream, dtype=y.dtype) for y in true]
    slopes = []
    for outputs in (found, true):
        total = sum((y * weight).sum() for y, weight in zip(outputs, weights, strict=True))
        slopes.append(torch.autograd.grad(total, inputs))
    torch.testing.assert_close(found, true, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-9, atol=1e-10)


def test_turned_inputs_and_gradients_do_not_matter() -> None:
    schedule = COEFFICIENTS["quintic"] * 2
    inputs = tuple(x.mT.contiguous().mT.requires_grad_() for x in draw(4, 6, 5, 3, 4))
    found, true = orthogonal_sums(*inputs, schedule=schedule, eps=EPS), plainly(inputs, schedule)
    weights = [torch.randn_like(y.mT).mT for y in true]
    slopes = [torch.autograd.grad(outputs, inputs, weights) for outputs in (found, true)]
    torch.testing.assert_close(found, true, rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-9, atol=1e-10)


def test_equal_and_zero_keys_leave_the_coordinates_exact() -> None:
    s0, u, z, *rest = draw(3, 40, 4, 3, 5)
    z = torch.stack([z[:, 0], z[:, 0], torch.zeros_like(z[:, 0]), z[:, 3]], dim=1)
    inputs = (torch.zeros_like(s0), u, z, *rest)
    found = orthogonal_sums(*inputs, schedule=COEFFICIENTS["quintic"] * 5, eps=EPS)
    true = plainly(inputs, COEFFICIENTS["quintic"] * 5)
    torch.testing.assert_close(found, true, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("sizes", [(4, 6, 5, 3, 4), (3, 40, 4, 3, 5)])
def test_lanes_are_each_as_alone(sizes: tuple[int, ...]) -> None:
    schedule = COEFFICIENTS["quintic"] * 3
    inputs = draw(*sizes, lanes=(3,))
    shared = inputs[-1][0]

    def run(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return orthogonal_sums(*tensors, schedule=schedule, eps=EPS)

    found = vmap(run, in_dims=(0,) * 7 + (None,))(*inputs[:7], shared)
    for lane in range(3):
        alone = run(*(x[lane] for x in inputs[:7]), shared)
        torch.testing.assert_close((found[0][lane], found[1][lane]), alone)
