"""Products with the features of degree 2, which are made inside and never stored.

`components.feature_map.Polynomial` (monomials) is the torch form: it writes d (d + 3) / 2 + 1
numbers a token, these read d. A memory W is read as phi(x) W^T, and gradients u phi(x)^T are summed
into one; each is the other's derivative. Scores phi(q) . phi(k) need no features: they are
sum_i a_i (q . k)^i.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from ablate.components.kernels import polynomial_kernels
from ablate.components.kernels.products import Products, products

WARPS = 8
BLOCK = 32
ROWS = 32
TOKENS = 64


def read_polynomial(
    x: Float[Tensor, "p n d"],
    matrix: Float[Tensor, "p o f"],
    roots: Float[Tensor, 3],
    *,
    kind: Products | None = None,
) -> Float[Tensor, "p n o"]:
    """W phi(x) of every token (Atlas Eq. 4-5 with a matrix memory).

    Args:
        x: keys or queries.
        matrix: W; its f columns say whether the constant feature is among them.
        roots: sqrt(a_i) of degrees 0, 1 and 2; the first is not used without the constant.
        kind: what products are taken in; by default what torch's own are.

    Raises:
        ValueError: f is not the number of monomials of d variables up to degree 2.
    """
    _shift(x.shape[-1], matrix.shape[-1])
    y: Tensor = _Read.apply(x, matrix, roots, kind or products(x.device))  # type: ignore[no-untyped-call]
    return y


def write_polynomial(
    u: Float[Tensor, "p n o"],
    x: Float[Tensor, "p n d"],
    roots: Float[Tensor, 3],
    *,
    constant: bool = True,
    kind: Products | None = None,
) -> Float[Tensor, "p o f"]:
    """sum_n u_n phi(x_n)^T.

    Args:
        constant: with the feature of degree 0, as `read_polynomial` finds by W's width.
    """
    width = x.shape[-1] * (x.shape[-1] + 3) // 2 + constant
    made: Tensor = _Write.apply(u, x, roots, width, kind or products(x.device))  # type: ignore[no-untyped-call]
    return made


def shared(kind: Products) -> int:
    """Bytes of shared memory that a program takes at most, by what compilers made of it."""
    return (TOKENS * (ROWS + BLOCK) + 2 * ROWS * BLOCK) * kind.bytes


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
    kernel: Any, grid: tuple[int, ...], *given: Any, sizes: tuple[int, ...], kind: Products
) -> None:
    n, rows, width, cols = sizes
    kernel[grid](
        *given, n, rows, width, cols, _shift(width, cols), TOKENS, ROWS, BLOCK,
        *kind.how, num_warps=WARPS, num_stages=1,
    )  # fmt: skip


def _read(x: Tensor, matrix: Tensor, roots: Tensor, kind: Products) -> Tensor:
    p, n, width = x.shape
    rows, cols = matrix.shape[1:]
    y = torch.empty((p, n, rows), dtype=torch.float32, device=x.device)
    grid = (p, triton.cdiv(n, TOKENS), triton.cdiv(rows, ROWS))
    given = (x.contiguous(), matrix.contiguous(), roots.contiguous(), y)
    _run(polynomial_kernels.read_kernel, grid, *given, sizes=(n, rows, width, cols), kind=kind)
    return y


def _write(u: Tensor, x: Tensor, roots: Tensor, cols: int, kind: Products) -> Tensor:
    p, n, width = x.shape
    rows = u.shape[-1]
    made = torch.empty((p, rows, cols), dtype=torch.float32, device=x.device)
    grid = (p, width + 1, triton.cdiv(rows, ROWS))
    given = (u.contiguous(), x.contiguous(), roots.contiguous(), made)
    _run(polynomial_kernels.write_kernel, grid, *given, sizes=(n, rows, width, cols), kind=kind)
    return made


def _slopes(
    u: Tensor, x: Tensor, matrix: Tensor, roots: Tensor, kind: Products
) -> tuple[Tensor, Tensor]:
    """Gradients of sum_n u_n . W phi(x_n) for x and the roots."""
    p, n, width = x.shape
    rows, cols = matrix.shape[1:]
    d_x = torch.empty((p, n, width), dtype=torch.float32, device=x.device)
    grid = (p, triton.cdiv(n, TOKENS), triton.cdiv(width, BLOCK))
    parts = torch.empty((*grid, 2), dtype=torch.float32, device=x.device)
    given = (u.contiguous(), x.contiguous(), matrix.contiguous(), roots.contiguous(), d_x, parts)
    _run(polynomial_kernels.slope_kernel, grid, *given, sizes=(n, rows, width, cols), kind=kind)
    constant = (u.float().sum(1) * matrix[..., 0].float()).sum()
    if not _shift(width, cols):
        constant = torch.zeros_like(constant)
    return d_x.to(x.dtype), torch.cat([constant.view(1), parts.sum((0, 1, 2))]).to(roots.dtype)


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, roots: Tensor, kind: Products) -> Tensor:
        ctx.save_for_backward(x, matrix, roots)
        ctx.kind = kind
        return _read(x, matrix, roots, kind).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix, roots = ctx.saved_tensors
        d_x, d_roots = _slopes(grads[0], x, matrix, roots, ctx.kind)
        d_matrix = _write(grads[0], x, roots, matrix.shape[-1], ctx.kind)
        return d_x, d_matrix.to(matrix.dtype), d_roots, None


class _Write(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, x: Tensor, roots: Tensor, cols: int, kind: Products) -> Tensor:
        ctx.save_for_backward(u, x, roots)
        ctx.kind = kind
        return _write(u, x, roots, cols, kind).to(u.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        u, x, roots = ctx.saved_tensors
        d_x, d_roots = _slopes(u, x, grads[0], roots, ctx.kind)
        d_u = _read(x, grads[0], roots, ctx.kind)
        return d_u.to(u.dtype), d_x, d_roots, None, None
