"""Which part of a plan a budget of time pays for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ablate.errors import UserError
from ablate.study.cells import Cell
from ablate.study.power import Power
from ablate.study.quantities import seconds_of


@dataclass(frozen=True)
class Proposal:
    """Cells and seeds that fit, the time they take, and what is left out."""

    seeds: int
    labels: tuple[str, ...]
    left_out: tuple[str, ...]
    seconds: float
    reason: str


def parse_budget(text: str) -> float:
    """Seconds of ``90m``, ``8h`` or ``2d``.

    Raises:
        UserError: no number with a unit.
    """
    try:
        seconds = seconds_of(text)
    except ValueError:
        seconds = 0.0
    if seconds <= 0:
        raise UserError(f"budget is '{text}'; write a number and a unit: 30m, 8h or 2d.")
    return seconds


def propose(cells: Sequence[Cell], power: Power, budget: float) -> list[Proposal]:
    """Up to three ways to spend `budget` seconds of training, one trial at a time.

    All cells with as many seeds as fit; and with the seeds that a test needs, as many cells as
    fit, the baseline first and then in the order of the file: factors named first matter most.

    Raises:
        UserError: the time of a cell is not known, or not even the baseline fits once.
    """
    seconds = [cell.cost.seconds_per_trial for cell in cells]
    known = [value for value in seconds if value is not None]
    if len(known) < len(seconds):
        raise UserError("a budget needs the time of every cell, but this task's is not known.")
    if budget < known[0]:
        raise UserError(
            f"a budget of {budget:.0f} s does not pay for one trial of {known[0]:.0f} s."
        )
    whole = int(budget // sum(known))
    wanted = {
        whole: "all cells, as many seeds as fit",
        power.seeds: "the seeds of the study",
        power.seeds_for_one: "seeds enough for a single comparison",
        power.seeds_for_all: "seeds enough for all comparisons with Holm's correction",
    }
    found: dict[tuple[int, int], Proposal] = {}
    for seeds, reason in wanted.items():
        count = _fit(known, seeds, budget)
        if seeds >= 1 and count >= min(2, len(cells)):
            labels = tuple(cell.label for cell in cells)
            found[seeds, count] = Proposal(
                seeds, labels[:count], labels[count:], seeds * sum(known[:count]), reason
            )
    return list(found.values())


def _fit(seconds: Sequence[float], seeds: int, budget: float) -> int:
    total, count = 0.0, 0
    for value in seconds:
        total += value * seeds
        if total > budget:
            break
        count += 1
    return count
