"""A table of plain texts, and its spelling in Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ablate.dashboards.latex import tabular

MOST_ROWS = 100
"""A table in Markdown has no more: nobody reads further."""


@dataclass(frozen=True)
class TextTable:
    """A table as people read it: every number is already written, nothing is escaped.

    `alignment` has one ``l`` or ``r`` for each column; `heading` and every row have as many texts.
    """

    caption: str
    alignment: str
    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """Return the table in Markdown, with pipes and markup in texts escaped.

        Of a long table it has the first rows and says how many are left out.
        """
        rule = "|".join(" :-- " if side == "l" else " --: " for side in self.alignment)
        lines = [_line(self.heading), f"|{rule}|", *map(_line, self.rows[:MOST_ROWS])]
        if len(self.rows) > MOST_ROWS:
            left = len(self.rows) - MOST_ROWS
            lines += ["", f"{left} more rows are left out here; `--format csv` has every cell."]
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """Return the table as LaTeX for the package booktabs, all texts escaped."""
        return tabular(self.caption, self.alignment, self.heading, self.rows)


def markdown(text: str) -> str:
    """Escape `text` for Markdown and put it on one line."""
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_<>|]|\](?=\())", r"\\\1", flat)


def _line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(map(markdown, texts)) + " |"
