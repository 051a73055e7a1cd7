from __future__ import annotations

import dataclasses

from ablate.analysis.comparisons import compare
from ablate.analysis.example_study import example_study
from ablate.analysis.frame import StudyResults
from ablate.analysis.published import load_published
from ablate.dashboards.sections.paper import paper_section
from ablate.dashboards.sections.paper_models import models_lead, models_table

TABLE = load_published("atlas/table2")
SCORES = {"val/word_perplexity@wikitext": 20.0, "val/acc@piqa": 0.5}


def study(*, as_factor: bool, scores: dict[str, float]) -> StudyResults:
    """Two cells with three seeds, whose scores go up by 1 % with each."""
    made = example_study(3)
    first, second = made.cells[:2]
    cells = (
        dataclasses.replace(first, config={"model": {"name": "atlas"}}, parameters=2e6),
        dataclasses.replace(second, axes={"model": "dot"} if as_factor else {}),
    )
    if as_factor:
        cells = (dataclasses.replace(cells[0], axes={"model": "atlas"}), cells[1])
    trials = tuple(
        dataclasses.replace(
            one, summary={name: value * (1 + one.seed / 100) for name, value in scores.items()}
        )
        for one in made.trials
        if one.cell in {first.id, second.id}
    )
    return dataclasses.replace(made, cells=cells, trials=trials)


def ours(results: StudyResults) -> list[tuple[str, ...]]:
    return [row for row in models_table(results, TABLE).rows if row[0].startswith("ours")]


def test_our_models_stand_under_the_papers_in_its_units() -> None:
    results = study(as_factor=True, scores=SCORES)
    rows = models_table(results, TABLE).rows
    atlas = next(number for number, row in enumerate(rows) if row[0] == "Atlas")
    assert rows[atlas][2:6] == ("18.92", "21.01", "39.1", "69.7")
    # 20, 20.2 and 20.4; 50, 50.5 and 51 per cent.
    dash, pm = "\N{EN DASH}", "\N{PLUS-MINUS SIGN}"
    assert rows[atlas + 1] == (
        *("ours: baseline, 3 seeds", "2M parameters", f"20.20 {pm} 0.20", dash, dash),
        *(f"50.5 {pm} 0.5", *[dash] * 7),
    )
    # Both groups of the table have Atlas and Dot.
    assert len(ours(results)) == 4
    assert "standard deviation" in models_lead(results, TABLE)


def test_only_an_unchanged_model_counts_where_models_are_no_factor() -> None:
    found = ours(study(as_factor=False, scores=SCORES))
    assert {row[0] for row in found} == {"ours: baseline, 3 seeds"}
    assert len(found) == 2


def test_scores_of_made_up_rows_never_stand_beside_the_papers() -> None:
    sample = {"val/acc@sample_piqa": 0.5, "val/sample_average_accuracy": 0.5}
    results = study(as_factor=True, scores=sample)
    assert ours(results) == []
    assert len(models_table(results, TABLE).rows) == len(TABLE.rows)
    assert models_lead(results, TABLE).startswith("Nothing of this study stands in it")


def test_real_sets_stand_in_the_papers_columns_and_made_up_ones_beside_its_average() -> None:
    table = load_published("atlas/table5")
    real = study(as_factor=True, scores={"val/contains@swde": 50.0, "val/contains": 40.0})
    (shown,) = paper_section(real, compare(real), table).tables
    atlas = next(number for number, row in enumerate(shown.rows) if row[0] == "Atlas")
    pm = "\N{PLUS-MINUS SIGN}"
    assert shown.rows[atlas][:3] == ("Atlas", "43.70", "66.8")
    found = shown.rows[atlas + 1]
    assert found[0].startswith("ours: ")
    assert found[1:3] == (f"40.40 {pm} 0.40", f"50.5 {pm} 0.5")
    toy = study(as_factor=True, scores={"val/toy_contains": 50.0})
    (shown,) = paper_section(toy, compare(toy), table).tables
    assert shown.heading[-1] == "Direction"
    assert len(shown.rows) == len(table.rows)


def test_a_column_is_of_cells_with_its_task_alone() -> None:
    table = load_published("atlas/table3")
    made = study(as_factor=True, scores={"val/exact_match@4096": 0.5})
    first, second = made.cells
    cells = tuple(
        dataclasses.replace(one, config={"task": {"args": {"variant": variant}}})
        for one, variant in ((first, "single_1"), (second, "single_3"))
    )
    rows = models_table(dataclasses.replace(made, cells=cells), table).rows
    columns = ("Model", *table.columns)
    found = [dict(zip(columns, row, strict=True)) for row in rows if row[0].startswith("ours")]
    number = "50.5 \N{PLUS-MINUS SIGN} 0.5"
    shown = [{key for key, text in row.items() if text == number} for row in found]
    assert shown == [{"passkey_4k"}, {"word_4k"}]


def test_a_study_of_another_model_is_not_the_papers() -> None:
    table = load_published("atlas/table6")
    made = example_study(3)
    first = made.cell(made.baseline)
    assert first is not None

    def shown(model: str) -> tuple[str, str, str]:
        cells = tuple(
            dataclasses.replace(one, config={"model": {"name": model}}) for one in made.cells
        )
        results = dataclasses.replace(made, cells=cells)
        section = paper_section(results, compare(results), table)
        return section.lead[-1], section.tables[0].rows[0][-4], section.tables[0].rows[4][-4]

    assert shown("atlas")[1:] == (first.label, "memory=matrix")
    lead, *ours = shown("omeganet")
    assert lead.startswith("The rows change atlas, this study changes omeganet")
    assert ours == ["\N{EN DASH}"] * 2
