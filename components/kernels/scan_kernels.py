"""Stretches one after another in one launch: `recurrence.fast_weight.scan_weight`, tiled.

With X_m the state's matrices, for g = 0, 1, ...:

    u_s  = sum_k X_k probe_{k,s} - v_s          at the stretch's start; without probes -v_s
    X'_m = sum_k mix[m, k] X_k + sum_s last[s, m] u_s z_s^T

The rows of X never meet, so a program owns one row and head and some rows of X, and walks over all
stretches. The state lies in the array of starts, which is a result, and not in registers: its
columns, the features, may be many. Barriers order what threads of a program leave to each other.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from ablate.components.kernels.tiles import inner_products, load_column, load_tile, store_tile


@triton.jit
@no_type_check
def _mixed(
    x, mix, first, left, rows, cols, STEP: tl.constexpr,
    STATES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """sum_k mix[k STEP] X_k of some rows and BLOCK columns."""
    made = tl.zeros((ROWS, BLOCK), tl.float32)
    for k in tl.static_range(STATES):
        share = tl.load(mix + k * STEP).to(tl.float32)
        made += share * load_tile(x + k * rows * cols, first, left, cols, ROWS, BLOCK)
    return made


@triton.jit
@no_type_check
def forward_kernel(
    starts, probes, zs, values, mix, last, us, stretches, sources,
    rows: tl.constexpr, cols: tl.constexpr, STATES: tl.constexpr, PROBES: tl.constexpr,
    SOURCES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid: rows and heads, blocks of ROWS. `starts` ends with the end; its first is given."""
    heads = tl.num_programs(0)
    o = tl.program_id(1) * ROWS
    left = rows - o
    for g in range(stretches):
        p = tl.program_id(0).to(tl.int64) + g * heads
        here = starts + (p * STATES * rows + o) * cols
        there = here + tl.cast(heads, tl.int64) * STATES * rows * cols
        for s in range(0, sources, SOURCES):
            place = (p * sources + s) * rows
            rest = sources - s
            u = -load_tile(values + place, o, rest, rows, SOURCES, ROWS)
            for k in tl.static_range(PROBES):
                probe = probes + ((p * PROBES + k) * sources + s) * cols
                x = here + k * rows * cols
                u += inner_products(
                    probe, x, cols, rest, left, SOURCES, ROWS, BLOCK, DOT, PRECISION
                )
            store_tile(us + place, u, o, rest, rows, SOURCES, ROWS)
        tl.debug_barrier()
        for m in tl.static_range(STATES):
            for i in range(0, cols, BLOCK):
                share = mix + (p * STATES + m) * STATES
                made = _mixed(here, share, i, left, rows, cols, 1, STATES, ROWS, BLOCK)
                for s in range(0, sources, SOURCES):
                    rest = sources - s
                    u = load_tile(us + (p * sources + s) * rows, o, rest, rows, SOURCES, ROWS)
                    by = (p * sources + s) * STATES + m
                    u *= load_column(last + by, rest, STATES, SOURCES)[:, None]
                    z = load_tile(zs + (p * sources + s) * cols, i, rest, cols, SOURCES, BLOCK)
                    made = tl.dot(tl.trans(u.to(DOT)), z.to(DOT), made, input_precision=PRECISION)
                store_tile(there + m * rows * cols, made, i, left, cols, ROWS, BLOCK)
        tl.debug_barrier()


@triton.jit
@no_type_check
def backward_kernel(
    ends, probes, zs, us, mix, last, d_us, d_starts, errors, d_last, stretches, sources,
    rows: tl.constexpr, cols: tl.constexpr, STATES: tl.constexpr, PROBES: tl.constexpr,
    SOURCES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same walk from the last stretch back. Grid as forward.

    ends: gradients of the states before the first stretch and after each; the last one is given.
    errors: gradients of all u. `d_last` comes in one part for each block of rows.
    """
    heads = tl.num_programs(0)
    blocks = tl.num_programs(1)
    o = tl.program_id(1) * ROWS
    left = rows - o
    source = tl.arange(0, SOURCES)
    for back in range(stretches):
        p = tl.program_id(0).to(tl.int64) + (stretches - 1 - back) * heads
        before = ends + (p * STATES * rows + o) * cols
        after = before + tl.cast(heads, tl.int64) * STATES * rows * cols
        for s in range(0, sources, SOURCES):
            rest = sources - s
            place = (p * sources + s) * rows
            error = load_tile(d_us + place, o, rest, rows, SOURCES, ROWS)
            u = load_tile(us + place, o, rest, rows, SOURCES, ROWS)
            z = zs + (p * sources + s) * cols
            for m in tl.static_range(STATES):
                d = after + m * rows * cols
                on = inner_products(z, d, cols, rest, left, SOURCES, ROWS, BLOCK, DOT, PRECISION)
                by = last + (p * sources + s) * STATES + m
                error += load_column(by, rest, STATES, SOURCES)[:, None] * on
                part = ((p * blocks + tl.program_id(1)) * sources + s + source) * STATES + m
                tl.store(d_last + part, tl.sum(u * on, 1), mask=source < rest)
            store_tile(errors + place, error, o, rest, rows, SOURCES, ROWS)
        tl.debug_barrier()
        for k in tl.static_range(STATES):
            for i in range(0, cols, BLOCK):
                share = mix + p * STATES * STATES + k
                made = _mixed(after, share, i, left, rows, cols, STATES, STATES, ROWS, BLOCK)
                own = d_starts + ((p * STATES + k) * rows + o) * cols
                made += load_tile(own, i, left, cols, ROWS, BLOCK)
                if k < PROBES:
                    for s in range(0, sources, SOURCES):
                        rest = sources - s
                        by = errors + (p * sources + s) * rows
                        error = load_tile(by, o, rest, rows, SOURCES, ROWS)
                        probe = probes + ((p * PROBES + k) * sources + s) * cols
                        probe = load_tile(probe, i, rest, cols, SOURCES, BLOCK)
                        made = tl.dot(
                            tl.trans(error.to(DOT)), probe.to(DOT), made, input_precision=PRECISION
                        )
                store_tile(before + k * rows * cols, made, i, left, cols, ROWS, BLOCK)
        tl.debug_barrier()


@triton.jit
@no_type_check
def backward_sources_kernel(
    ends, starts, us, errors, last, d_zs, d_probes, d_mix, heads, sources,
    rows: tl.constexpr, cols: tl.constexpr, STATES: tl.constexpr, PROBES: tl.constexpr,
    SOURCES: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of z_s, the probes and `mix`, of all stretches at once.

    Grid: stretches of rows and heads, blocks of SOURCES, blocks of BLOCK of the `cols`. `d_mix`
    comes in one part for each block of columns.
    """
    p = tl.program_id(0).to(tl.int64)
    s = tl.program_id(1) * SOURCES
    i = tl.program_id(2) * BLOCK
    rest = sources - s
    place = (p * sources + s) * rows
    total = tl.zeros((SOURCES, BLOCK), tl.float32)
    for m in tl.static_range(STATES):
        weight = load_column(last + (p * sources + s) * STATES + m, rest, STATES, SOURCES)
        for o in range(0, rows, ROWS):
            by = load_tile(us + place, o, rest, rows, SOURCES, ROWS) * weight[:, None]
            d = ends + (((p + heads) * STATES + m) * rows + o) * cols
            d = load_tile(d, i, rows - o, cols, ROWS, BLOCK).to(DOT)
            total = tl.dot(by.to(DOT), d, total, input_precision=PRECISION)
    store_tile(d_zs + (p * sources + s) * cols, total, i, rest, cols, SOURCES, BLOCK)
    for k in tl.static_range(PROBES):
        total = tl.zeros((SOURCES, BLOCK), tl.float32)
        for o in range(0, rows, ROWS):
            by = load_tile(errors + place, o, rest, rows, SOURCES, ROWS)
            x = starts + ((p * STATES + k) * rows + o) * cols
            x = load_tile(x, i, rows - o, cols, ROWS, BLOCK)
            total = tl.dot(by.to(DOT), x.to(DOT), total, input_precision=PRECISION)
        into = d_probes + ((p * PROBES + k) * sources + s) * cols
        store_tile(into, total, i, rest, cols, SOURCES, BLOCK)
    if tl.program_id(1) == 0:
        for m in tl.static_range(STATES):
            for k in tl.static_range(STATES):
                along = 0.0
                for o in range(0, rows, ROWS):
                    end = ends + (((p + heads) * STATES + m) * rows + o) * cols
                    start = starts + ((p * STATES + k) * rows + o) * cols
                    end = load_tile(end, i, rows - o, cols, ROWS, BLOCK)
                    start = load_tile(start, i, rows - o, cols, ROWS, BLOCK)
                    along += tl.sum(end * start)
                part = p * tl.num_programs(2) + tl.program_id(2)
                tl.store(d_mix + (part * STATES + m) * STATES + k, along)
