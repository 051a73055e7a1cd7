"""Designs: which combinations of levels a study runs, and what each is compared with.

A kind of design is one function from factors to points, the baseline first, listed in `KINDS`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ablate.errors import UserError, unknown
from ablate.study.factors import Factor, Levels, canonical, contains, select
from ablate.study.schema import Design

MAX_POINTS = 10_000


@dataclass(frozen=True)
class Point:
    """One combination of levels, and the one that it is compared with (the baseline has none)."""

    levels: Levels
    compared_with: Levels | None


Kind = Callable[[tuple[Factor, ...]], Iterator[Point]]


def baseline(factors: tuple[Factor, ...]) -> Levels:
    """The first level of every factor that applies."""
    return complete(factors, {})


def complete(factors: tuple[Factor, ...], given: Levels) -> Levels:
    """`given` where a factor applies, else its first level; factors that do not apply are out."""
    levels: Levels = {}
    for factor in factors:
        if factor.applies(levels):
            levels[factor.key] = given.get(factor.key, factor.levels[0])
    return levels


def one_factor(factors: tuple[Factor, ...]) -> Iterator[Point]:
    """The baseline, then every other level of each factor, one factor at a time.

    A factor whose condition does not hold at the baseline is varied where it does: its first level
    there is what the others are compared with.
    """
    start = baseline(factors)
    yield Point(start, None)
    for factor in factors:
        reference = start
        if not factor.applies(start):
            reference = complete(factors, _conditions(factor, factors))
            yield Point(reference, start)
        for level in factor.levels[1:]:
            yield Point(complete(factors, reference | {factor.key: level}), reference)


def _conditions(factor: Factor, factors: tuple[Factor, ...]) -> Levels:
    """The first levels that make `factor` apply, through all factors that it depends on."""
    needed: Levels = {}
    by_key = {other.key: other for other in factors}
    for other, allowed in factor.when.items():
        needed |= _conditions(by_key[other], factors)
        needed[other] = allowed[0]
    return needed


def full(factors: tuple[Factor, ...]) -> Iterator[Point]:
    """Every combination of levels; where a factor does not apply, its levels are one."""
    start = baseline(factors)
    for combination in itertools.product(*(factor.levels for factor in factors)):
        given = {f.key: level for f, level in zip(factors, combination, strict=True)}
        levels = complete(factors, given)
        yield Point(levels, None if levels == start else start)


KINDS: dict[str, Kind] = {"one_factor": one_factor, "full": full}


def points(design: Design, factors: tuple[Factor, ...], file: str) -> list[Point]:
    """The distinct points of a design, without those that it excludes.

    Raises:
        UserError: an unknown kind, too many points, an exclusion that matches nothing or the
            baseline, or a factor that applies nowhere.
    """
    if design.kind not in KINDS:
        raise unknown("kind of design", design.kind, KINDS, where=f"{file}: design.kind")
    count = math.prod(len(factor.levels) for factor in factors)
    if design.kind == "full" and count > MAX_POINTS:
        fewer = 1 + sum(len(factor.levels) - 1 for factor in factors)
        raise UserError(
            f"{file}: design: {count:,} cells, at most {MAX_POINTS:,} are run. "
            f"kind: one_factor has {fewer:,}; or give fewer levels."
        )
    found: dict[tuple[object, ...], Point] = {}
    for point in KINDS[design.kind](factors):
        found.setdefault(_key(point.levels), point)
    for factor in factors:
        if not any(factor.key in point.levels for point in found.values()):
            raise UserError(f"{file}: design.factors.{factor.key}.when holds in no cell.")
    return _without_excluded(list(found.values()), design, file)


def _key(levels: Levels) -> tuple[object, ...]:
    return tuple((key, *canonical(level)) for key, level in sorted(levels.items()))


def _without_excluded(found: list[Point], design: Design, file: str) -> list[Point]:
    for index, rule in enumerate(design.exclude):
        where = f"{file}: design.exclude.{index}"
        if not rule:
            raise UserError(f"{where} is empty; it would exclude every cell.")
        chosen = {key: select(key, wanted, design.factors, where) for key, wanted in rule.items()}
        kept = [
            point
            for point in found
            if not all(
                key in point.levels and contains(levels, point.levels[key])
                for key, levels in chosen.items()
            )
        ]
        if len(kept) == len(found):
            raise UserError(f"{where} matches no cell that is still in the design.")
        if kept[:1] != found[:1]:
            raise UserError(f"{where} removes the baseline.")
        found = kept
    return found
