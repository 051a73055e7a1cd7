"""The cells of a plan as a table, or one below the other where a table would be too narrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ablate.analysis.formatting import DASH, about, count, duration, level, size

if TYPE_CHECKING:
    from ablate.study.plan import Cell
    from ablate.study.schema import Scalar

NAMES = ("parameters", "state", "FLOPs/token", "memory", "time/trial")
NARROW = 100  # columns: below this, a row of eight does not fit


def print_cells(cells: Sequence[Cell], labels: dict[str, str], out: Console) -> None:
    """Print what each cell changes and costs.

    Args:
        cells: those to show.
        labels: of all cells, by id.
    """
    if out.width >= NARROW:
        out.print(_table(cells, labels))
        return
    for cell in cells:
        out.print(Text(cell.label, style="bold"))
        said = changes(cell.changed)
        if cell.compared_with:
            said = f"{said or 'the same'}, against {labels.get(cell.compared_with, '?')}"
        costs = ", ".join(
            f"{name} {value}" for name, value in zip(NAMES, _costs(cell), strict=True)
        )
        for line in filter(None, (said, costs)):
            out.print(Padding(Text(line), (0, 0, 0, 2)))


def _table(cells: Sequence[Cell], labels: dict[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("cell", "changed", "compared with"):
        table.add_column(name, overflow="fold")
    for name in NAMES:
        table.add_column(name, justify="right", no_wrap=True)
    for cell in cells:
        said = (cell.label, changes(cell.changed), labels.get(cell.compared_with or "", ""))
        table.add_row(*map(escape, said), *_costs(cell))
    return table


def _costs(cell: Cell) -> tuple[str, ...]:
    """The columns of `NAMES`; ``~`` marks what is not counted."""
    cost, guess = cell.cost, "" if cell.counted else "~"
    return (
        ("" if cell.built else guess) + count(cost.parameters),
        guess + size(cost.state_bytes),
        guess + count(cost.flops_per_token),
        DASH if cost.memory_bytes is None else "~" + size(cost.memory_bytes),
        about(cost.time_from) + duration(cost.seconds_per_trial),
    )


def changes(changed: dict[str, list[Scalar]]) -> str:
    """Write what differs between two cells: ``window: 4 -> 1``."""
    return ", ".join(f"{key}: {level(a)} -> {level(b)}" for key, (a, b) in changed.items())
