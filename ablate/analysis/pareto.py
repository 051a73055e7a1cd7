"""Which cells no other cell beats in both the measure and a cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ablate.analysis.comparisons import Row


def front(rows: Sequence[Row], cost: Callable[[Row], float | None], goal: str) -> list[Row]:
    """Return the rows on the Pareto front of mean measure and cost, the cheapest first.

    A row is on the front if every cell that costs no more has a worse mean. Rows without a mean or
    without the cost are left out; of rows that are equal in both, all stay.

    Args:
        rows: the cells.
        cost: what a cell costs; less is better.
        goal: ``min`` or ``max`` of the measure.
    """
    sign = 1 if goal == "min" else -1
    points = [
        (price, sign * row.summary.mean, row)
        for row in rows
        if (price := cost(row)) is not None and row.summary.mean is not None
    ]
    points.sort(key=lambda point: point[:2])
    found: list[Row] = []
    best, at = float("inf"), float("nan")
    for price, value, row in points:
        if value < best or (value == best and price == at):
            found.append(row)
            best, at = value, price
    return found
