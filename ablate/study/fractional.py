"""Fractional designs: few of all combinations, chosen so that effects can still be told apart.

Two-level factors get a regular fraction (Box, Hunter & Hunter 2005, chapter 6); anything else a
D-optimal choice by exchange (Fedorov 1972). A library's fractions were not taken: pyDOE3 1.6 gives
seven factors at resolution V 32 runs, which have resolution IV.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ablate.errors import UserError
from ablate.study.factors import Factor, Levels, canonical
from ablate.study.schema import Design
from ablate.study.space import Point, Space

Floats: TypeAlias = NDArray[np.floating[Any]]

DEFAULT_RESOLUTION = 4
CANDIDATES = 5_000
PASSES = 20
RIDGE = 1e-6
SEED = 0


def fractional(space: Space) -> Iterator[Point]:
    """The baseline and the other runs of the fraction that the file asks for.

    Raises:
        UserError: fewer runs than effects to tell apart, or more than there are combinations.
    """
    start = space.baseline
    for levels in _regular(space) if is_regular(space.design, space.factors) else _optimal(space):
        yield Point(levels, None if levels == start else start)


def is_regular(design: Design, factors: tuple[Factor, ...]) -> bool:
    """Whether a textbook fraction is taken: two levels each, no conditions and no exclusions."""
    two_level = all(len(factor.levels) == 2 and not factor.when for factor in factors)
    return two_level and not design.exclude and not design.constraints


def _regular(space: Space) -> Iterator[Levels]:
    units, design = space.units, space.design
    if design.runs is None:
        words = generators(len(units), design.resolution or DEFAULT_RESOLUTION)
    else:
        words = _within(len(units), design.runs, design.resolution, space.where)
    basis = max(words, default=0).bit_length()
    for run in range(1 << basis):
        given: Levels = {}
        for unit, word in zip(units, words, strict=True):
            # Run 0 has every parity even, so it is the baseline.
            parity = (run & word).bit_count() % 2
            given |= {factor.key: factor.levels[parity] for factor in unit}
        yield given


def _within(factors: int, runs: int, resolution: int | None, where: str) -> list[int]:
    """The fraction of the highest resolution that so many runs pay for."""
    for wanted in (resolution,) if resolution else (factors + 1, 5, 4, 3):
        words = generators(factors, wanted)
        if 1 << max(words).bit_length() <= runs:
            return words
    least = 1 << max(generators(factors, resolution or 3)).bit_length()
    raise UserError(
        f"{where}.runs is {runs}: {factors} factors at resolution {resolution or 3} need {least}."
    )


def generators(factors: int, resolution: int) -> list[int]:
    """Columns of a two-level fraction, each a set of basic factors as bits, in few basic factors.

    A fraction has resolution R if no R - 1 columns or fewer multiply to the mean. Columns are
    taken greedily, in the order of their numbers, so the basic factors are among them.
    """
    for basis in itertools.count(1):
        words = _greedy(factors, min(resolution, factors + 1), 1 << basis)
        if len(words) == factors:
            return words
    raise AssertionError


def _greedy(factors: int, resolution: int, end: int) -> list[int]:
    words: list[int] = []
    for word in range(1, end):
        if len(words) == factors:
            break
        products = {0}
        for size in range(1, resolution - 1):
            products |= {_product(some) for some in itertools.combinations(words, size)}
        if word not in products:
            words.append(word)
    return words


def _product(words: tuple[int, ...]) -> int:
    found = 0
    for word in words:
        found ^= word
    return found


def _optimal(space: Space) -> list[Levels]:
    """The runs that tell the effects apart with the least variance, as far as exchange finds."""
    design, where = space.design, space.where
    candidates = [space.at(index) for index in space.sample(CANDIDATES, SEED)]
    distinct = {
        tuple(sorted(map(str, one.items()))): one for one in candidates if space.allowed(one)
    }
    candidates = list(distinct.values())
    pairs = design.resolution == 5
    x = _model_matrix(candidates, space.factors, pairs)
    effects = int(np.linalg.matrix_rank(x))
    runs = design.runs or min(len(candidates), effects + max(2, effects // 4))
    if runs < effects:
        kinds = "main effects and pairs" if pairs else "main effects"
        raise UserError(
            f"{where}.runs is {runs}: {kinds} and the mean are {effects} numbers: too few."
        )
    if runs >= len(candidates):
        return candidates
    return [candidates[index] for index in exchange(x, runs)]


def _model_matrix(rows: list[Levels], factors: tuple[Factor, ...], pairs: bool) -> Floats:
    """Intercept and a column for each level but a factor's first; zeros where it does not apply."""
    blocks = []
    for factor in factors:
        codes = {
            canonical(level): row for level, row in zip(factor.levels, _codes(factor), strict=True)
        }
        idle = np.zeros(len(factor.levels) - 1)
        blocks.append(np.array([
            codes[canonical(row[factor.key])] if factor.key in row else idle for row in rows
        ]).reshape(len(rows), -1))  # fmt: skip
    if pairs:
        blocks += [
            (one[:, :, None] * other[:, None, :]).reshape(len(rows), -1)
            for one, other in itertools.combinations(blocks, 2)
        ]
    return np.column_stack([np.ones(len(rows)), *blocks])


def _codes(factor: Factor) -> Floats:
    width = len(factor.levels) - 1
    return np.vstack([-np.ones((1, width)), np.eye(width)])


def exchange(x: Floats, runs: int) -> list[int]:
    """Rows of `x`, row 0 among them, with a large determinant of their information matrix.

    Rows are added greedily, then swapped one for one as long as the determinant grows.
    """
    chosen = [0]
    spread: Floats = np.linalg.inv(RIDGE * np.eye(x.shape[1]) + np.outer(x[0], x[0]))
    while len(chosen) < runs:
        gain = ((x @ spread) * x).sum(axis=1)
        gain[chosen] = -1
        chosen.append(int(gain.argmax()))
        spread = _add(spread, x[chosen[-1]], 1)
    for _ in range(PASSES):
        moved = False
        for place in range(1, runs):
            old = x[chosen[place]]
            own = ((x @ spread) * x).sum(axis=1)
            cross = x @ spread @ old
            loss = float(old @ spread @ old)
            gain = own - (own * loss - cross**2) - loss
            gain[chosen] = -1
            best = int(gain.argmax())
            if gain[best] > 1e-9:
                spread = _add(_add(spread, x[best], 1), old, -1)
                chosen[place] = best
                moved = True
        if not moved:
            break
    return [0, *sorted(chosen[1:])]


def _add(spread: Floats, row: Floats, sign: int) -> Floats:
    """The inverse after one row more or less (Sherman and Morrison)."""
    part = spread @ row
    updated: Floats = spread - sign * np.outer(part, part) / (1 + sign * row @ part)
    return updated
