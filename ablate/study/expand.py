"""Designs with all their factors: parts to take out, paths, several tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ablate.errors import UserError
from ablate.study.configure import Workshop
from ablate.study.factors import Factor, make_factors, same, spell
from ablate.study.schema import PART_KINDS, Design, FactorSpec
from ablate.trial.space import AXES, CHOICE, GROUPS, Model


@dataclass(frozen=True)
class Expanded:
    """One design with its factors, and its place in the file."""

    design: Design
    factors: tuple[Factor, ...]
    where: str


def expand(workshop: Workshop) -> list[Expanded]:
    """Every design of the study, ready to be laid out.

    Raises:
        UserError: a part that the model does not have or that is out already, a path that leads
            nowhere, or designs that start from different levels of one factor.
    """
    found = []
    for name, declared in workshop.study.all_designs.items():
        where = f"{workshop.file}: {name}"
        design = _with_blocks(declared, workshop)
        if design.kind in PART_KINDS:
            design = _with_parts(design, workshop, where)
        factors = make_factors(_fixed(design, workshop, where), where)
        if design.kind == "path":
            factors = (*factors, *_path_factors(design, workshop, where))
        workshop.check_keys(factors)
        found.append(Expanded(design, factors, where))
    return found


def all_factors(designs: list[Expanded]) -> tuple[Factor, ...]:
    """The factors of all designs together, with all their levels.

    Raises:
        UserError: designs that start from different levels of one factor.
    """
    merged: dict[str, Factor] = {}
    for one in designs:
        for factor in one.factors:
            known = merged.setdefault(factor.key, factor)
            if not same(known.levels[0], factor.levels[0]):
                raise UserError(
                    f"{one.where}.factors.{factor.key} starts at {spell(factor.levels[0])}, but "
                    f"another design at {spell(known.levels[0])}; all designs share one baseline."
                )
            more = [x for x in factor.levels if not any(same(x, y) for y in known.levels)]
            merged[factor.key] = Factor(
                factor.key, (*known.levels, *more), known.when, {**known.parts, **factor.parts}
            )
    return tuple(merged.values())


def _with_blocks(design: Design, workshop: Workshop) -> Design:
    """Several tasks are a block, and so is what is tuned: the whole design is run in each."""
    study, added = workshop.study, {}
    if len(study.task_names) > 1:
        added["task"] = FactorSpec(levels=list(study.task_names))
    added |= {key: FactorSpec(levels=levels) for key, levels in study.tune.items()}
    return design.model_copy(update={"blocks": {**added, **design.blocks}}) if added else design


def _fixed(design: Design, workshop: Workshop, where: str) -> Design:
    """A search starts from what the model has: its ranges hold that one level.

    Raises:
        UserError: blocks, or other designs beside a search.
    """
    if design.kind != "search":
        return design
    if len(workshop.study.all_designs) > 1 or design.blocks:
        raise UserError(f"{where}: a search is one design, on one task and without blocks.")
    factors = {}
    for key, spec in design.factors.items():
        if spec.low is not None:
            workshop.check_key(key, f"{where}.factors")
            try:
                level = workshop.present(key, spec.low)
            except (UserError, KeyError):  # not at the start; configuring it says so if nowhere
                level = spec.low
            spec = FactorSpec(levels=[level], when=spec.when)
        factors[key] = spec
    return design.model_copy(update={"factors": factors})


def _with_parts(design: Design, workshop: Workshop, where: str) -> Design:
    """Each factor as [with, without] the part, or the other way round to add it."""
    factors = {}
    for key, spec in design.factors.items():
        place = f"{where}.factors.{key}"
        levels = list(spec.levels)
        if len(levels) == 1:
            workshop.check_key(key, f"{where}.factors")
            try:
                levels.insert(0, workshop.present(key, levels[0]))
            except UserError as error:
                raise UserError(f"{place}: {error}: there is nothing to leave out.") from None
            except KeyError:
                levels.insert(0, None)  # an unknown option: configuring the cell names it
        if len(levels) > 2:
            raise UserError(
                f"{place} has {len(levels)} levels; {design.kind} takes [with, without], or the "
                "level without the part alone. kind: one_factor takes more."
            )
        if same(*levels):
            raise UserError(
                f"{place}: {key} is {spell(levels[1])} already in {workshop.preset}: there is "
                "nothing to leave out."
            )
        if design.kind == "add_one_in":
            levels.reverse()
        factors[key] = spec.model_copy(update={"levels": levels})
    return design.model_copy(update={"factors": factors})


def _path_factors(design: Design, workshop: Workshop, where: str) -> tuple[Factor, ...]:
    """One factor of two levels for each component in which two models differ."""
    if design.start is None or design.to is None:
        raise UserError(f"{where}: a path needs from: MODEL and to: MODEL.")
    if workshop.preset != design.start:
        raise UserError(f"{where}.from is {design.start}, but model is {workshop.preset}.")
    first, last = workshop.start(design.start), workshop.start(design.to)
    before, after = workshop.resolve(first), workshop.resolve(last)
    changes = [
        axis for axis in GROUPS if before[axis] and after[axis] and before[axis] != after[axis]
    ]
    factors = []
    for axis in changes:
        old, new = _names(axis, first, last, before, after)
        parts = {old: first[axis], new: last[axis]}
        workshop.parts |= {(axis, name): part for name, part in parts.items()}
        factors.append(Factor(axis, (old, new), parts=parts))
    if before["chunk"] and after["chunk"] and before["chunk"] != after["chunk"]:
        factors.append(Factor("chunk", (before["chunk"], after["chunk"])))
    if not factors:
        raise UserError(f"{where}: {design.start} and {design.to} do not differ.")
    # What the first model does not have comes with the change that makes it active.
    missing = {axis: last[axis] for axis in AXES if not before[axis]}
    workshop.base = {**first, **missing, "chunk": before["chunk"] or after["chunk"]}
    return tuple(factors)


def _names(axis: str, first: Model, last: Model, before: Model, after: Model) -> tuple[str, str]:
    """Names of two components: their choices', and where those agree the options that differ."""
    names = [str(model[axis].get(CHOICE, axis)) for model in (first, last)]
    if names[0] != names[1]:
        return names[0], names[1]
    old, new = before[axis], after[axis]
    keys = [key for key in old if old[key] != new[key]]

    def said(name: str, component: dict[str, Any]) -> str:
        return f"{name}({', '.join(f'{key}={spell(component[key])}' for key in keys)})"

    return said(names[0], old), said(names[1], new)
