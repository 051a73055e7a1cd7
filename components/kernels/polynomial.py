"""Reads at features of degree 2, which are made inside and never stored.

`components.feature_map.read_monomials` is the torch form: it writes d (d + 3) / 2 + 1 numbers a
token, this reads d. Scores phi(q) . phi(k) need no features: they are sum_i a_i (q . k)^i.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from ablate.components.feature_map import read_monomials
from ablate.components.kernels import polynomial_kernels
from ablate.components.kernels.exactness import with_gradients, worst
from ablate.components.kernels.products import Products, empty, products, side
from ablate.components.recurrence.lanes import Slopes, by_rows

WARPS = 8
BLOCK = 32
ROWS = 32
TOKENS = 64


def read_polynomial(
    x: Float[Tensor, "p n d"],
    matrix: Float[Tensor, "p o f"],
    roots: Float[Tensor, "p r"],
    *,
    kind: Products | None = None,
) -> Float[Tensor, "p n o"]:
    """W phi(x) of every token (Atlas Eq. 4-5 with a matrix memory).

    Args:
        x: keys or queries.
        matrix: W; its f columns say whether the constant feature is among them.
        roots: sqrt(a_i) of each row, of degrees 1 and 2; with the constant that of 0 before them.
        kind: what products are taken in; by default what torch's own are.

    Raises:
        ValueError: f is not the number of monomials of d variables up to degree 2, or there are
            not as many roots as degrees.
    """
    shift = _shift(x.shape[-1], matrix.shape[-1])
    if roots.shape[-1] != 2 + shift:
        raise ValueError(
            f"read_polynomial: {roots.shape[-1]} roots, but the {matrix.shape[-1]} columns of the "
            f"matrix are of {2 + shift} degrees"
        )
    y: Tensor = _Read.apply(x, matrix, roots, kind or products(x.device))  # type: ignore[no-untyped-call]
    return y


def shared(kind: Products) -> int:
    """Bytes of shared memory that a program takes at most, by what compilers made of it."""
    return (TOKENS * (ROWS + BLOCK) + 2 * ROWS * BLOCK) * kind.bytes


def refusal(rows: int, cols: int) -> str | None:
    """Why the kernels cannot serve matrices of this size: they take them in blocks, so never."""
    return None


def self_check(
    device: torch.device, sizes: tuple[int, ...] = (2, 65, 35, 34)
) -> tuple[float, float]:
    """Compare the output and all gradients with torch's form in float64 on a small case.

    Args:
        device: where.
        sizes: of the batch, tokens, width of x, and rows; by default two blocks of everything.

    Returns:
        The largest relative error of them, and what is allowed.
    """
    stream = torch.Generator().manual_seed(0)
    p, n, d, o = sizes
    shapes = ((p, n, d), (p, o, d * (d + 3) // 2 + 1), (p, 3))
    given = [torch.randn(shape, generator=stream).to(device) / 4 for shape in shapes]
    found = with_gradients(read_polynomial, given)
    true = with_gradients(read_monomials, [x.double() for x in given])
    return worst(found, true), products(device).allowed


def _shift(width: int, cols: int) -> int:
    """1 with the constant feature, 0 without."""
    plain = width * (width + 3) // 2
    if cols not in (plain, plain + 1):
        raise ValueError(
            f"read_polynomial: {cols} features of {width} numbers; there are {plain} of degrees "
            f"1 and 2, or {plain + 1} with the constant"
        )
    return cols - plain


def _run(
    kernel: Any, grid: tuple[int, ...], *given: Tensor, sizes: tuple[int, ...], kind: Products
) -> None:
    n, rows, width, cols = sizes
    kernel[grid](
        *given, n, rows, width, cols, _shift(width, cols), _tokens(n), ROWS, BLOCK,
        *kind.how, num_warps=WARPS, num_stages=1,
    )  # fmt: skip


def _tokens(count: int) -> int:
    return min(TOKENS, side(count))


@by_rows((0,) * 4, 0)
class _Read(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, matrix: Tensor, roots: Tensor, kind: Products) -> Tensor:
        p, n, width = x.shape
        rows, cols = matrix.shape[1:]
        y = empty(x, p, n, rows)
        grid = (p, triton.cdiv(n, _tokens(n)), triton.cdiv(rows, ROWS))
        given = (x.contiguous(), matrix.contiguous(), roots.float().contiguous(), y)
        _run(polynomial_kernels.read_kernel, grid, *given, sizes=(n, rows, width, cols), kind=kind)
        return y.to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:-1])
        ctx.kind = inputs[-1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        slopes = _ReadBack.apply(*ctx.saved_tensors, *grads, ctx.kind)  # type: ignore[no-untyped-call]
        return (*slopes, None)


@by_rows((0,) * 5, (0,) * 3)
class _ReadBack(Slopes):
    """The gradient of `_Read`."""

    @staticmethod
    def forward(
        x: Tensor, matrix: Tensor, roots: Tensor, u: Tensor, kind: Products
    ) -> tuple[Tensor, ...]:
        p, n, width = x.shape
        rows, cols = matrix.shape[1:]
        sizes = (n, rows, width, cols)
        x, u, matrix = x.contiguous(), u.contiguous(), matrix.contiguous()
        weighed = roots.float().contiguous()
        d_matrix = empty(x, p, rows, cols)
        grid: tuple[int, ...] = (p, width + 1, triton.cdiv(rows, ROWS))
        sums = (u, x, weighed, d_matrix)
        _run(polynomial_kernels.write_kernel, grid, *sums, sizes=sizes, kind=kind)
        grid = (p, triton.cdiv(n, _tokens(n)), triton.cdiv(width, BLOCK))
        d_x, parts = empty(x, p, n, width), empty(x, *grid, 2)
        given = (u, x, matrix, weighed, d_x, parts)
        _run(polynomial_kernels.slope_kernel, grid, *given, sizes=sizes, kind=kind)
        d_roots = parts.sum((1, 2))
        if _shift(width, cols):
            constant = (u.float().sum(1) * matrix[..., 0].float()).sum(-1, keepdim=True)
            d_roots = torch.cat([constant, d_roots], dim=-1)
        return d_x.to(x.dtype), d_matrix.to(matrix.dtype), d_roots.to(roots.dtype)
