"""A plan as a page: what a study would run, what each cell is compared with, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablate.dashboards.page import render

MOST_CELLS = 500


def plan_page(plan: Mapping[str, Any]) -> str:
    """Return the page of a plan.

    Args:
        plan: as `ablate plan --json` prints it.
    """
    cells = plan["cells"][:MOST_CELLS]
    labels = {cell["id"]: cell["label"] for cell in plan["cells"]}
    return render(
        "plan.html.j2",
        {},
        plan=plan,
        cells=cells,
        labels=labels,
        more=len(plan["cells"]) - len(cells),
        factors=_factors(plan["cells"]),
    )


def _factors(cells: list[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return every factor with its levels, in the order in which they first occur."""
    found: dict[str, list[Any]] = {}
    for cell in cells:
        for key, value in cell["axes"].items():
            levels = found.setdefault(key, [])
            if value is not None and not any(value == x and type(value) is type(x) for x in levels):
                levels.append(value)
    return found
