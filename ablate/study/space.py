"""All combinations of the factors of a design: counted, numbered and made one at a time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from ablate.errors import UserError, unknown
from ablate.study.factors import Factor, Levels, canonical
from ablate.study.schema import Design

MAX_POINTS = 10_000


@dataclass(frozen=True)
class Point:
    """One combination of levels, and the one that it is compared with (the baseline has none)."""

    levels: Levels
    compared_with: Levels | None


def complete(factors: tuple[Factor, ...], given: Levels) -> Levels:
    """`given` where a factor applies, else its first level; factors that do not apply are out."""
    levels: Levels = {}
    for factor in factors:
        if factor.applies(levels):
            levels[factor.key] = given.get(factor.key, factor.levels[0])
    return levels


def key_of(levels: Levels) -> tuple[object, ...]:
    """What is equal for equal levels, in whatever order."""
    return tuple((key, *canonical(level)) for key, level in sorted(levels.items()))


@dataclass(frozen=True)
class Space:
    """The factors of one design.

    Args:
        design: what the file says.
        factors: its factors, each after those that it depends on; blocks left out.
        where: file and key, for messages.
        allowed: whether exclusions and constraints leave a combination in.
    """

    design: Design
    factors: tuple[Factor, ...]
    where: str
    allowed: Callable[[Levels], bool] = lambda levels: True

    @cached_property
    def units(self) -> tuple[tuple[Factor, ...], ...]:
        """Factors that move together: those of one `zip`, every other one alone.

        Raises:
            UserError: a zip of what is no factor, of one in another zip, or of unequal lengths.
        """
        by_key = {factor.key: factor for factor in self.factors}
        unit_of: dict[str, tuple[Factor, ...]] = {}
        for index, keys in enumerate(self.design.zip):
            place = f"{self.where}.zip.{index}"
            for key in keys:
                if key not in by_key:
                    raise unknown("factor", key, by_key, where=place)
                if key in unit_of:
                    raise UserError(f"{place}: {key} is already zipped with others.")
            if not keys:
                continue
            unit = tuple(by_key[key] for key in keys)
            lengths = {factor.key: len(factor.levels) for factor in unit}
            if len(set(lengths.values())) != 1:
                said = ", ".join(f"{key} has {count}" for key, count in lengths.items())
                raise UserError(f"{place}: zipped factors need as many levels each, but {said}.")
            unit_of |= dict.fromkeys(keys, unit)
        units = {factor.key: unit_of.get(factor.key, (factor,)) for factor in self.factors}
        return tuple(unit for key, unit in units.items() if unit[0].key == key)

    @cached_property
    def baseline(self) -> Levels:
        """The first level of every factor that applies."""
        return complete(self.factors, {})

    @property
    def count(self) -> int:
        """Combinations of levels, conditions and exclusions not yet looked at."""
        return math.prod(len(unit[0].levels) for unit in self.units)

    def at(self, index: int) -> Levels:
        """Combination number `index`; 0 is the baseline, the last unit runs fastest."""
        given: Levels = {}
        for unit in reversed(self.units):
            index, step = divmod(index, len(unit[0].levels))
            given |= {factor.key: factor.levels[step] for factor in unit}
        return complete(self.factors, given)

    def sample(self, cap: int | None, seed: int) -> Iterator[int]:
        """All numbers of combinations, or `cap` of them with the baseline; nothing is listed."""
        if cap is None or cap >= self.count:
            yield from range(self.count)
            return
        yield 0
        drawn = random.Random(seed).sample(range(1, self.count), cap - 1)
        yield from sorted(drawn)
