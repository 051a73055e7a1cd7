"""Designs: which combinations of levels a study runs, and what each is compared with.

A kind of design is one function from a `Space` to points, the baseline first, listed in `KINDS`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping

from ablate.errors import UserError, unknown
from ablate.study.constraints import Holds, parse_constraint
from ablate.study.factors import Factor, Levels, contains, select
from ablate.study.fractional import fractional
from ablate.study.schema import Design, Scalar
from ablate.study.space import MAX_POINTS, Point, Space, complete, key_of

SPREAD = 0  # seed of the sample that `cap` draws: the same cells every time


def one_factor(space: Space) -> Iterator[Point]:
    """The baseline, then every other level of each unit, one unit at a time.

    A factor whose condition does not hold at the baseline is varied where it does: its first level
    there is what the others are compared with.
    """
    start = space.baseline
    yield Point(start, None)
    for unit in space.units:
        reference = start
        idle = [factor for factor in unit if not factor.applies(start)]
        if idle:
            needed: Levels = {}
            for factor in idle:
                needed |= _conditions(factor, space.factors)
            reference = complete(space.factors, needed)
            yield Point(reference, start)
        for step in range(1, len(unit[0].levels)):
            given = {factor.key: factor.levels[step] for factor in unit}
            yield Point(complete(space.factors, reference | given), reference)


def _conditions(factor: Factor, factors: tuple[Factor, ...]) -> Levels:
    """The first levels that make `factor` apply, through all factors that it depends on."""
    needed: Levels = {}
    by_key = {other.key: other for other in factors}
    for other, allowed in factor.when.items():
        needed |= _conditions(by_key[other], factors)
        needed[other] = allowed[0]
    return needed


def full(space: Space) -> Iterator[Point]:
    """Every combination of levels; where a factor does not apply, its levels are one.

    With a cap, that many of them: the baseline and an even random sample.
    """
    start = space.baseline
    for index in space.sample(space.design.cap, SPREAD):
        levels = space.at(index)
        yield Point(levels, None if levels == start else start)


def path(space: Space) -> Iterator[Point]:
    """One change after another, each compared with the one before; or every order of them.

    All orders of n changes pass through the same 2^n cells, so those are what runs.
    """
    start = space.baseline
    yield Point(start, None)
    if space.design.orders == "one":
        taken: Levels = {}
        before = start
        for factor in space.factors:
            taken[factor.key] = factor.levels[1]
            now = complete(space.factors, taken)
            yield Point(now, before)
            before = now
        return
    for size in range(1, len(space.factors) + 1):
        for some in itertools.combinations(space.factors, size):
            given = {factor.key: factor.levels[1] for factor in some}
            fewer = {key: level for key, level in given.items() if key != some[-1].key}
            yield Point(complete(space.factors, given), complete(space.factors, fewer))


def search(space: Space) -> Iterator[Point]:
    """Only the start: an optimiser chooses the others while the study runs."""
    yield Point(space.baseline, None)


def ends(design: Design, factors: tuple[Factor, ...], where: str) -> Iterator[Levels]:
    """Each level that a search may choose, and both ends of its ranges, one at a time.

    What the model refuses of these is refused before anything runs, not left out in silence.
    """
    if design.kind != "search":
        return
    wide = []
    for factor in factors:
        spec = design.factors[factor.key]
        more = [end for end in (spec.low, spec.high) if end is not None]
        levels = (*factor.levels, *(end for end in more if not contains(factor.levels, end)))
        wide.append(dataclasses.replace(factor, levels=levels))
    rules = rules_of(design, where)
    for point in one_factor(Space(design, tuple(wide), where)):
        if all(holds(point.levels) for holds in rules.values()):
            yield point.levels


KINDS: dict[str, Callable[[Space], Iterator[Point]]] = {
    "one_factor": one_factor,
    "leave_one_out": one_factor,
    "add_one_in": one_factor,
    "full": full,
    "fractional": fractional,
    "path": path,
    "search": search,
}


def points(design: Design, factors: tuple[Factor, ...], where: str) -> list[Point]:
    """The distinct points of a design, without those that it excludes, in every block.

    Raises:
        UserError: an unknown kind, too many points, a rule that matches nothing or the
            baseline, or a factor that applies nowhere.
    """
    if design.kind not in KINDS:
        raise unknown("kind of design", design.kind, KINDS, where=f"{where}.kind")
    rules = rules_of(design, where)
    inner, blocks = _spaces(design, factors, where)
    space = dataclasses.replace(
        inner, allowed=lambda levels: all(holds(levels) for holds in rules.values())
    )
    refuse_many(design, factors, where)
    found = _in_blocks(list(KINDS[design.kind](space)), blocks)
    for factor in factors:
        if design.kind != "search" and not any(factor.key in p.levels for p in found):
            raise UserError(f"{where}.factors.{factor.key}.when holds in no cell.")
    for place, holds in rules.items():
        kept = [point for point in found if holds(point.levels)]
        if len(kept) == len(found) and design.kind not in ("fractional", "search"):
            raise UserError(f"{place} matches no cell that is still in the design.")
        if kept[:1] != found[:1]:
            raise UserError(f"{place} removes the baseline.")
        found = kept
    return found


def _spaces(design: Design, factors: tuple[Factor, ...], where: str) -> tuple[Space, Space]:
    """What is laid out in each block, and the blocks.

    Raises:
        UserError: a zip of a block with a factor.
    """
    zips: tuple[list[list[str]], list[list[str]]] = ([], [])
    for index, keys in enumerate(design.zip):
        outside = [key for key in keys if key in design.blocks]
        if outside and len(outside) < len(keys):
            rest = next(key for key in keys if key not in outside)
            raise UserError(
                f"{where}.zip.{index}: {outside[0]} is a block and {rest} is not; they cannot move "
                "together. Put both under blocks, or both under factors."
            )
        for one, mine in zip(zips, (not outside, bool(outside)), strict=True):
            one.append(keys if mine else [])
    parts = ([f for f in factors if (f.key in design.blocks) == block] for block in (False, True))
    inner, blocks = (
        Space(design.model_copy(update={"zip": zipped}), tuple(part), where)
        for zipped, part in zip(zips, parts, strict=True)
    )
    return inner, blocks


def _in_blocks(inner: list[Point], blocks: Space) -> list[Point]:
    """The points in every combination of the blocks' levels, each compared within its own."""
    found: dict[object, Point] = {}
    first: Levels | None = None
    for steps in itertools.product(*(range(len(unit[0].levels)) for unit in blocks.units)):
        here: Levels = {
            factor.key: factor.levels[step]
            for unit, step in zip(blocks.units, steps, strict=True)
            for factor in unit
        }
        for point in inner:
            other = first if point.compared_with is None else here | point.compared_with
            levels = here | point.levels
            found.setdefault(key_of(levels), Point(levels, other))
            first = first or levels
    return list(found.values())


def refuse_many(design: Design, factors: tuple[Factor, ...], where: str) -> None:
    """Refuse a design of too many cells; they are counted, none is made.

    Raises:
        UserError: with smaller designs of the same factors.
    """
    space, blocks = _spaces(design, factors, where)
    times = blocks.count
    fewer = 1 + sum(len(unit[0].levels) - 1 for unit in space.units)
    if design.kind == "full":
        inner = min(space.count, design.cap or space.count)
        smaller = (
            f"kind: one_factor has {fewer * times:,}; kind: fractional tells all main effects "
            f"apart in about {(fewer + max(2, fewer // 4)) * times:,}; cap: 200 draws so many at "
            "random"
        )
    elif design.kind == "path" and design.orders == "all":
        inner = 2 ** len(space.factors)
        smaller = f"orders: one has {(len(space.factors) + 1) * times}"
    else:
        inner = fewer
        smaller = "fewer blocks have fewer cells"
    count = inner * times
    if count > MAX_POINTS:
        raise UserError(
            f"{where}: {count:,} cells, at most {MAX_POINTS:,} are run. {smaller}; "
            "or give fewer levels."
        )


def rules_of(design: Design, where: str) -> dict[str, Holds]:
    """What each exclusion and constraint leaves in, by its place in the file."""
    every = {**design.blocks, **design.factors}
    rules: dict[str, Holds] = {}
    for index, rule in enumerate(design.exclude):
        place = f"{where}.exclude.{index}"
        if not rule:
            raise UserError(f"{place} is empty; it would exclude every cell.")
        chosen = {key: select(key, wanted, every, place) for key, wanted in rule.items()}
        rules[place] = functools.partial(_outside, chosen)
    for index, text in enumerate(design.constraints):
        place = f"{where}.constraints.{index}"
        rules[place] = parse_constraint(text, every, where=place)
    return rules


def _outside(chosen: Mapping[str, tuple[Scalar, ...]], levels: Mapping[str, Scalar]) -> bool:
    return not all(
        key in levels and contains(wanted, levels[key]) for key, wanted in chosen.items()
    )
