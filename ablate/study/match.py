"""Matching: a cell is made as large as the one that it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from ablate.errors import UserError
from ablate.experiments.task import MemoryTask, SequenceTask
from ablate.study.configure import Configured, Workshop
from ablate.study.schema import Match
from ablate.trial.cost import Work, count_parameters, count_work
from ablate.trial.online import memory_cost

KNOBS = {"width": "backbone.dim", "heads": "backbone.heads", "layers": "backbone.layers"}
LARGEST = 1 << 20


@dataclass(frozen=True)
class Matched:
    """How a cell was made to match.

    Args:
        on: parameters, state or flops.
        key: the option that was moved, `before` to `after`.
        target: what the other cell has; `reached` is what this one has now.
        mismatch: reached / target - 1.
    """

    on: str
    key: str
    before: int
    after: int
    target: float
    reached: float

    @property
    def mismatch(self) -> float:
        """The residual, as a share of the target."""
        return self.reached / self.target - 1


def quantity(one: Configured, on: str, allow: tuple[str, ...], where: str) -> float:
    """Parameters, bytes of state or FLOPs per token of a cell."""
    model = one.config["model"]
    if isinstance(one.task, MemoryTask):
        size = memory_cost(model, allow=allow, where=where).state_bytes
        if on != "state" or size is None:
            raise UserError(f"{where}: match.on is '{on}', but {one.task.name} counts state only.")
        return size
    task = cast(SequenceTask, one.task)
    if on == "parameters":
        return count_parameters(model, task.vocab, allow=allow, where=where)
    work: Work = count_work(model, task.vocab, task.context, allow=allow, where=where)
    return work.state_bytes if on == "state" else work.flops / task.context


def solve(
    one: Configured, target: float, match: Match, workshop: Workshop, where: str
) -> tuple[Configured, Matched]:
    """The cell with its knob moved so that it has `target` of what `match` names.

    Raises:
        UserError: a knob that the model does not have or that is a factor, or no value within the
            tolerance; with the best that there is.
    """
    key = KNOBS.get(match.by, match.by)
    model = one.config["model"]
    group, _, option = key.partition(".")
    before = (model.get(group) or {}).get(option) if option else None
    place, cell = f"{workshop.file}: match.by", where.removeprefix(f"{workshop.file}: ")
    if not isinstance(before, int) or isinstance(before, bool):
        raise UserError(
            f"{place} is '{match.by}': {cell} has no whole number {key}. "
            f"Valid: {', '.join(KNOBS)}, or an option of a component."
        )
    if key in one.levels:
        raise UserError(f"{place} is '{match.by}', but {key} is a factor: it cannot move too.")
    heads = model["backbone"]["heads"]
    step = heads if key == "backbone.dim" and model["backbone"]["head_dim"] is None else 1

    def measure(multiple: int) -> float:
        moved = workshop.changed(one, key, multiple * step)
        return quantity(moved, match.on, workshop.allow, where)

    best = min(
        _bracket(measure, target, max(1, before // step)),
        key=lambda pair: abs(pair[1] / target - 1),
    )
    found = Matched(match.on, key, before, best[0] * step, target, best[1])
    if abs(found.mismatch) > match.tolerance:
        raise UserError(
            f"{place}: {cell} cannot have {target:,.0f} {_unit(match.on)} within "
            f"{match.tolerance:.1%} by {key}: the best is {key}={found.after} with "
            f"{found.reached:,.0f} ({found.mismatch:+.1%}). Allow match.tolerance="
            f"{abs(found.mismatch) * 1.01:.2g}, or match by something finer."
        )
    return workshop.changed(one, key, found.after), found


def _unit(on: str) -> str:
    return {"parameters": "parameters", "state": "bytes of state"}.get(on, "FLOPs per token")


def _bracket(measure: Callable[[int], float], target: float, start: int) -> list[tuple[int, float]]:
    """The two neighbouring whole numbers between which `measure`, which grows, passes `target`."""
    low, high = start, start
    values = {start: measure(start)}
    while values[low] > target and low > 1:
        low = max(1, low // 2)
        values[low] = measure(low)
    while values[high] < target and high < LARGEST:
        high *= 2
        values[high] = measure(high)
        if values[high] == values[high // 2]:
            break
    while high - low > 1:
        middle = (low + high) // 2
        values[middle] = measure(middle)
        low, high = (middle, high) if values[middle] <= target else (low, middle)
    return [(low, values[low]), (high, values[high])]
