"""The report of a study: one HTML file that needs nothing else, or the same as text.

A report is a pure function of the results: the same ledger gives the same bytes.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import plotly.graph_objects as go
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from ablate.analysis import numbers
from ablate.analysis.comparisons import Row, Verdict, compare
from ablate.analysis.effects import seeds_needed
from ablate.analysis.frame import StudyResults, Trial
from ablate.analysis.targets import FEW
from ablate.analysis.verdict import conclude
from ablate.dashboards import provenance, tables, theme
from ablate.dashboards.cost_figures import fronts
from ablate.dashboards.curve_figure import MOST_POINTS, drawn_curves, is_long, reference_lines
from ablate.dashboards.effect_figure import shown_effects
from ablate.dashboards.figures import figures
from ablate.dashboards.report_sections import report_sections
from ablate.dashboards.text_table import markdown
from ablate.errors import unknown

FORMATS = ("html", "md", "latex", "csv", "parquet")
SECTIONS = ("claims", "attribution", "learnability", "scaling", "failure_rates")
"""The sections that are on a page only if the study has what they show."""

BROKEN = ("failed", "diverged", "oom", "lost", "pruned", "stale")
"""States that the page explains one by one."""

MOST_FAILURES = 60
"""The page prints the messages of at most this many trials that did not finish."""

MARKS = {
    Verdict.SIGNIFICANT: "solid",
    Verdict.SUGGESTIVE: "hollow",
    Verdict.UNDECIDED: "quiet",
    Verdict.ONE_PAIR: "quiet",
    Verdict.IDENTICAL: "quiet",
}
"""The mark of each verdict, the same in the table and in the effect plot."""


def write_report(results: StudyResults, path: str | Path) -> Path:
    """Write the page to `path`, making its folder, and return the path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html_report(results), encoding="utf-8", newline="\n")
    return path


def report_bytes(results: StudyResults, format: str) -> bytes:
    """Return the report in any of `FORMATS` as it stands in a file.

    Raises:
        UserError: for any other format.
    """
    if format == "parquet":
        return tables.parquet_bytes(tables.records(results))
    return report_text(results, format).encode()


def report_text(results: StudyResults, format: str) -> str:
    """Return the report as ``html``, ``md``, ``latex`` or ``csv``; Parquet is no text.

    Raises:
        UserError: for any other format.
    """
    match format:
        case "html":
            return html_report(results)
        case "md":
            return _markdown_report(results)
        case "latex":
            return _latex_report(results)
        case "csv":
            return tables.csv_text(tables.records(results))
        case _:
            raise unknown("report format", format, FORMATS, where="--format")


def html_report(results: StudyResults) -> str:
    """Return the page with its style, figures and plotly's code inside."""
    comparisons = compare(results)
    decimals = numbers.decimals_for(comparisons)
    sections = report_sections(results, decimals)
    drawings = [drawing for section in sections.values() for drawing in section.drawings]
    shown = {**figures(results), **{drawing.name: drawing.figure for drawing in drawings}}
    drawn = {name: figure_json(figure) for name, figure in shown.items()}
    text: str = (
        _environment()
        .get_template("report.html.j2")
        .render(
            results=results,
            comparisons=comparisons,
            conclusion=conclude(results, comparisons),
            counts=_ordered(results.counts()),
            rows=comparisons.rows,
            factors=tables.factors(results),
            costs=tables.cost_columns(comparisons),
            decimals=decimals,
            sections={name: sections.get(name) for name in SECTIONS},
            fronts=fronts(results, comparisons),
            unit=numbers.measure_words(results.primary),
            figures=drawn,
            curve_rows=drawn_curves(comparisons),
            most_points=MOST_POINTS if is_long(results) else 0,
            effect_rows=shown_effects(comparisons),
            references=reference_lines(results),
            broken=broken_trials(results),
            facts=provenance.provenance(results),
            commands=provenance.commands(results),
            config=provenance.baseline_config(results),
            needed=seeds_needed(max(1, comparisons.family)),
            colours=theme.colours(comparisons.rows),
            light=theme.LIGHT,
            dark=theme.DARK,
            swaps=embedded(theme.dark_of_light()),
            plotly=packed_plotly() if drawn else "",
        )
    )
    return text


def figure_json(figure: go.Figure) -> Markup:
    """Return a figure as JSON that may stand inside a script element."""
    return embedded(json.loads(figure.to_json()))


@cache
def packed_plotly() -> str:
    """Return plotly's code as base64 of gzip: a third of its size, and the page unpacks it."""
    packed = gzip.compress(get_plotlyjs().encode(), 9, mtime=0)
    return base64.b64encode(packed).decode()


def embedded(value: Any) -> Markup:
    """Return `value` as JSON in which no text can end the script element around it."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)


def breakable(label: str) -> Markup:
    """Return `label` as HTML that a narrow column may break after a joint, not inside a word."""
    return Markup(re.sub(r"([=._/:,])", r"\1<wbr>", str(escape(label))))


def broken_trials(results: StudyResults) -> list[tuple[str, Trial]]:
    """Return label and trial of everything that was tried and has no value."""
    labels = {cell.id: cell.label for cell in results.cells}
    planned = (trial for trials in results.by_cell.values() for trial in trials)
    return [(labels[trial.cell], trial) for trial in planned if trial.state in BROKEN]


def _ordered(counts: dict[str, int]) -> list[tuple[str, int]]:
    order = ("done", "running", "missing", *BROKEN)
    return sorted(counts.items(), key=lambda item: (order.index(item[0]), item[0]))


def _markdown_report(results: StudyResults) -> str:
    comparisons = compare(results)
    conclusion = conclude(results, comparisons)
    sections = report_sections(results, numbers.decimals_for(comparisons))
    states = ", ".join(f"{n} {state}" for state, n in _ordered(results.counts()))
    parts = [
        f"# {markdown(results.study)}",
        markdown(results.question),
        f"**{markdown(conclusion.headline)}**",
        "\n".join(f"- {markdown(limit)}" for limit in conclusion.limits),
        tables.ablation_table(results).markdown().rstrip("\n"),
        f"Trials: {states}. Differences are paired by seed; p is the exact sign-flip test, "
        f"p (Holm) corrects over {numbers.several(comparisons.family, 'comparison')}.",
        "\n".join(f"- {markdown(s.text)}" for s in conclusion.statements),
        *(section.markdown().rstrip("\n") for section in sections.values()),
        tables.levels_table(results).markdown().rstrip("\n"),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _latex_report(results: StudyResults) -> str:
    sections = report_sections(results, numbers.decimals_for(compare(results)))
    parts = [tables.ablation_table(results).latex(), *(s.latex() for s in sections.values())]
    return "\n".join(part for part in parts if part)


def heading(text: str) -> str:
    """Return `text` with its first letter large; a symbol such as p stays as it is."""
    return text if len(text.partition(" ")[0]) == 1 else text[:1].upper() + text[1:]


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    spelling = (
        *("count", "size", "duration", "number", "signed", "interval", "probability", "level"),
        *("several", "listed"),
    )
    environment.filters.update({name: getattr(numbers, name) for name in spelling})
    environment.filters["breakable"] = breakable
    environment.filters["heading"] = heading
    environment.globals.update(
        mean_text=tables.mean_text,
        change=tables.change,
        difference_text=tables.difference_text,
        mark=_mark,
        MOST_FAILURES=MOST_FAILURES,
        FEW=FEW,
    )
    return environment


def _mark(row: Row) -> str:
    return MARKS.get(row.verdict, "")
