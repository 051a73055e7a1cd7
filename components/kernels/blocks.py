"""Blocks of token-mixing matrices: a corner of one, and the products of two lists of vectors."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from ablate.components.kernels.tiles import load_tile


@triton.jit
@no_type_check
def load_block(at, rows, cols, step, ROWS: tl.constexpr, COLS: tl.constexpr):
    """A corner of a matrix whose rows are `step` apart, zero outside of `rows` and `cols`."""
    r = tl.arange(0, ROWS)[:, None]
    c = tl.arange(0, COLS)[None, :]
    return tl.load(at + r * step + c, mask=(r < rows) & (c < cols), other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def inner_products(
    a, b, inner, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A B^T for A of `rows` and B of `cols` vectors of `inner` numbers, ROWS x COLS."""
    made = tl.zeros((ROWS, COLS), tl.float32)
    for first in range(0, inner, BLOCK):
        left = load_tile(a, first, rows, inner, ROWS, BLOCK).to(DOT)
        right = load_tile(b, first, cols, inner, COLS, BLOCK).to(DOT)
        made = tl.dot(left, tl.trans(right), made, input_precision=PRECISION)
    return made
