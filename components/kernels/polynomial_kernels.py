"""Monomials up to degree 2, made where a product needs them: none lies in global memory.

The features of `components.feature_map.Polynomial` in its own order: the constant, every x_b, every
x_a x_b with a <= b by a, then b. Those that begin with x_a are x_a times a piece of x, one behind
the other, so a program makes them tile by tile; a = -1 stands for x itself. Each row of the batch
has its own `roots`, which weigh degrees 1 and 2, after that of 0 if SHIFT is 1, which says that the
constant is among the features. WIDTH is that of x, COLS the number of features.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from ablate.components.kernels.tiles import load_tile, store_tile

ROOT_TWO = tl.constexpr(1.4142135623730951)


@triton.jit
@no_type_check
def _first_of(a, WIDTH: tl.constexpr, SHIFT: tl.constexpr):
    """Where x_a x_b would lie for b = 0; where x_b does for a = -1."""
    return tl.where(a < 0, SHIFT, SHIFT + WIDTH + a * WIDTH - a * (a - 1) // 2 - a)


@triton.jit
@no_type_check
def _weights(roots, a, b):
    """What x_a x_b carries, zero where it is x_b x_a that is kept; `roots` of degrees 1 and 2."""
    root = tl.where(a < 0, tl.load(roots), tl.load(roots + 1))
    return tl.where(b < a, 0.0, root * tl.where((b + a >= b) & (b != a), ROOT_TWO, 1.0))


@triton.jit
@no_type_check
def _features(
    x, roots, a, first, tokens, WIDTH: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr
):
    """x_a x_b of some tokens for BLOCK of b."""
    n = tl.arange(0, TOKENS)
    by = tl.load(x + n * WIDTH + a, mask=(n < tokens) & (n + a >= n), other=1.0).to(tl.float32)
    tile = load_tile(x, first, tokens, WIDTH, TOKENS, BLOCK)
    return by[:, None] * tile * _weights(roots, a, first + tl.arange(0, BLOCK))[None, :]


@triton.jit
@no_type_check
def read_kernel(
    x, m, roots, y, tokens, rows: tl.constexpr, WIDTH: tl.constexpr, COLS: tl.constexpr,
    SHIFT: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """phi(x) M^T. Grid: rows of the batch, blocks of TOKENS, blocks of ROWS."""
    p = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * TOKENS
    o = tl.program_id(2) * ROWS
    x += (p * tokens + n) * WIDTH
    m += (p * rows + o) * COLS
    roots += p * (2 + SHIFT) + SHIFT
    row = tl.arange(0, ROWS)
    inside = row < rows - o
    made = tl.zeros((TOKENS, ROWS), tl.float32)
    if SHIFT:
        constant = tl.load(m + row * COLS, mask=inside, other=0.0).to(tl.float32)
        made += (tl.load(roots - 1) * constant)[None, :]
    for a in range(-1, WIDTH):
        place = m + _first_of(a, WIDTH, SHIFT)
        for first in range(tl.maximum(a, 0) // BLOCK * BLOCK, WIDTH, BLOCK):
            b = first + tl.arange(0, BLOCK)
            lifted = _features(x, roots, a, first, tokens - n, WIDTH, TOKENS, BLOCK)
            mask = inside[:, None] & ((b >= a) & (b < WIDTH))[None, :]
            by = tl.load(place + row[:, None] * COLS + b[None, :], mask=mask, other=0.0)
            by = tl.trans(by.to(tl.float32).to(DOT))
            made = tl.dot(lifted.to(DOT), by, made, input_precision=PRECISION)
    store_tile(y + (p * tokens + n) * rows, made, o, tokens - n, rows, TOKENS, ROWS)


@triton.jit
@no_type_check
def write_kernel(
    u, x, roots, m, tokens, rows: tl.constexpr, WIDTH: tl.constexpr, COLS: tl.constexpr,
    SHIFT: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """u^T phi(x). Grid: rows of the batch, -1 and all a, blocks of ROWS."""
    p = tl.program_id(0).to(tl.int64)
    a = tl.program_id(1) - 1
    o = tl.program_id(2) * ROWS
    u += p * tokens * rows
    x += p * tokens * WIDTH
    m += (p * rows + o) * COLS
    roots += p * (2 + SHIFT) + SHIFT
    row = tl.arange(0, ROWS)
    inside = row < rows - o
    place = m + _first_of(a, WIDTH, SHIFT)
    for first in range(tl.maximum(a, 0) // BLOCK * BLOCK, WIDTH, BLOCK):
        b = first + tl.arange(0, BLOCK)
        made = tl.zeros((ROWS, BLOCK), tl.float32)
        for n in range(0, tokens, TOKENS):
            lifted = _features(x + n * WIDTH, roots, a, first, tokens - n, WIDTH, TOKENS, BLOCK)
            by = load_tile(u + n * rows, o, tokens - n, rows, TOKENS, ROWS)
            made = tl.dot(tl.trans(by.to(DOT)), lifted.to(DOT), made, input_precision=PRECISION)
        mask = inside[:, None] & ((b >= a) & (b < WIDTH))[None, :]
        tl.store(place + row[:, None] * COLS + b[None, :], made, mask=mask)
    if SHIFT and a < 0:
        total = tl.zeros((ROWS,), tl.float32)
        for n in range(0, tokens, TOKENS):
            total += tl.sum(load_tile(u + n * rows, o, tokens - n, rows, TOKENS, ROWS), 0)
        tl.store(m + row * COLS, tl.load(roots - 1) * total, mask=inside)


@triton.jit
@no_type_check
def slope_kernel(
    u, x, m, roots, d_x, d_roots, tokens, rows: tl.constexpr, WIDTH: tl.constexpr,
    COLS: tl.constexpr, SHIFT: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of sum_n u_n^T M phi(x_n). Grid: rows of the batch, blocks of TOKENS and of x.

    Each pair is met from both of its sides, so that programs share nothing. `d_roots` has the parts
    of degrees 1 and 2 of each program, to be added up.
    """
    p = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * TOKENS
    first = tl.program_id(2) * BLOCK
    u += (p * tokens + n) * rows
    x += (p * tokens + n) * WIDTH
    m += p * rows * COLS
    roots += p * (2 + SHIFT) + SHIFT
    count = tokens - n
    b = first + tl.arange(0, BLOCK)
    own = load_tile(x, first, count, WIDTH, TOKENS, BLOCK)
    token = tl.arange(0, TOKENS)
    made = tl.zeros((TOKENS, BLOCK), tl.float32)
    linear = 0.0
    square = 0.0
    for a in range(-1, WIDTH):
        low, high = tl.minimum(a, b), tl.maximum(a, b)
        place = _first_of(low, WIDTH, SHIFT) + high
        slope = tl.zeros((TOKENS, BLOCK), tl.float32)
        for o in range(0, rows, ROWS):
            row = o + tl.arange(0, ROWS)
            mask = (row < rows)[:, None] & (b < WIDTH)[None, :]
            by = tl.load(m + row[:, None] * COLS + place[None, :], mask=mask, other=0.0)
            left = load_tile(u, o, count, rows, TOKENS, ROWS).to(DOT)
            slope = tl.dot(left, by.to(tl.float32).to(DOT), slope, input_precision=PRECISION)
        by = tl.load(x + token * WIDTH + a, mask=(token < count) & (token + a >= token), other=1.0)
        # The square of a coordinate has twice it for a derivative.
        weight = tl.where(a < 0, 1.0, tl.where(b == a, 2.0, ROOT_TWO))
        slope *= by.to(tl.float32)[:, None] * weight[None, :]
        along = tl.sum(slope * own)
        linear += tl.where(a < 0, along, 0.0)
        square += tl.where(a < 0, 0.0, along / 2)
        made += slope * tl.where(a < 0, tl.load(roots), tl.load(roots + 1))
    part = (p * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(2) + tl.program_id(2)
    tl.store(d_roots + 2 * part, linear)
    tl.store(d_roots + 2 * part + 1, square)
    store_tile(d_x + (p * tokens + n) * WIDTH, made, first, count, WIDTH, TOKENS, BLOCK)
