"""Tables that papers print, as data, and where their numbers contradict each other.

A table lies at ``experiments/<task>/published/<paper>/<table>.yaml`` and is named
``<paper>/<table>``. Every number is as printed; what does not add up is found here, not corrected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

import ablate.experiments
from ablate.analysis.frame import Cell
from ablate.errors import unknown


@dataclass(frozen=True)
class PublishedRow:
    """One line of a table: the printed numbers by column.

    `group` sets apart parts of a table such as model sizes. `ours` are labels of cells that make
    the same change in a study of ours, `model` is the name of the row's model among ours.
    """

    name: str
    values: Mapping[str, float]
    group: str = ""
    ours: tuple[str, ...] = ()
    model: str = ""


@dataclass(frozen=True)
class Measure:
    """The metric of ours that a column prints, and what it is multiplied by to be in its unit.

    `task_args` are what the task of the cell must be for that.
    """

    metric: str
    scale: float = 1.0
    task_args: Mapping[str, Any] = field(default_factory=dict)

    def of(self, cell: Cell) -> bool:
        """Whether a cell is asked what the column asks."""
        given = (cell.config.get("task") or {}).get("args") or {}
        return all(given.get(name) == value for name, value in self.task_args.items())


@dataclass(frozen=True)
class Derivation:
    """A column that is the mean of `columns` of other rows, in `table` and there in `group`.

    `rows` maps the name of a row to that of the row which it is made from.
    """

    column: str
    columns: tuple[str, ...]
    table: str
    group: str
    rows: Mapping[str, str]


@dataclass(frozen=True)
class Published:
    """A table with its source; `columns` says of each column whether ``min`` or ``max`` is better.

    `of` is the model that the rows change, by its name among ours, where they change one.
    `means` maps a column to those whose mean it is said to be, in the same row; `measures` maps
    columns to metrics of ours.
    """

    name: str
    title: str
    source: str
    seeds: int
    columns: Mapping[str, str]
    rows: tuple[PublishedRow, ...]
    means: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    derived: tuple[Derivation, ...] = ()
    notes: tuple[str, ...] = ()
    measures: Mapping[str, Measure] = field(default_factory=dict)
    of: str = ""

    def row(self, name: str, group: str = "") -> PublishedRow:
        """Return the row of that name in `group`.

        Raises:
            KeyError: there is none.
        """
        for row in self.rows:
            if row.name == name and row.group == group:
                return row
        raise KeyError(f"{self.name} has no row {name!r} in group {group!r}")


@dataclass(frozen=True)
class Mismatch:
    """A printed number that is not what the numbers it is made from give."""

    row: PublishedRow
    column: str
    printed: float
    computed: float


def published_names() -> list[str]:
    """Return the names of all tables, sorted."""
    return sorted(_files())


def load_published(name: str) -> Published:
    """Read the table `name`, such as ``atlas/table6``.

    Raises:
        UserError: there is no such table.
    """
    files = _files()
    if name not in files:
        raise unknown("published table", name, files, where="--paper")
    content = yaml.safe_load(files[name].read_text(encoding="utf-8"))
    return Published(
        name=name,
        title=content["title"],
        source=content["source"],
        seeds=content["seeds"],
        columns=content["columns"],
        rows=tuple(_row(entry) for entry in content["rows"]),
        means={column: tuple(parts) for column, parts in content.get("means", {}).items()},
        derived=tuple(
            _derivation(column, entry) for column, entry in content.get("derived", {}).items()
        ),
        notes=tuple(content.get("notes", ())),
        measures={column: Measure(*entry) for column, entry in content.get("measures", {}).items()},
        of=content.get("of", ""),
    )


def mismatches(table: Published) -> list[Mismatch]:
    """Return the numbers of `table` that rounding does not reconcile with what they are made from.

    A printed number may be off by half a unit of its last digit, and so may each number in a mean.
    """
    found = []
    for column, parts in table.means.items():
        for row in table.rows:
            found += _check(table, row, column, table, row, parts)
    for one in table.derived:
        source = load_published(one.table)
        for name, made_from in one.rows.items():
            other = source.row(made_from, one.group)
            found += _check(table, table.row(name), one.column, source, other, one.columns)
    return found


def _check(
    table: Published,
    row: PublishedRow,
    column: str,
    source: Published,
    made_from: PublishedRow,
    parts: tuple[str, ...],
) -> list[Mismatch]:
    printed = row.values[column]
    computed = sum(made_from.values[part] for part in parts) / len(parts)
    unit = max(_last_digit(source, part) for part in parts)
    allowed = (_last_digit(table, column) + unit) / 2
    if abs(printed - computed) <= allowed * (1 + 1e-9):
        return []
    return [Mismatch(row, column, printed, computed)]


def _last_digit(table: Published, column: str) -> float:
    """Return the unit of the last digit that `table` prints in `column`."""
    texts = [repr(row.values[column]) for row in table.rows if column in row.values]
    return 10.0 ** -max(len(text.partition(".")[2].rstrip("0")) for text in texts)


def _files() -> dict[str, Path]:
    root = Path(ablate.experiments.__path__[0])
    return {
        f"{path.parent.name}/{path.stem}": path
        for path in sorted(root.glob("*/published/*/*.yaml"))
    }


def _row(entry: Mapping[str, Any]) -> PublishedRow:
    values = {column: float(value) for column, value in entry["values"].items()}
    ours = tuple(entry.get("ours", ()))
    return PublishedRow(entry["name"], values, entry.get("group", ""), ours, entry.get("model", ""))


def _derivation(column: str, entry: Mapping[str, Any]) -> Derivation:
    return Derivation(
        column, tuple(entry["mean_of"]), entry["table"], entry.get("group", ""), entry["rows"]
    )
