"""Reads, writes and scans of a fast weight against the matrices themselves, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.components.recurrence.fast_weight import read_weight, scan_weight, write_weight

P, N, S, I, O, G = 2, 3, 4, 5, 2, 3  # noqa: E741  # the letters of the shapes


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def read_inputs(m: int) -> list[Tensor]:
    return [draw(P, N, I), draw(P, m, O, I), draw(P, S, I), draw(P, S, O), draw(P, N, m),
            draw(P, N, S)]  # fmt: skip


def write_inputs(m: int) -> list[Tensor]:
    return [draw(P, m, O, I), draw(P, S, I), draw(P, S, O), draw(P, m, m), draw(P, S, m)]


def scan_inputs(m: int, k: int) -> list[Tensor | None]:
    probes = draw(G, P, k, S, I) if k else None
    return [draw(P, m, O, I), probes, draw(G, P, S, I), draw(G, P, S, O), draw(G, P, m, m),
            draw(G, P, S, m)]  # fmt: skip


@pytest.mark.parametrize("m", [1, 2])
def test_a_read_is_the_tokens_matrix_on_its_vector(m: int) -> None:
    torch.manual_seed(0)
    z, state, zs, us, share, read = read_inputs(m)
    for n in range(N):
        matrix = torch.einsum("pm,pmoi->poi", share[:, n], state)
        matrix = matrix - torch.einsum("ps,pso,psi->poi", read[:, n], us, zs)
        wanted = torch.einsum("poi,pi->po", matrix, z[:, n])
        torch.testing.assert_close(read_weight(z, state, zs, us, share, read)[:, n], wanted)


@pytest.mark.parametrize("m", [1, 2])
@pytest.mark.parametrize("k", [0, 1, 2])
def test_a_scan_is_errors_and_writes_in_turns(m: int, k: int) -> None:
    torch.manual_seed(1)
    k = min(k, m)
    state, probes, zs, values, mix, last = scan_inputs(m, k)
    us, starts, end = scan_weight(state, probes, zs, values, mix, last)  # type: ignore[arg-type]
    now: Any = state
    for g in range(G):
        torch.testing.assert_close(starts[g], now)
        u = -values[g]  # type: ignore[index]
        if probes is not None:
            u = u + torch.einsum("pkoi,pksi->pso", now[:, :k], probes[g])
        torch.testing.assert_close(us[g], u)
        written = torch.einsum("psm,pso,psi->pmoi", last[g], u, zs[g])  # type: ignore[index]
        after = torch.einsum("pmk,pkoi->pmoi", mix[g], now) + written  # type: ignore[index]
        torch.testing.assert_close(write_weight(now, zs[g], u, mix[g], last[g]), after)  # type: ignore[index]
        now = after
    torch.testing.assert_close(end, now)


CASES: list[tuple[Callable[..., Any], list[Any]]] = [
    (read_weight, read_inputs(1)),
    (read_weight, read_inputs(2)),
    (write_weight, write_inputs(1)),
    (write_weight, write_inputs(2)),
    (scan_weight, scan_inputs(1, 0)),
    (scan_weight, scan_inputs(2, 1)),
    (scan_weight, scan_inputs(2, 2)),
]


@pytest.mark.parametrize(("function", "inputs"), CASES)
def test_gradients_are_those_of_finite_differences(
    function: Callable[..., Any], inputs: list[Any]
) -> None:
    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize(("function", "inputs"), [CASES[1], CASES[3], CASES[5]])
def test_lanes_are_more_rows(function: Callable[..., Any], inputs: list[Any]) -> None:
    lanes = [torch.stack([x, 2 * x]).detach() for x in inputs]
    lanes[2] = lanes[2][0]  # shared by the lanes

    def total(*given: Tensor) -> Tensor:
        found = function(*given)
        return sum(x.square().sum() for x in (found if isinstance(found, tuple) else (found,)))

    slopes = torch.func.grad(total, tuple(range(len(lanes))))
    dims = tuple(None if at == 2 else 0 for at in range(len(lanes)))
    mapped = torch.func.vmap(slopes, in_dims=dims)(*lanes)
    for lane in range(2):
        alone = slopes(*(x if at is None else x[lane] for x, at in zip(lanes, dims, strict=True)))
        for one, many in zip(alone, mapped, strict=True):
            torch.testing.assert_close(many[lane], one)
