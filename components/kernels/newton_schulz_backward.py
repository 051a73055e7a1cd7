"""The gradients of orthogonalised momenta, with the derivative of Newton-Schulz as its dual run.

All operands of a product lie in scratch and are read in blocks, squares too, so that no registers
are spilled at 128 rows.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from ablate.components.kernels.newton_schulz_kernels import momentum, outer, start, times
from ablate.components.kernels.tiles import add_tile, get, load_column, load_tile, mirror, put


@triton.jit
@no_type_check
def _slopes(
    x_at, d_at, gram_at, cross_at, b, c,
    ROWS: tl.constexpr, SIDE: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Put b A + c A^2 and its derivative into the second and third square of scratch.

    A = X X^T is the first; its derivative D X^T + X D^T is symmetric, as A dA + dA A is, so each is
    a product in fp32 to which its mirror image is added.
    """
    SQUARE: tl.constexpr = ROWS * ROWS
    for j in range(0, ROWS, SIDE):
        gram = outer(x_at, x_at, j, ROWS, SIDE, COLS, BLOCK, PRECISION)
        put(gram_at, gram.to(DOT), j, ROWS, ROWS, SIDE)
        cross = outer(d_at, x_at, j, ROWS, SIDE, COLS, BLOCK, PRECISION)
        put(cross_at, cross, j, ROWS, ROWS, SIDE)
    tl.debug_barrier()
    for j in range(0, ROWS, SIDE):
        d_gram = get(cross_at, j, ROWS, ROWS, SIDE) + mirror(cross_at, j, ROWS, ROWS, SIDE)
        put(gram_at + 2 * SQUARE, d_gram.to(DOT), j, ROWS, ROWS, SIDE)
    tl.debug_barrier()
    for j in range(0, ROWS, SIDE):
        zero = tl.zeros((ROWS, SIDE), tl.float32)
        product = times(zero, gram_at, gram_at + 2 * SQUARE, j, ROWS, SIDE, ROWS, SIDE, PRECISION)
        put(cross_at, product, j, ROWS, ROWS, SIDE)
        zero = tl.zeros((ROWS, SIDE), tl.float32)
        square = times(zero, gram_at, gram_at, j, ROWS, SIDE, ROWS, SIDE, PRECISION)
        poly = b * get(gram_at, j, ROWS, ROWS, SIDE).to(tl.float32) + c * square
        put(gram_at + SQUARE, poly.to(DOT), j, ROWS, ROWS, SIDE)
    tl.debug_barrier()
    for j in range(0, ROWS, SIDE):
        both = get(cross_at, j, ROWS, ROWS, SIDE) + mirror(cross_at, j, ROWS, ROWS, SIDE)
        d_poly = b * get(gram_at + 2 * SQUARE, j, ROWS, ROWS, SIDE).to(tl.float32) + c * both
        tl.debug_barrier()
        put(gram_at + 2 * SQUARE, d_poly.to(DOT), j, ROWS, ROWS, SIDE)
    tl.debug_barrier()


@triton.jit
@no_type_check
def _iterate_dual(
    x_at, d_at, gram_at, cross_at, schedule, steps,
    ROWS: tl.constexpr, SIDE: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`_iterate` and its derivative in direction D."""
    SQUARE: tl.constexpr = ROWS * ROWS
    for step in range(steps):
        a = tl.load(schedule + 3 * step)
        b = tl.load(schedule + 3 * step + 1)
        c = tl.load(schedule + 3 * step + 2)
        _slopes(x_at, d_at, gram_at, cross_at, b, c, ROWS, SIDE, COLS, BLOCK, DOT, PRECISION)
        poly_at = gram_at + SQUARE
        for j in range(0, COLS, BLOCK):
            d = a * get(d_at, j, COLS, ROWS, BLOCK).to(tl.float32)
            d = times(d, poly_at, d_at, j, ROWS, SIDE, COLS, BLOCK, PRECISION)
            d = times(d, poly_at + SQUARE, x_at, j, ROWS, SIDE, COLS, BLOCK, PRECISION)
            tl.debug_barrier()
            put(d_at, d.to(DOT), j, COLS, ROWS, BLOCK)
            x = a * get(x_at, j, COLS, ROWS, BLOCK).to(tl.float32)
            x = times(x, poly_at, x_at, j, ROWS, SIDE, COLS, BLOCK, PRECISION)
            tl.debug_barrier()
            put(x_at, x.to(DOT), j, COLS, ROWS, BLOCK)
        tl.debug_barrier()


@triton.jit
@no_type_check
def _direction(
    d_at, left, right, d_end_out, write, last, writes, tokens, rows, cols,
    ROWS: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Put the gradient of X_w into scratch: last * d_end_out + sum_n write_n left_n right_n^T."""
    for first in range(0, COLS, BLOCK):
        d = last * load_tile(d_end_out, first, rows, cols, ROWS, BLOCK)
        for n in range(0, tokens, TOKENS):
            seen = load_column(write + n * writes, tokens - n, writes, TOKENS)[:, None]
            by = load_tile(left + n * rows, 0, tokens - n, rows, TOKENS, ROWS) * seen
            on = load_tile(right + n * cols, first, tokens - n, cols, TOKENS, BLOCK)
            d = tl.dot(tl.trans(by.to(DOT)), on.to(DOT), d, input_precision=PRECISION)
        put(d_at, d.to(DOT), first, COLS, ROWS, BLOCK)
    tl.debug_barrier()


@triton.jit
@no_type_check
def _to_tokens(
    x_at, left, right, d_given, write, d_write, writes, tokens, rows, cols,
    ROWS: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr,
    FROM_RIGHT: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of what was given and of `write`, by X_w."""
    for n in range(0, tokens, TOKENS):
        over = tokens - n
        seen = load_column(write + n * writes, over, writes, TOKENS)[:, None]
        onto = tl.zeros((TOKENS, ROWS), tl.float32)
        for first in range(0, COLS, BLOCK):
            x = get(x_at, first, COLS, ROWS, BLOCK)
            by = load_tile(right + n * cols, first, over, cols, TOKENS, BLOCK).to(DOT)
            onto = tl.dot(by, tl.trans(x), onto, input_precision=PRECISION)
        if not FROM_RIGHT:
            add_tile(d_given + n * rows, onto * seen, 0, over, rows, TOKENS, ROWS)
        onto *= load_tile(left + n * rows, 0, over, rows, TOKENS, ROWS)
        at = n + tl.arange(0, TOKENS)
        tl.store(d_write + at * writes, tl.sum(onto, 1), mask=at < tokens)
        for first in range(0, COLS if FROM_RIGHT else 0, BLOCK):
            x = get(x_at, first, COLS, ROWS, BLOCK)
            by = load_tile(left + n * rows, 0, over, rows, TOKENS, ROWS) * seen
            made = tl.dot(by.to(DOT), x, input_precision=PRECISION)
            add_tile(d_given + n * cols, made, first, over, cols, TOKENS, BLOCK)


@triton.jit
@no_type_check
def _to_sources(
    h_at, u, z, read, d_u, d_z, d_read, sources, rows, cols,
    ROWS: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr, SOURCES: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of u, z and `read`, by H, the gradient of S_w."""
    for i in range(0, sources, SOURCES):
        over = sources - i
        weights = load_column(read + i, over, 1, SOURCES)[:, None]
        onto = tl.zeros((SOURCES, ROWS), tl.float32)
        for first in range(0, COLS, BLOCK):
            h = get(h_at, first, COLS, ROWS, BLOCK)
            by = load_tile(z + i * cols, first, over, cols, SOURCES, BLOCK).to(DOT)
            onto = tl.dot(by, tl.trans(h), onto, input_precision=PRECISION)
        add_tile(d_u + i * rows, onto * weights, 0, over, rows, SOURCES, ROWS)
        onto *= load_tile(u + i * rows, 0, over, rows, SOURCES, ROWS)
        at = i + tl.arange(0, SOURCES)
        tl.store(d_read + at, tl.sum(onto, 1), mask=at < sources)
        for first in range(0, COLS, BLOCK):
            h = get(h_at, first, COLS, ROWS, BLOCK)
            by = load_tile(u + i * rows, 0, over, rows, SOURCES, ROWS) * weights
            made = tl.dot(by.to(DOT), h, input_precision=PRECISION)
            add_tile(d_z + i * cols, made, first, over, cols, SOURCES, BLOCK)


@triton.jit
@no_type_check
def _to_momentum(
    d_at, s_at, s0, d_s0, norm, scale, carried, rows, cols,
    ROWS: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Make H, the gradient of S_w, of D in its place; add its share to that of S, return carry's.

    The norm has its own share; a zero matrix has none, and its norm no derivative.
    """
    along = 0.0
    for first in range(0, COLS, BLOCK):
        d = get(d_at, first, COLS, ROWS, BLOCK).to(tl.float32)
        along += tl.sum(d * get(s_at, first, COLS, ROWS, BLOCK))
    along = tl.where(norm > 0, along / (scale * scale * norm), 0.0)
    own = 0.0
    for first in range(0, COLS, BLOCK):
        h = get(d_at, first, COLS, ROWS, BLOCK).to(tl.float32) / scale
        h -= along * get(s_at, first, COLS, ROWS, BLOCK)
        tl.debug_barrier()
        put(d_at, h.to(DOT), first, COLS, ROWS, BLOCK)
        own += tl.sum(h * load_tile(s0, first, rows, cols, ROWS, BLOCK))
        add_tile(d_s0, carried * h, first, rows, cols, ROWS, BLOCK)
    tl.debug_barrier()
    return own


@triton.jit
@no_type_check
def backward_kernel(
    s0, u, z, carry, read, write, end, left, right, d_end_out,
    d_s0, d_u, d_z, d_carry, d_read, d_write, d_end, d_given, wide, narrow, dual, grams, schedule,
    steps, eps, sources, writes, group, tokens, rows: tl.constexpr, cols: tl.constexpr,
    ROWS: tl.constexpr, SIDE: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr,
    TOKENS: tl.constexpr, FROM_RIGHT: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of `forward_kernel`; one of `left` and `right` was given, the other is a gradient.

    `d_s0, d_u, d_z, d_given` are the program's own and come in as zeros; nothing else is read
    before it is written.
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
    left += p * tokens * rows
    right += p * tokens * cols
    d_end_out += p * rows * cols
    d_carry += p * writes
    d_read += p * writes * sources
    d_write += p * tokens * writes
    d_end += p * writes
    d_s0 += own * rows * cols
    d_u += own * sources * rows
    d_z += own * sources * cols
    d_given += own * tokens * (cols if FROM_RIGHT else rows)
    s_at = wide + own * (ROWS * COLS + ROWS * ROWS)
    cross_at = s_at + ROWS * COLS
    x_at = narrow + own * ROWS * COLS
    d_at = dual + own * ROWS * COLS
    gram_at = grams + own * 3 * ROWS * ROWS
    for w in range(begin, tl.minimum(begin + group, writes)):
        norm = momentum(
            s_at, s0, u, z, carry + w, read + w * sources, sources, rows, cols, ROWS, COLS, BLOCK
        )
        start(x_at, s_at, norm + eps, ROWS, COLS, BLOCK, DOT)
        _direction(
            d_at, left, right, d_end_out, write + w, tl.load(end + w).to(tl.float32),
            writes, tokens, rows, cols, ROWS, COLS, BLOCK, TOKENS, DOT, PRECISION,
        )  # fmt: skip
        _iterate_dual(
            x_at, d_at, gram_at, cross_at, schedule, steps, ROWS, SIDE, COLS, BLOCK, DOT, PRECISION
        )
        kept = 0.0
        for first in range(0, COLS, BLOCK):
            x = get(x_at, first, COLS, ROWS, BLOCK).to(tl.float32)
            kept += tl.sum(load_tile(d_end_out, first, rows, cols, ROWS, BLOCK) * x)
        tl.store(d_end + w, kept)
        _to_tokens(
            x_at, left, right, d_given, write + w, d_write + w, writes, tokens, rows, cols,
            ROWS, COLS, BLOCK, TOKENS, FROM_RIGHT, DOT, PRECISION,
        )  # fmt: skip
        carried = tl.load(carry + w).to(tl.float32)
        share = _to_momentum(
            d_at, s_at, s0, d_s0, norm, norm + eps, carried, rows, cols, ROWS, COLS, BLOCK, DOT
        )
        tl.store(d_carry + w, share)
        _to_sources(
            d_at, u, z, read + w * sources, d_u, d_z, d_read + w * sources, sources, rows, cols,
            ROWS, COLS, BLOCK, TOKENS, DOT, PRECISION,
        )  # fmt: skip
        tl.debug_barrier()
