"""The same table in three formats, with names that try to break each of them."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet
import pytest

from ablate.analysis.comparisons import compare
from ablate.analysis.example_designs import (
    factorial_study,
    search_study,
    size_and_data_study,
    size_study,
    tuned_study,
)
from ablate.analysis.example_study import PRIMARY, example_study
from ablate.analysis.frame import StudyResults, Trial
from ablate.analysis.published import load_published
from ablate.dashboards.cost_figures import fronts
from ablate.dashboards.latex import escape
from ablate.dashboards.report import report_bytes
from ablate.dashboards.tables import (
    ablation_table,
    cost_columns,
    csv_text,
    levels_table,
    parquet_bytes,
    records,
)

PDFLATEX = shutil.which("pdflatex")
NASTY = "a_b|c%d&e#f$g{h}~i^j\\k<l>[0]=λ é"


def markdown_table(results: StudyResults) -> str:
    return ablation_table(results).markdown()


def latex_table(results: StudyResults) -> str:
    return ablation_table(results).latex()


def csv_table(results: StudyResults) -> str:
    return csv_text(records(results))


def nasty_study() -> StudyResults:
    results = example_study(states={("window=1", 0): "diverged", ("window=4", 1): "missing"})
    cells = tuple(
        dataclasses.replace(cell, label=f"{NASTY} {cell.label}") for cell in results.cells
    )
    return dataclasses.replace(results, cells=cells, study=NASTY)


def test_markdown_has_one_line_per_cell_and_the_same_number_of_bars() -> None:
    lines = markdown_table(nasty_study()).splitlines()
    assert len(lines) == 11
    bars = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
    assert bars == {13}
    assert "2/3 (1 diverged)" in lines[6]
    assert "2/3 (1 missing)" in lines[5]


def test_markdown_numbers() -> None:
    results = example_study()
    row = next(row for row in compare(results).rows if row.cell.label == "window=1")
    assert row.effect is not None
    line = next(line for line in markdown_table(results).splitlines() if "| window=1 |" in line)
    fields = [field.strip() for field in line.strip("|").split("|")]
    assert fields[1] == "window: 16 → 1"
    assert fields[2].startswith(f"{row.summary.mean:.3f} ± ")
    assert fields[4].startswith(f"+{row.effect.difference:.3f} [")
    assert fields[5:7] == ["0.25", "1.00"]


def test_results_of_older_code_are_marked_in_every_format() -> None:
    results = example_study()
    trials = tuple(
        dataclasses.replace(trial, older_code=trial.cell == results.cells[4].id and trial.seed < 2)
        for trial in results.trials
    )
    results = dataclasses.replace(results, trials=trials)
    mark = "3 (2 of older code)"
    assert [mark in line for line in markdown_table(results).splitlines()[2:]].index(True) == 4
    for text in (markdown_table(results), latex_table(results)):
        assert text.count(mark) == 1
    rows = list(csv.DictReader(io.StringIO(csv_table(results))))
    assert [row["older_code"] for row in rows] == ["0"] * 4 + ["2"] + ["0"] * 4
    page = report_bytes(results, "html").decode()
    assert page.count('<small class="state older">2 of older code</small>') == 1
    assert "2 results were made by older code" in page
    assert "2 kept although the code has changed since: window=1" in page


def test_conditional_factors_are_not_applicable() -> None:
    line = next(
        line for line in levels_table(example_study()).markdown().splitlines() if "=gd" in line
    )
    assert line.endswith("| gd | n/a |")


def test_csv_comes_back_as_it_was() -> None:
    results = nasty_study()
    rows = list(csv.DictReader(io.StringIO(csv_table(results))))
    assert [row["label"] for row in rows] == [cell.label for cell in results.cells]
    for found, row in zip(rows, compare(results).rows, strict=True):
        assert float(found["mean"]) == row.summary.mean
        assert int(found["n"]) == row.summary.n
        difference = row.effect.difference if row.effect else None
        assert found["difference"] == ("" if difference is None else repr(difference))
    assert rows[0]["difference"] == ""
    assert rows[6]["newton_schulz.steps"] == "n/a"
    assert (rows[4]["diverged"], rows[3]["missing"], rows[0]["diverged"]) == ("1", "1", "0")


def test_latex_escapes_every_special_letter() -> None:
    assert escape("_%&#${}") == r"\_\%\&\#\$\{\}"
    assert escape("\\^~") == r"\textbackslash{}\textasciicircum{}\textasciitilde{}"
    assert escape("λ é 語") == r"\ensuremath{\lambda} é [U+8A9E]"


def test_latex_is_balanced_and_has_equal_rows() -> None:
    text = latex_table(nasty_study())
    bare = re.sub(r"\\[\\{}%&#$_]", "", text)
    assert bare.count("{") == bare.count("}")
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 10
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {11}
    specials = re.findall(r"(?<!\\)[#%_~^]", text.split("\n", 1)[1])
    assert specials == []


def test_parquet_comes_back_as_it_was() -> None:
    results = nasty_study()
    read = pyarrow.parquet.read_table(io.BytesIO(parquet_bytes(records(results))))
    assert read.to_pylist() == records(results)
    types = dict(zip(read.schema.names, map(str, read.schema.types), strict=True))
    assert (types["n"], types["mean"], types["diverged"]) == ("int64", "double", "int64")


@pytest.mark.skipif(PDFLATEX is None, reason="needs a LaTeX: no pdflatex on the path")
def test_latex_compiles_with_every_section(tmp_path: Path) -> None:
    claims = (f"effect(memory: mlp -> matrix) on {PRIMARY} > 0.01",)
    studies = [
        nasty_study(),
        dataclasses.replace(factorial_study(), claims=claims),
        size_study(),
        size_and_data_study(),
        tuned_study(),
        search_study(),
    ]
    paper = load_published("atlas/table6")
    body = "".join(
        report_bytes(study, "latex", paper=paper).decode() + "\\clearpage\n" for study in studies
    )
    source = (
        "\\documentclass{article}\\usepackage[T1]{fontenc}\\usepackage{booktabs}\n"
        f"\\begin{{document}}\n{body}\\end{{document}}\n"
    )
    (tmp_path / "t.tex").write_text(source, encoding="utf-8")
    command = [str(PDFLATEX), "-halt-on-error", "-interaction=nonstopmode", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "t.pdf").stat().st_size > 10_000


@pytest.mark.parametrize("table", [markdown_table, latex_table, csv_table])
def test_a_study_without_any_result_is_still_a_table(table: Callable[[StudyResults], str]) -> None:
    results = example_study(
        states={(c.label, 0): "missing" for c in example_study().cells}, seeds=1
    )
    assert table(results).count("baseline") >= 1
    assert "nan" not in table(results)


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (lambda trial: True, "share of a pack"),
        (lambda trial: trial.seed == 0, "some packed, some alone: not comparable"),
        (lambda trial: False, ""),
    ],
)
def test_seconds_of_packed_trials_are_marked_where_they_stand(
    packed: Callable[[Trial], bool], words: str
) -> None:
    results = example_study()
    trials = tuple(
        dataclasses.replace(trial, info={**trial.info, "lanes": 16}) if packed(trial) else trial
        for trial in results.trials
    )
    results = dataclasses.replace(results, trials=trials)
    comparisons = compare(results)
    assert comparisons.time_words == words
    per = {column.heading: column.per for column in cost_columns(comparisons)}
    shared = f" ({words})" if words else ""
    assert (per["tokens"], per["time"]) == (f"s{shared}", f"trial{shared}")
    assert any(
        text.startswith(f"seconds per trial{shared}: ") for text in fronts(results, comparisons)
    )
