"""A table of a paper beside the cells of a study that make the same changes."""

from __future__ import annotations

from ablate.analysis.comparisons import Comparisons, Row
from ablate.analysis.formatting import DASH, decimals_for, measure_words, number, several, signed
from ablate.analysis.frame import StudyResults
from ablate.analysis.published import Mismatch, Published, PublishedRow, mismatches
from ablate.dashboards.section import Section
from ablate.dashboards.sections.paper_models import (
    measures_columns,
    model_of,
    models_lead,
    models_table,
    places,
)
from ablate.dashboards.tables import difference_text, mean_text
from ablate.dashboards.text_table import TextTable


def paper_section(results: StudyResults, comparisons: Comparisons, table: Published) -> Section:
    """Return the published numbers with ours beside them, and what does not add up in print."""
    ablation = any(row.ours for row in table.rows) and not measures_columns(results, table)
    lead = [f"{table.title}. {table.source}. {_honesty(table)}"]
    if ablation:
        if other := _other_model(results, table):
            lead.append(
                f"The rows change {table.of}, this study changes {other}: none of its cells is in "
                "the table."
            )
        elif not any(_ours(row, results, comparisons, table) for row in table.rows):
            lead.append("No cell of this study makes a change that the table has.")
        shown = _beside(results, comparisons, table)
    else:
        if table.measures:
            lead.append(models_lead(results, table))
        shown = models_table(results, table)
    return Section(
        name="paper",
        title=f"Beside {table.name}",
        lead=tuple(lead),
        tables=(shown,),
        notes=(*map(_contradiction, mismatches(table)), *table.notes),
    )


def _honesty(table: Published) -> str:
    runs = f"{several(table.seeds, 'run')} of each model, no interval"
    return f"In print: {runs}; a difference there may be chance."


def _beside(results: StudyResults, comparisons: Comparisons, table: Published) -> TextTable:
    first = table.rows[0]
    unit = measure_words(results.primary)
    heading = ["In print"]
    for column in table.columns:
        heading += [column.replace("_", " "), "Change"]
    rows = []
    for row in table.rows:
        texts = [row.name]
        for column in table.columns:
            digits = places(table, column)
            change = (
                DASH if row is first else signed(row.values[column] - first.values[column], digits)
            )
            texts += [number(row.values[column], digits), change]
        rows.append((*texts, *_own(row, results, comparisons, table)))
    return TextTable(
        caption=f"{table.source}, and our {unit} where a cell makes the same change.",
        alignment="l" + "rr" * len(table.columns) + "lrrl",
        heading=(*heading, "Our cell", f"Our {unit}", "Change [95 % interval]", "Direction"),
        rows=tuple(rows),
    )


def _own(
    row: PublishedRow, results: StudyResults, comparisons: Comparisons, table: Published
) -> tuple[str, str, str, str]:
    own = _ours(row, results, comparisons, table)
    if own is None:
        return DASH, DASH, DASH, DASH
    decimals, first = decimals_for(comparisons), table.rows[0]
    column, wanted = next(iter(table.columns.items()))
    theirs = row.values[column] - first.values[column]
    verdict = DASH
    if row is not first and own.effect is not None and own.effect.difference is not None:
        worse = (theirs > 0) == (wanted == "min")
        verdict = _direction(own, worse=worse, equal=theirs == 0)
    return own.cell.label, mean_text(own, decimals), difference_text(own, decimals), verdict


def _direction(own: Row, *, worse: bool, equal: bool) -> str:
    """Compare signs, but only where our interval tells the sign."""
    effect = own.effect
    if effect is None or effect.low is None or effect.high is None:
        return "not decided"
    if effect.low <= 0 <= effect.high or equal:
        return "not decided"
    return "the same" if worse == (own.better is False) else "opposite"


def _ours(
    row: PublishedRow, results: StudyResults, comparisons: Comparisons, table: Published
) -> Row | None:
    """The cell that makes the row's change to the model that the table changes."""
    if _other_model(results, table):
        return None
    for one in comparisons.rows:
        if one.cell.label in row.ours and (
            one.cell.id != results.baseline or row.model in ("", model_of(results, one.cell))
        ):
            return one
    return None


def _other_model(results: StudyResults, table: Published) -> str:
    """The model that a study changes, if that is known and is not the table's."""
    baseline = results.cell(results.baseline)
    found = model_of(results, baseline) if baseline else ""
    return found if table.of and found != table.of else ""


def _contradiction(one: Mismatch) -> str:
    where = ", ".join(text for text in (one.row.name, one.row.group) if text)
    return (
        f"Does not add up: {one.column.replace('_', ' ')} of {where} is printed as "
        f"{one.printed:g}; the numbers that it is made from give {one.computed:.2f}."
    )
