"""What every kernel does with a tile: load, store, add to it, multiply; all arithmetic in fp32.

A tile of a row-major matrix is loaded as float32 at once, since the interpreter's own arithmetic in
bf16 is wrong. `DOT` is the type that products take their factors in.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def load_tile(at, first, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Columns `first` to `first + COLS` of a matrix of `rows` and `cols`, zero outside of it."""
    r = tl.arange(0, ROWS)[:, None]
    c = first + tl.arange(0, COLS)[None, :]
    return tl.load(at + r * cols + c, mask=(r < rows) & (c < cols), other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def store_tile(at, x, first, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    """The opposite of `load_tile`; what lies outside is dropped."""
    r = tl.arange(0, ROWS)[:, None]
    c = first + tl.arange(0, COLS)[None, :]
    tl.store(at + r * cols + c, x, mask=(r < rows) & (c < cols))


@triton.jit
@no_type_check
def add_tile(at, x, first, rows, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Add to a tile that no other program touches."""
    old = load_tile(at, first, rows, cols, ROWS, COLS)
    store_tile(at, old + x, first, rows, cols, ROWS, COLS)


@triton.jit
@no_type_check
def load_column(at, count, stride, SIZE: tl.constexpr):
    """`count` numbers, `stride` apart, zero beyond."""
    n = tl.arange(0, SIZE)
    return tl.load(at + n * stride, mask=n < count, other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def get(at, first, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Columns `first` to `first + COLS` of a scratch matrix of `WIDTH` columns."""
    r = tl.arange(0, ROWS)[:, None]
    return tl.load(at + r * WIDTH + first + tl.arange(0, COLS)[None, :])


@triton.jit
@no_type_check
def mirror(at, first, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Columns `first` to `first + COLS` of the transposed scratch matrix; `WIDTH` is its own."""
    r = tl.arange(0, ROWS)[:, None]
    return tl.load(at + (first + tl.arange(0, COLS)[None, :]) * WIDTH + r)


@triton.jit
@no_type_check
def put(at, x, first, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    """The opposite of `get`."""
    r = tl.arange(0, ROWS)[:, None]
    tl.store(at + r * WIDTH + first + tl.arange(0, COLS)[None, :], x)


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
