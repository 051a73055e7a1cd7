"""Momenta of some tokens, orthogonalised and read at once: no matrix per token leaves a program.

A program owns one row and head and the writes of a few tokens. Momentum w is

    S_w = carry_w S + sum_i read[w, i] u_i z_i^T                         rows x cols, rows <= cols

X_w = NS(S_w), and the program gives sum_w write[n, w] X_w right_n (or X_w^T left_n) and
sum_w end_w X_w over its own writes; the caller adds up the programs. Matrices live in scratch that
stays in the cache and are walked over in blocks, so that the registers hold one block of a product
whatever the sizes. What other threads wrote is read after a barrier only.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from ablate.components.kernels.tiles import (
    add_tile,
    get,
    load_column,
    load_tile,
    put,
)


@triton.jit
@no_type_check
def momentum(
    into, s0, u, z, carry, read, count, rows, cols,
    ROWS: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Put S_w into scratch by rank-one sums in fp32; return its Frobenius norm."""
    o = tl.arange(0, ROWS)
    square = 0.0
    for first in range(0, COLS, BLOCK):
        d = first + tl.arange(0, BLOCK)
        s = tl.load(carry).to(tl.float32) * load_tile(s0, first, rows, cols, ROWS, BLOCK)
        for i in range(count):
            weight = tl.load(read + i).to(tl.float32)
            if weight != 0.0:  # half of the sources are later than the write
                left = tl.load(u + i * rows + o, mask=o < rows, other=0.0).to(tl.float32)
                right = tl.load(z + i * cols + d, mask=d < cols, other=0.0).to(tl.float32)
                s += (weight * left)[:, None] * right[None, :]
        square += tl.sum(s * s)
        put(into, s, first, COLS, ROWS, BLOCK)
    tl.debug_barrier()
    return tl.sqrt(square)


@triton.jit
@no_type_check
def start(
    x_at, s_at, scale,
    ROWS: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """X_0 = S / scale."""
    for first in range(0, COLS, BLOCK):
        put(x_at, (get(s_at, first, COLS, ROWS, BLOCK) / scale).to(DOT), first, COLS, ROWS, BLOCK)
    tl.debug_barrier()


@triton.jit
@no_type_check
def outer(
    x_at, y_at, first,
    ROWS: tl.constexpr, SIDE: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Columns `first` to `first + SIDE` of X Y^T."""
    made = tl.zeros((ROWS, SIDE), tl.float32)
    for k in range(0, COLS, BLOCK):
        x = get(x_at, k, COLS, ROWS, BLOCK)
        y = get(y_at + first * COLS, k, COLS, SIDE, BLOCK)
        made = tl.dot(x, tl.trans(y), made, input_precision=PRECISION)
    return made


@triton.jit
@no_type_check
def times(
    made, square_at, x_at, first,
    ROWS: tl.constexpr, SIDE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add to `made` columns `first` to `first + BLOCK` of the square times X."""
    for k in range(0, ROWS, SIDE):
        square = get(square_at, k, ROWS, ROWS, SIDE)
        x = get(x_at + k * WIDTH, first, WIDTH, SIDE, BLOCK)
        made = tl.dot(square, x, made, input_precision=PRECISION)
    return made


@triton.jit
@no_type_check
def _polynomial(
    x_at, square_at, b, c,
    ROWS: tl.constexpr, SIDE: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Put b A + c A^2, A = X X^T, into the second square of scratch; A is the first."""
    poly_at = square_at + ROWS * ROWS
    for j in range(0, ROWS, SIDE):
        gram = outer(x_at, x_at, j, ROWS, SIDE, COLS, BLOCK, PRECISION)
        put(square_at, gram.to(DOT), j, ROWS, ROWS, SIDE)
    tl.debug_barrier()
    for j in range(0, ROWS, SIDE):
        square = tl.zeros((ROWS, SIDE), tl.float32)
        square = times(square, square_at, square_at, j, ROWS, SIDE, ROWS, SIDE, PRECISION)
        poly = b * get(square_at, j, ROWS, ROWS, SIDE).to(tl.float32) + c * square
        put(poly_at, poly.to(DOT), j, ROWS, ROWS, SIDE)
    tl.debug_barrier()


@triton.jit
@no_type_check
def _iterate(
    x_at, square_at, schedule, steps,
    ROWS: tl.constexpr, SIDE: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """X <- a X + (b A + c A^2) X in scratch, `steps` times.

    Squares that are one block stay in the registers.
    """
    for step in range(steps):
        a = tl.load(schedule + 3 * step)
        b = tl.load(schedule + 3 * step + 1)
        c = tl.load(schedule + 3 * step + 2)
        if SIDE == ROWS:
            gram = outer(x_at, x_at, 0, ROWS, ROWS, COLS, BLOCK, PRECISION).to(DOT)
            square = tl.dot(gram, gram, input_precision=PRECISION)
            poly = (b * gram.to(tl.float32) + c * square).to(DOT)
        else:
            _polynomial(x_at, square_at, b, c, ROWS, SIDE, COLS, BLOCK, DOT, PRECISION)
        for first in range(0, COLS, BLOCK):
            x = a * get(x_at, first, COLS, ROWS, BLOCK).to(tl.float32)
            if SIDE == ROWS:
                by = get(x_at, first, COLS, ROWS, BLOCK)
                x = tl.dot(poly, by, x, input_precision=PRECISION)
            else:
                poly_at = square_at + ROWS * ROWS
                x = times(x, poly_at, x_at, first, ROWS, SIDE, COLS, BLOCK, PRECISION)
            tl.debug_barrier()
            put(x_at, x.to(DOT), first, COLS, ROWS, BLOCK)
        tl.debug_barrier()


@triton.jit
@no_type_check
def forward_kernel(
    s0, u, z, carry, read, write, end, given, given_out, end_out, wide, narrow, squares, schedule,
    steps, eps, sources, writes, group, tokens, rows: tl.constexpr, cols: tl.constexpr,
    ROWS: tl.constexpr, SIDE: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr,
    TOKENS: tl.constexpr, FROM_RIGHT: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Reads and the end. `given` is on the columns' side if FROM_RIGHT, else on the rows' side.

    Program p * groups + g owns writes g * group and on, and its own `given_out` and `end_out`,
    which come in as zeros.
    """
    own = tl.program_id(0).to(tl.int64)
    groups = (writes + group - 1) // group
    p = own // groups
    begin = (own % groups).to(tl.int32) * group
    s0 += p * rows * cols
    u += p * sources * rows
    z += p * sources * cols
    carry += p * writes
    read += p * writes * sources
    write += p * tokens * writes
    end += p * writes
    given += p * tokens * (cols if FROM_RIGHT else rows)
    end_out += own * rows * cols
    given_out += own * tokens * (rows if FROM_RIGHT else cols)
    s_at = wide + own * ROWS * COLS
    x_at = narrow + own * ROWS * COLS
    square_at = squares + own * 2 * ROWS * ROWS
    for w in range(begin, tl.minimum(begin + group, writes)):
        norm = momentum(
            s_at, s0, u, z, carry + w, read + w * sources, sources, rows, cols, ROWS, COLS, BLOCK
        )
        start(x_at, s_at, norm + eps, ROWS, COLS, BLOCK, DOT)
        _iterate(x_at, square_at, schedule, steps, ROWS, SIDE, COLS, BLOCK, DOT, PRECISION)
        last = tl.load(end + w).to(tl.float32)
        for first in range(0, COLS, BLOCK):
            x = get(x_at, first, COLS, ROWS, BLOCK)
            add_tile(end_out, last * x.to(tl.float32), first, rows, cols, ROWS, BLOCK)
        for n in range(0, tokens, TOKENS):
            left_over = tokens - n
            seen = load_column(write + n * writes + w, left_over, writes, TOKENS)[:, None]
            if FROM_RIGHT:
                out = tl.zeros((TOKENS, ROWS), tl.float32)
                for first in range(0, COLS, BLOCK):
                    right = load_tile(given + n * cols, first, left_over, cols, TOKENS, BLOCK)
                    x = get(x_at, first, COLS, ROWS, BLOCK)
                    out = tl.dot(
                        (right * seen).to(DOT), tl.trans(x), out, input_precision=PRECISION
                    )
                add_tile(given_out + n * rows, out, 0, left_over, rows, TOKENS, ROWS)
            else:
                left = load_tile(given + n * rows, 0, left_over, rows, TOKENS, ROWS) * seen
                for first in range(0, COLS, BLOCK):
                    x = get(x_at, first, COLS, ROWS, BLOCK)
                    made = tl.dot(left.to(DOT), x, input_precision=PRECISION)
                    add_tile(given_out + n * cols, made, first, left_over, cols, TOKENS, BLOCK)
        tl.debug_barrier()
