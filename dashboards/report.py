"""The report of a study: one HTML file that needs nothing else, or the same as text.

A report is a pure function of the results: the same ledger gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import plotly.graph_objects as go

from ablate.analysis import formatting
from ablate.analysis.comparisons import Row, Verdict, compare
from ablate.analysis.effects import seeds_needed
from ablate.analysis.frame import StudyResults, Trial
from ablate.analysis.published import Published
from ablate.analysis.targets import FEW
from ablate.analysis.verdict import Conclusion, conclude
from ablate.dashboards import provenance, tables, theme
from ablate.dashboards.cost_figures import COSTS, fronts
from ablate.dashboards.curve_figure import MOST_POINTS, drawn_curves, is_long, reference_lines
from ablate.dashboards.effect_figure import shown_effects
from ablate.dashboards.figures import figures
from ablate.dashboards.page import render
from ablate.dashboards.report_sections import SECTIONS, report_sections
from ablate.dashboards.section import Section
from ablate.dashboards.text_table import MOST_ROWS, markdown
from ablate.errors import unknown

FORMATS = ("html", "md", "latex", "csv", "parquet")
BROKEN = ("failed", "diverged", "oom", "timed_out", "lost", "cancelled", "pruned", "stale")
"""States that the page explains one by one."""

MOST_FAILURES = 60
"""The page prints the messages of at most this many trials that did not finish."""

MOST_SENTENCES = 12
"""More comparisons are folded on the page, and left to the table in Markdown."""

MARKS = {
    Verdict.SIGNIFICANT: "solid",
    Verdict.SUGGESTIVE: "hollow",
    Verdict.UNDECIDED: "quiet",
    Verdict.ONE_PAIR: "quiet",
    Verdict.IDENTICAL: "quiet",
}
"""The mark of each verdict, the same in the table and in the effect plot."""


def report_bytes(results: StudyResults, format: str, *, paper: Published | None = None) -> bytes:
    """Return the report in one of `FORMATS` as it stands in a file.

    Args:
        results: the study.
        format: CSV and Parquet hold the cells alone, with unrounded numbers.
        paper: a published table to set beside the study.

    Raises:
        UserError: for any other format.
    """
    if format == "parquet":
        return tables.parquet_bytes(tables.records(results))
    writers: dict[str, Callable[[], str]] = {
        "html": lambda: html_report(results, paper=paper),
        "md": lambda: _markdown_report(results, paper),
        "latex": lambda: _latex_report(results, paper),
        "csv": lambda: tables.csv_text(tables.records(results)),
    }
    if format not in writers:
        raise unknown("report format", format, FORMATS, where="--format")
    return writers[format]().encode()


def html_report(results: StudyResults, *, paper: Published | None = None, live: str = "") -> str:
    """Return the page with its style, figures and plotly's code inside.

    Args:
        results: the study.
        paper: a published table to set beside the study.
        live: name of this state of a running study; the page asks its server for a newer one.
    """
    comparisons = compare(results)
    decimals = formatting.decimals_for(comparisons)
    sections = report_sections(results, comparisons, paper)
    drawn = figures(results)
    for section in sections.values():
        drawn |= {drawing.name: drawing.figure for drawing in section.drawings}
    return render(
        "report.html.j2",
        drawn,
        live=live,
        results=results,
        comparisons=comparisons,
        conclusion=conclude(results, comparisons),
        counts=_ordered(results.counts()),
        rows=comparisons.rows,
        factors=tables.factors(results),
        costs=tables.cost_columns(comparisons),
        decimals=decimals,
        sections={name: sections.get(name) for name in SECTIONS},
        contents=_contents(results, sections, drawn),
        fronts=fronts(results, comparisons),
        unit=formatting.measure_words(results.primary),
        curve_rows=drawn_curves(comparisons),
        most_points=MOST_POINTS if is_long(results) else 0,
        effect_rows=shown_effects(comparisons),
        references=reference_lines(results),
        broken=broken_trials(results),
        facts=provenance.provenance(results),
        commands=provenance.commands(results),
        again=provenance.reproduction(results),
        config=provenance.baseline_config(results),
        needed=seeds_needed(max(1, comparisons.family)),
        colours=theme.colours(comparisons.rows),
        **_SHOWN,
    )


def _contents(
    results: StudyResults, sections: Mapping[str, Section], drawn: Mapping[str, go.Figure]
) -> list[tuple[str, str]]:
    """Return anchor and title of every section of the page, in its order."""
    fixed = {
        "effects": "Effects",
        "curves": "Learning curves",
        "cost": "Cost" if any(name in drawn for name in COSTS) else "",
        "levels": "Cells in full" if tables.factors(results) else "",
        "failures": "Trials that did not finish" if broken_trials(results) else "",
        "provenance": "Provenance",
    }
    titles = {**fixed, **{name: section.title for name, section in sections.items()}}
    order = (
        *("claims", "search", "effects", "tuned", "paper", "measures", "attribution", "curves"),
        *("learnability", "scaling", "cost", "levels", "failure_rates", "failures", "provenance"),
    )
    return [(name, titles[name]) for name in order if titles.get(name)]


def broken_trials(results: StudyResults) -> list[tuple[str, Trial]]:
    """Return label and trial of everything that was tried and has no value."""
    labels = {cell.id: cell.label for cell in results.cells}
    planned = (trial for trials in results.by_cell.values() for trial in trials)
    return [(labels[trial.cell], trial) for trial in planned if trial.state in BROKEN]


def _ordered(counts: dict[str, int]) -> list[tuple[str, int]]:
    order = ("done", "running", "missing", *BROKEN)
    return sorted(counts.items(), key=lambda item: (order.index(item[0]), item[0]))


def _markdown_report(results: StudyResults, paper: Published | None) -> str:
    comparisons = compare(results)
    conclusion = conclude(results, comparisons)
    sections = report_sections(results, comparisons, paper)
    states = ", ".join(f"{n} {state}" for state, n in _ordered(results.counts()))
    long = len(results.cells) > MOST_ROWS
    parts = [
        f"# {markdown(results.study)}",
        markdown(results.question),
        f"**{markdown(conclusion.headline)}**",
        "\n".join(f"- {markdown(limit)}" for limit in conclusion.limits),
        tables.ablation_table(results, largest_first=long).markdown().rstrip("\n"),
        f"Trials: {states}. Differences are paired by seed; p is the exact sign-flip test, "
        f"p (Holm) corrects over {formatting.several(comparisons.family, 'comparison')}.",
        _in_words(conclusion),
        *(section.markdown().rstrip("\n") for section in sections.values()),
        "" if long else tables.levels_table(results).markdown().rstrip("\n"),
        *_again(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _in_words(conclusion: Conclusion) -> str:
    """Each comparison in a sentence; where they are many, the table says it better."""
    if len(conclusion.statements) > MOST_SENTENCES:
        count = formatting.several(len(conclusion.statements), "comparison")
        return f"The table has all {count}; in words they are in the HTML report."
    return "\n".join(f"- {markdown(s.text)}" for s in conclusion.statements)


def _again(results: StudyResults) -> list[str]:
    again = provenance.reproduction(results)
    return ["## Reproduce", again.caption, again.markdown().rstrip("\n")] if again.rows else []


def _latex_report(results: StudyResults, paper: Published | None) -> str:
    sections = report_sections(results, compare(results), paper)
    parts = [tables.ablation_table(results).latex(), *(s.latex() for s in sections.values())]
    return "\n".join(part for part in parts if part)


def _mark(row: Row) -> str:
    return MARKS.get(row.verdict, "")


_SHOWN: dict[str, Any] = {
    "mean_text": tables.mean_text,
    "difference_text": tables.difference_text,
    "mark": _mark,
    "MOST_FAILURES": MOST_FAILURES,
    "FEW": FEW,
    "MOST_SENTENCES": MOST_SENTENCES,
}
