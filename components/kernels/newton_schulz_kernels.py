"""Momenta of some tokens, orthogonalised and read at once: no matrix per token leaves a program.

A program owns one row and head and the writes of a few tokens. Momentum w is

    S_w = carry_w S + sum_i read[w, i] u_i z_i^T                         rows x cols, rows <= cols

X_w = NS(S_w), and the program gives sum_w write[n, w] X_w right_n (or X_w^T left_n) and
sum_w end_w X_w. Matrices live in scratch that stays in the cache, and are walked over in blocks of
columns, so that only rows x rows products have to fit into registers, at any number of columns.
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
    store_tile,
)


@triton.jit
@no_type_check
def _momentum(
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
            left = tl.load(u + i * rows + o, mask=o < rows, other=0.0).to(tl.float32)
            right = tl.load(z + i * cols + d, mask=d < cols, other=0.0).to(tl.float32)
            s += (weight * left)[:, None] * right[None, :]
        square += tl.sum(s * s)
        put(into, s, first, COLS, ROWS, BLOCK)
    tl.debug_barrier()
    return tl.sqrt(square)


@triton.jit
@no_type_check
def _start(
    x_at, s_at, scale,
    ROWS: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """X_0 = S / scale."""
    for first in range(0, COLS, BLOCK):
        put(x_at, (get(s_at, first, COLS, ROWS, BLOCK) / scale).to(DOT), first, COLS, ROWS, BLOCK)
    tl.debug_barrier()


@triton.jit
@no_type_check
def _gram(
    x_at, ROWS: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr
):
    gram = tl.zeros((ROWS, ROWS), tl.float32)
    for first in range(0, COLS, BLOCK):
        x = get(x_at, first, COLS, ROWS, BLOCK)
        gram = tl.dot(x, tl.trans(x), gram, input_precision=PRECISION)
    return gram


@triton.jit
@no_type_check
def _poly(gram, b, c, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """b A + c A^2."""
    return (b * gram.to(tl.float32) + c * tl.dot(gram, gram, input_precision=PRECISION)).to(DOT)


@triton.jit
@no_type_check
def _iterate(
    x_at, schedule, steps,
    ROWS: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """X <- a X + (b A + c A^2) X in scratch, `steps` times."""
    for step in range(steps):
        a = tl.load(schedule + 3 * step)
        b = tl.load(schedule + 3 * step + 1)
        c = tl.load(schedule + 3 * step + 2)
        gram = _gram(x_at, ROWS, COLS, BLOCK, PRECISION).to(DOT)
        poly = _poly(gram, b, c, DOT, PRECISION)
        for first in range(0, COLS, BLOCK):
            x = get(x_at, first, COLS, ROWS, BLOCK)
            x = tl.dot(poly, x, a * x.to(tl.float32), input_precision=PRECISION).to(DOT)
            put(x_at, x, first, COLS, ROWS, BLOCK)
        tl.debug_barrier()


@triton.jit
@no_type_check
def _iterate_dual(
    x_at, d_at, gram_at, schedule, steps,
    ROWS: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """`_iterate` and its derivative in direction D; scratch between products frees registers."""
    for step in range(steps):
        a = tl.load(schedule + 3 * step)
        b = tl.load(schedule + 3 * step + 1)
        c = tl.load(schedule + 3 * step + 2)
        put(gram_at, _gram(x_at, ROWS, COLS, BLOCK, PRECISION).to(DOT), 0, ROWS, ROWS, ROWS)
        tl.debug_barrier()
        cross = tl.zeros((ROWS, ROWS), tl.float32)
        for first in range(0, COLS, BLOCK):
            x = get(x_at, first, COLS, ROWS, BLOCK)
            d = get(d_at, first, COLS, ROWS, BLOCK)
            cross = tl.dot(d, tl.trans(x), cross, input_precision=PRECISION)
        put(gram_at + ROWS * ROWS, (cross + tl.trans(cross)).to(DOT), 0, ROWS, ROWS, ROWS)
        tl.debug_barrier()
        gram = get(gram_at, 0, ROWS, ROWS, ROWS)
        d_gram = get(gram_at + ROWS * ROWS, 0, ROWS, ROWS, ROWS)
        product = tl.dot(gram, d_gram, input_precision=PRECISION)
        product += tl.trans(product)
        d_poly = (b * d_gram.to(tl.float32) + c * product).to(DOT)
        tl.debug_barrier()
        put(gram_at + ROWS * ROWS, d_poly, 0, ROWS, ROWS, ROWS)
        tl.debug_barrier()
        poly = _poly(get(gram_at, 0, ROWS, ROWS, ROWS), b, c, DOT, PRECISION)
        tl.debug_barrier()
        put(gram_at, poly, 0, ROWS, ROWS, ROWS)
        tl.debug_barrier()
        for first in range(0, COLS, BLOCK):
            d = get(d_at, first, COLS, ROWS, BLOCK)
            poly = get(gram_at, 0, ROWS, ROWS, ROWS)
            d = tl.dot(poly, d, a * d.to(tl.float32), input_precision=PRECISION)
            x = get(x_at, first, COLS, ROWS, BLOCK)
            d_poly = get(gram_at + ROWS * ROWS, 0, ROWS, ROWS, ROWS)
            put(
                d_at,
                tl.dot(d_poly, x, d, input_precision=PRECISION).to(DOT),
                first,
                COLS,
                ROWS,
                BLOCK,
            )
        tl.debug_barrier()
        for first in range(0, COLS, BLOCK):
            x = get(x_at, first, COLS, ROWS, BLOCK)
            poly = get(gram_at, 0, ROWS, ROWS, ROWS)
            x = tl.dot(poly, x, a * x.to(tl.float32), input_precision=PRECISION).to(DOT)
            put(x_at, x, first, COLS, ROWS, BLOCK)
        tl.debug_barrier()


@triton.jit
@no_type_check
def forward_kernel(
    s0, u, z, carry, read, write, end, given, given_out, end_out, wide, narrow, schedule,
    steps, eps, sources, writes, tokens, rows: tl.constexpr, cols: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr,
    FROM_RIGHT: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Reads and the end. `given` is on the columns' side if FROM_RIGHT, else on the rows' side.

    `end_out`, and `given_out` unless FROM_RIGHT, come in as zeros.
    """
    p = tl.program_id(0).to(tl.int64)
    s0 += p * rows * cols
    u += p * sources * rows
    z += p * sources * cols
    carry += p * writes
    read += p * writes * sources
    write += p * tokens * writes
    end += p * writes
    end_out += p * rows * cols
    given += p * tokens * (cols if FROM_RIGHT else rows)
    given_out += p * tokens * (rows if FROM_RIGHT else cols)
    s_at = wide + p * ROWS * COLS
    x_at = narrow + p * ROWS * COLS
    out = tl.zeros((TOKENS, ROWS), tl.float32)
    for w in range(writes):
        norm = _momentum(
            s_at, s0, u, z, carry + w, read + w * sources, sources, rows, cols, ROWS, COLS, BLOCK
        )
        _start(x_at, s_at, norm + eps, ROWS, COLS, BLOCK, DOT)
        _iterate(x_at, schedule, steps, ROWS, COLS, BLOCK, DOT, PRECISION)
        seen = load_column(write + w, tokens, writes, TOKENS)
        last = tl.load(end + w).to(tl.float32)
        for first in range(0, COLS, BLOCK):
            x = get(x_at, first, COLS, ROWS, BLOCK)
            add_tile(end_out, last * x.to(tl.float32), first, rows, cols, ROWS, BLOCK)
            if FROM_RIGHT:
                right = load_tile(given, first, tokens, cols, TOKENS, BLOCK) * seen[:, None]
                out = tl.dot(right.to(DOT), tl.trans(x), out, input_precision=PRECISION)
            else:
                left = load_tile(given, 0, tokens, rows, TOKENS, ROWS) * seen[:, None]
                made = tl.dot(left.to(DOT), x, input_precision=PRECISION)
                add_tile(given_out, made, first, tokens, cols, TOKENS, BLOCK)
        tl.debug_barrier()
    if FROM_RIGHT:
        store_tile(given_out, out, 0, tokens, rows, TOKENS, ROWS)


@triton.jit
@no_type_check
def backward_kernel(
    s0, u, z, carry, read, write, end, left, right, d_end_out,
    d_s0, d_u, d_z, d_carry, d_read, d_write, d_end, d_given, wide, narrow, dual, grams, schedule,
    steps, eps, sources, writes, tokens, rows: tl.constexpr, cols: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, BLOCK: tl.constexpr, SOURCES: tl.constexpr,
    TOKENS: tl.constexpr, FROM_RIGHT: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of `forward_kernel`; one of `left` and `right` was given, the other is a gradient.

    `d_s0, d_u, d_z, d_given` come in as zeros; nothing else is read before it is written.
    """
    p = tl.program_id(0).to(tl.int64)
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
    d_s0 += p * rows * cols
    d_u += p * sources * rows
    d_z += p * sources * cols
    d_carry += p * writes
    d_read += p * writes * sources
    d_write += p * tokens * writes
    d_end += p * writes
    d_given += p * tokens * (cols if FROM_RIGHT else rows)
    s_at = wide + p * ROWS * COLS
    x_at = narrow + p * ROWS * COLS
    d_at = dual + p * ROWS * COLS
    gram_at = grams + p * 2 * ROWS * ROWS
    n = tl.arange(0, TOKENS)
    i = tl.arange(0, SOURCES)
    for w in range(writes):
        norm = _momentum(
            s_at, s0, u, z, carry + w, read + w * sources, sources, rows, cols, ROWS, COLS, BLOCK
        )
        scale = norm + eps
        _start(x_at, s_at, scale, ROWS, COLS, BLOCK, DOT)
        seen = load_column(write + w, tokens, writes, TOKENS)
        last = tl.load(end + w).to(tl.float32)
        for first in range(0, COLS, BLOCK):
            weighted = load_tile(left, 0, tokens, rows, TOKENS, ROWS) * seen[:, None]
            by = load_tile(right, first, tokens, cols, TOKENS, BLOCK)
            d = last * load_tile(d_end_out, first, rows, cols, ROWS, BLOCK)
            d = tl.dot(tl.trans(weighted.to(DOT)), by.to(DOT), d, input_precision=PRECISION)
            put(d_at, d.to(DOT), first, COLS, ROWS, BLOCK)
        tl.debug_barrier()
        _iterate_dual(x_at, d_at, gram_at, schedule, steps, ROWS, COLS, BLOCK, DOT, PRECISION)
        along = 0.0
        kept = 0.0
        for first in range(0, COLS, BLOCK):
            d = get(d_at, first, COLS, ROWS, BLOCK).to(tl.float32)
            along += tl.sum(d * get(s_at, first, COLS, ROWS, BLOCK))
            x = get(x_at, first, COLS, ROWS, BLOCK).to(tl.float32)
            kept += tl.sum(load_tile(d_end_out, first, rows, cols, ROWS, BLOCK) * x)
        tl.store(d_end + w, kept)
        onto_left = tl.zeros((TOKENS, ROWS), tl.float32)
        for first in range(0, COLS, BLOCK):
            x = get(x_at, first, COLS, ROWS, BLOCK)
            by = load_tile(right, first, tokens, cols, TOKENS, BLOCK).to(DOT)
            onto_left = tl.dot(by, tl.trans(x), onto_left, input_precision=PRECISION)
        for first in range(0, COLS if FROM_RIGHT else 0, BLOCK):
            x = get(x_at, first, COLS, ROWS, BLOCK)
            weighted = load_tile(left, 0, tokens, rows, TOKENS, ROWS) * seen[:, None]
            made = tl.dot(weighted.to(DOT), x, input_precision=PRECISION)
            add_tile(d_given, made, first, tokens, cols, TOKENS, BLOCK)
        if not FROM_RIGHT:
            add_tile(d_given, onto_left * seen[:, None], 0, tokens, rows, TOKENS, ROWS)
        onto_left *= load_tile(left, 0, tokens, rows, TOKENS, ROWS)
        tl.store(d_write + n * writes + w, tl.sum(onto_left, 1), mask=n < tokens)
        # The norm's own share; a zero matrix has none, and its norm no derivative.
        along = tl.where(norm > 0, along / (scale * scale * norm), 0.0)
        carried = tl.load(carry + w).to(tl.float32)
        own = 0.0
        tl.debug_barrier()
        for first in range(0, COLS, BLOCK):
            h = get(d_at, first, COLS, ROWS, BLOCK).to(tl.float32) / scale
            h -= along * get(s_at, first, COLS, ROWS, BLOCK)
            put(d_at, h.to(DOT), first, COLS, ROWS, BLOCK)
            own += tl.sum(h * load_tile(s0, first, rows, cols, ROWS, BLOCK))
            add_tile(d_s0, carried * h, first, rows, cols, ROWS, BLOCK)
        tl.store(d_carry + w, own)
        tl.debug_barrier()
        weights = load_column(read + w * sources, sources, 1, SOURCES)
        onto_u = tl.zeros((SOURCES, ROWS), tl.float32)
        for first in range(0, COLS, BLOCK):
            h = get(d_at, first, COLS, ROWS, BLOCK)
            by = load_tile(z, first, sources, cols, SOURCES, BLOCK).to(DOT)
            onto_u = tl.dot(by, tl.trans(h), onto_u, input_precision=PRECISION)
        add_tile(d_u, onto_u * weights[:, None], 0, sources, rows, SOURCES, ROWS)
        onto_u *= load_tile(u, 0, sources, rows, SOURCES, ROWS)
        tl.store(d_read + w * sources + i, tl.sum(onto_u, 1), mask=i < sources)
        for first in range(0, COLS, BLOCK):
            h = get(d_at, first, COLS, ROWS, BLOCK)
            weighted = load_tile(u, 0, sources, rows, SOURCES, ROWS) * weights[:, None]
            made = tl.dot(weighted.to(DOT), h, input_precision=PRECISION)
            add_tile(d_z, made, first, sources, cols, SOURCES, BLOCK)
        tl.debug_barrier()
