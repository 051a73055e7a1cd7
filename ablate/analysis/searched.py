"""What a search has found so far, and how much of its best is the luck of many draws."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from ablate.analysis.effects import Summary, summarise
from ablate.analysis.frame import Cell, StudyResults
from ablate.analysis.power_law import Floats
from ablate.analysis.tuned import TunedBest, expected_best, tuned_best
from ablate.analysis.tuned_cells import ENDED
from ablate.errors import UserError


@dataclass(frozen=True)
class Configuration:
    """One configuration that was tried; `summary` is over the seeds that have a value."""

    cell: Cell
    summary: Summary
    whole: bool
    """Whether every seed has a value; a configuration with a diverged one is never the best."""


@dataclass(frozen=True)
class Searched:
    """A search so far.

    Args:
        planned: how many configurations it may try, and the baseline, which it starts from.
        seeds: the seeds that configurations run with.
        tried: those whose seeds have all ended, in the order in which they were chosen.
        ranked: the same that have a value for every seed, the best first.
        judged: what the best is worth by seeds that did not choose it; None where `refusal` says
            why that cannot be known.
        running: the best mean after 1 .. all tried; infinite before the first value.
        expected: the expected best mean of m = 1 .. all, had they come in random order.
    """

    planned: int
    seeds: tuple[int, ...]
    tried: tuple[Configuration, ...]
    ranked: tuple[Configuration, ...]
    judged: TunedBest | None
    refusal: str
    running: Floats
    expected: Floats


def searched(results: StudyResults) -> Searched | None:
    """Return what the search of a study has found; None if it is no search or has not begun."""
    if not results.search:
        return None
    goal = cast(Literal["min", "max"], results.goal)
    seeds = _seeds(results)
    tried = [
        Configuration(cell, summarise(list(own.values())), set(own) >= set(seeds))
        for cell in results.cells
        if _ended(results, cell, seeds)
        for own in [results.values[cell.id]]
    ]
    if not tried:
        return None
    values = [results.values[one.cell.id] for one in tried]
    scores = np.array([[own.get(seed, math.nan) for seed in seeds] for own in values])
    means, sign = scores.mean(axis=1), 1.0 if goal == "min" else -1.0
    order = np.argsort(sign * means, kind="stable")
    judged, refusal = None, ""
    try:
        judged = tuned_best(scores, [one.cell.id for one in tried], goal=goal)
    except UserError as error:
        refusal = str(error)
    return Searched(
        planned=int(results.search["trials"]) + (results.cell(results.baseline) is not None),
        seeds=seeds,
        tried=tuple(tried),
        ranked=tuple(tried[index] for index in order if tried[index].whole),
        judged=judged,
        refusal=refusal,
        running=sign * np.minimum.accumulate(np.where(np.isfinite(means), sign * means, np.inf)),
        expected=expected_best(means, goal=goal),
    )


def _seeds(results: StudyResults) -> tuple[int, ...]:
    """The seeds that any configuration was run with; a search may use fewer than the study has."""
    used = {t.seed for own in results.by_cell.values() for t in own if t.state in ENDED}
    return tuple(seed for seed in results.seeds if seed in used)


def _ended(results: StudyResults, cell: Cell, seeds: tuple[int, ...]) -> bool:
    states = {trial.seed: trial.state for trial in results.by_cell[cell.id]}
    return bool(seeds) and all(states.get(seed) in ENDED for seed in seeds)
