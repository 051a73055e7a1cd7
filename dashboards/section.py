"""One section of a report: sentences, figures and tables, which each format writes in its way."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go

from ablate.dashboards.text_table import TextTable, markdown


@dataclass(frozen=True)
class Drawing:
    """A figure: its name on the page, its caption, and words for a reader who cannot see it."""

    name: str
    figure: go.Figure
    caption: str
    description: str


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it, in this order: `lead`, drawings, tables, `notes`."""

    name: str
    title: str
    lead: tuple[str, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    tables: tuple[TextTable, ...] = ()
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """Return the section in Markdown, without its figures."""
        parts = [f"## {markdown(self.title)}", *map(markdown, self.lead)]
        for table in self.tables:
            parts += [markdown(table.caption), table.markdown().rstrip("\n")]
        parts += map(markdown, self.notes)
        return "\n\n".join(part for part in parts if part) + "\n"

    def latex(self) -> str:
        """Return the tables of the section, one after the other."""
        return "\n".join(table.latex() for table in self.tables)
