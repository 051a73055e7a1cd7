"""A fast weight read through coefficients: what `recurrence.fast_weight.read_weight` says, tiled.

With X_m the matrices of a stretch's start and sources u_s z_s^T,

    y_n = sum_m share[n, m] X_m z_n - sum_s read[n, s] (z_n . z_s) u_s

A program owns one stretch of one row and head and a block of the result; what it needs of products
of tokens with sources it makes anew, as attention kernels do, and nothing but results is written.
`rows` and `cols` are X's, o and i; widths are constants, so that addresses are.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from ablate.components.kernels.tiles import inner_products, load_column, load_tile, store_tile


@triton.jit
@no_type_check
def load_corner(at, rows, cols, step, ROWS: tl.constexpr, COLS: tl.constexpr):
    """The first `rows` and `cols` of a matrix whose rows are `step` apart, zero beyond.

    With `load_tile` from an offset the backward kernel of 64 columns spills registers on sm_100.
    """
    r = tl.arange(0, ROWS)[:, None]
    c = tl.arange(0, COLS)[None, :]
    return tl.load(at + r * step + c, mask=(r < rows) & (c < cols), other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def forward_kernel(
    z, state, zs, us, share, read, y, tokens, sources, rows: tl.constexpr, cols: tl.constexpr,
    STATES: tl.constexpr, TOKENS: tl.constexpr, SOURCES: tl.constexpr, BLOCK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid: stretches, blocks of TOKENS, blocks of BLOCK of the `rows`."""
    p = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * TOKENS
    o = tl.program_id(2) * BLOCK
    count = tokens - n
    z += (p * tokens + n) * cols
    read += (p * tokens + n) * sources
    share += (p * tokens + n) * STATES
    zs += p * sources * cols
    us += p * sources * rows
    made = tl.zeros((TOKENS, BLOCK), tl.float32)
    for s in range(0, sources, SOURCES):
        rest = sources - s
        kernel = inner_products(
            z, zs + s * cols, cols, count, rest, TOKENS, SOURCES, BLOCK, DOT, PRECISION
        )
        kernel *= load_corner(read + s, count, rest, sources, TOKENS, SOURCES)
        by = load_tile(us + s * rows, o, rest, rows, SOURCES, BLOCK)
        made -= tl.dot(kernel.to(DOT), by.to(DOT), input_precision=PRECISION)
    for m in tl.static_range(STATES):
        x = state + ((p * STATES + m) * rows + o) * cols
        on = inner_products(z, x, cols, count, rows - o, TOKENS, BLOCK, BLOCK, DOT, PRECISION)
        made += load_column(share + m, count, STATES, TOKENS)[:, None] * on
    store_tile(y + (p * tokens + n) * rows, made, o, count, rows, TOKENS, BLOCK)


@triton.jit
@no_type_check
def backward_tokens_kernel(
    z, state, zs, us, share, read, d_y, d_z, d_share, d_read,
    tokens, sources, rows: tl.constexpr, cols: tl.constexpr,
    STATES: tl.constexpr, TOKENS: tl.constexpr, SOURCES: tl.constexpr, BLOCK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of z, `read` and `share`. Grid: stretches, blocks of TOKENS, BLOCKs of the `cols`.

    `d_share` comes in one part for each block of columns, to be added up.
    """
    p = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * TOKENS
    i = tl.program_id(2) * BLOCK
    count = tokens - n
    token = tl.arange(0, TOKENS)
    z += (p * tokens + n) * cols
    d_y += (p * tokens + n) * rows
    read += (p * tokens + n) * sources
    share += (p * tokens + n) * STATES
    zs += p * sources * cols
    us += p * sources * rows
    made = tl.zeros((TOKENS, BLOCK), tl.float32)
    for m in tl.static_range(STATES):
        on = tl.zeros((TOKENS, BLOCK), tl.float32)
        for o in range(0, rows, BLOCK):
            back = load_tile(d_y, o, count, rows, TOKENS, BLOCK).to(DOT)
            x = state + ((p * STATES + m) * rows + o) * cols
            x = load_tile(x, i, rows - o, cols, BLOCK, BLOCK).to(DOT)
            on = tl.dot(back, x, on, input_precision=PRECISION)
        made += load_column(share + m, count, STATES, TOKENS)[:, None] * on
        on *= load_tile(z, i, count, cols, TOKENS, BLOCK)
        place = ((p * tl.num_programs(2) + tl.program_id(2)) * tokens + n + token) * STATES + m
        tl.store(d_share + place, tl.sum(on, 1), mask=token < count)
    for s in range(0, sources, SOURCES):
        rest = sources - s
        slope = inner_products(
            d_y, us + s * rows, rows, count, rest, TOKENS, SOURCES, BLOCK, DOT, PRECISION
        )
        if tl.program_id(2) == 0:
            kernel = inner_products(
                z, zs + s * cols, cols, count, rest, TOKENS, SOURCES, BLOCK, DOT, PRECISION
            )
            into = d_read + (p * tokens + n) * sources
            store_tile(into, -kernel * slope, s, count, sources, TOKENS, SOURCES)
        slope *= load_corner(read + s, count, rest, sources, TOKENS, SOURCES)
        by = load_tile(zs + s * cols, i, rest, cols, SOURCES, BLOCK)
        made -= tl.dot(slope.to(DOT), by.to(DOT), input_precision=PRECISION)
    store_tile(d_z + (p * tokens + n) * cols, made, i, count, cols, TOKENS, BLOCK)


@triton.jit
@no_type_check
def backward_sources_kernel(
    token_side, source_side, read, onto, made, tokens, sources,
    inner: tl.constexpr, width: tl.constexpr, TOKENS: tl.constexpr, SOURCES: tl.constexpr,
    BLOCK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """made_s = -sum_n read[n, s] (token_side_n . source_side_s) onto_n.

    Given z, z_s and the gradient of y it is that of u; given the gradient of y, u and z that of
    z_s. Grid: stretches, blocks of SOURCES, blocks of BLOCK of the `width` of `onto`.
    """
    p = tl.program_id(0).to(tl.int64)
    s = tl.program_id(1) * SOURCES
    e = tl.program_id(2) * BLOCK
    rest = sources - s
    token_side += p * tokens * inner
    onto += p * tokens * width
    source_side += (p * sources + s) * inner
    read += p * tokens * sources + s
    total = tl.zeros((SOURCES, BLOCK), tl.float32)
    for n in range(0, tokens, TOKENS):
        count = tokens - n
        kernel = inner_products(
            token_side + n * inner, source_side, inner, count, rest,
            TOKENS, SOURCES, BLOCK, DOT, PRECISION,
        )  # fmt: skip
        kernel *= load_corner(read + n * sources, count, rest, sources, TOKENS, SOURCES)
        by = load_tile(onto + n * width, e, count, width, TOKENS, BLOCK)
        total -= tl.dot(tl.trans(kernel.to(DOT)), by.to(DOT), input_precision=PRECISION)
    store_tile(made + (p * sources + s) * width, total, e, rest, width, SOURCES, BLOCK)


@triton.jit
@no_type_check
def backward_state_kernel(
    z, share, d_y, d_state, tokens, rows: tl.constexpr, cols: tl.constexpr,
    STATES: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of X. Grid: matrices of all stretches, blocks of `rows`, blocks of `cols`."""
    matrix = tl.program_id(0).to(tl.int64)
    p = matrix // STATES
    o = tl.program_id(1) * BLOCK
    i = tl.program_id(2) * BLOCK
    z += p * tokens * cols
    d_y += p * tokens * rows
    share += p * tokens * STATES + matrix % STATES
    made = tl.zeros((BLOCK, BLOCK), tl.float32)
    for n in range(0, tokens, TOKENS):
        count = tokens - n
        weight = load_column(share + n * STATES, count, STATES, TOKENS)
        back = load_tile(d_y + n * rows, o, count, rows, TOKENS, BLOCK) * weight[:, None]
        by = load_tile(z + n * cols, i, count, cols, TOKENS, BLOCK).to(DOT)
        made = tl.dot(tl.trans(back.to(DOT)), by, made, input_precision=PRECISION)
    store_tile(d_state + (matrix * rows + o) * cols, made, i, rows - o, cols, BLOCK, BLOCK)
