"""Factors: what a study varies, in which levels, and where a factor applies at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ablate.errors import UserError, unknown
from ablate.study.schema import Design, FactorSpec, Scalar

Levels: TypeAlias = dict[str, Scalar]
"""One level for each factor that applies; a factor that does not apply is left out."""


@dataclass(frozen=True)
class Factor:
    """One thing that varies.

    Args:
        key: an axis, ``axis.option``, ``chunk``, ``task_args.x`` or ``train.x``.
        levels: the first is the baseline's.
        when: the levels of other factors under which this one applies; empty means everywhere.
        parts: the whole component that a level stands for, where it is more than a choice's name.
    """

    key: str
    levels: tuple[Scalar, ...]
    when: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    parts: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def applies(self, levels: Mapping[str, Scalar]) -> bool:
        """Whether this factor has a level beside the others' `levels`."""
        return all(
            other in levels and contains(allowed, levels[other])
            for other, allowed in self.when.items()
        )


def contains(levels: Iterable[Scalar], level: object) -> bool:
    """Whether `level` is among `levels`: 1 is 1.0, but neither is true."""
    return any(same(one, level) for one in levels)


def same(one: object, other: object) -> bool:
    """Equal as levels: numbers by value, everything else by type and value."""
    return canonical(one) == canonical(other)


def canonical(level: object) -> tuple[str, object]:
    """A level in a form that compares right: the kind beside the value."""
    kind = "number" if isinstance(level, (int, float)) else type(level).__name__
    return ("bool" if isinstance(level, bool) else kind, level)


def spell(level: Scalar) -> str:
    """A level as YAML would show it."""
    if level is None:
        return "null"
    return str(level).lower() if isinstance(level, bool) else str(level)


def make_factors(design: Design, where: str) -> tuple[Factor, ...]:
    """The factors and blocks of a design, each after those that it depends on.

    Raises:
        UserError: a level given twice (but in a block that moves with others), a condition on what
            is no factor or no level, or conditions that lead in a circle.
    """
    for key in design.blocks:
        if key in design.factors:
            raise UserError(f"{where}.blocks.{key} is also a factor: it can be one of both.")
    every = {**design.blocks, **design.factors}
    repeated = _zipped_blocks(design, where)
    made = {
        key: Factor(
            key,
            _levels(spec, f"{where}.factors.{key}", repeated=key in repeated),
            _conditions(key, spec, every, where),
        )
        for key, spec in every.items()
    }
    ordered: dict[str, Factor] = {}
    while len(ordered) < len(made):
        ready = [f for k, f in made.items() if k not in ordered and set(f.when) <= set(ordered)]
        if not ready:
            circle = ", ".join(sorted(set(made) - set(ordered)))
            raise UserError(f"{where}.factors: the conditions of {circle} lead in a circle.")
        ordered |= {factor.key: factor for factor in ready}
    return tuple(ordered.values())


def _zipped_blocks(design: Design, where: str) -> set[str]:
    """Blocks that move with others: one of them may stay where it is while another moves.

    Raises:
        UserError: all of them stay.
    """
    found: set[str] = set()
    for index, keys in enumerate(design.zip):
        if len(keys) > 1 and all(key in design.blocks for key in keys):
            found.update(keys)
            levels = [map(canonical, design.blocks[key].levels) for key in keys]
            rows = list(zip(*levels, strict=False))  # other lengths are refused with the units
            if len(set(rows)) < len(rows):
                raise UserError(f"{where}.zip.{index}: the same levels of all are given twice.")
    return found


def _levels(spec: FactorSpec, where: str, *, repeated: bool) -> tuple[Scalar, ...]:
    if not spec.levels:
        raise UserError(f"{where} is a range; only kind: search takes one. Give levels.")
    for index, level in enumerate(spec.levels):
        if contains(spec.levels[:index], level) and not repeated:
            raise UserError(f"{where}: level {spell(level)} is given twice.")
    return tuple(spec.levels)


def _conditions(
    key: str, spec: FactorSpec, every: Mapping[str, FactorSpec], where: str
) -> dict[str, tuple[Scalar, ...]]:
    place = f"{where}.factors.{key}.when"
    return {other: select(other, wanted, every, place) for other, wanted in spec.when.items()}


def select(
    key: str, wanted: Any, factors: Mapping[str, FactorSpec], where: str
) -> tuple[Scalar, ...]:
    """The levels of factor `key` that `wanted` (one level or a list) names.

    Raises:
        UserError: no such factor or level.
    """
    if key not in factors:
        raise unknown("factor", key, factors, where=where)
    levels = factors[key].levels
    chosen = wanted if isinstance(wanted, list) else [wanted]
    for level in chosen:
        if not contains(levels, level):
            raise unknown(f"level of {key}", spell(level), map(spell, levels), where=where)
    return tuple(chosen)
