"""Figures of scaling laws: the dots are the trials, the lines the fitted law."""

from __future__ import annotations

import numpy as np
import pytest

from ablate.analysis.comparisons import compare
from ablate.analysis.example_designs import context_study, size_and_data_study, size_study
from ablate.analysis.frame import StudyResults
from ablate.analysis.size_laws import SizeLaws, size_laws
from ablate.dashboards.law_figure import law_drawings
from ablate.dashboards.report import html_report
from ablate.dashboards.report_sections import report_sections


def laws_of(results: StudyResults) -> SizeLaws:
    laws = size_laws(results)
    assert laws is not None
    return laws


def test_a_law_of_size_and_data_is_fitted_and_drawn_over_data() -> None:
    results = size_and_data_study()
    laws = laws_of(results)
    assert laws.variables == ("N", "D")
    fit = laws.curves[0].fit
    assert fit is not None
    for name, true in (("E", 1.5), ("alpha", 0.3), ("beta", 0.35)):
        assert true in fit.parameters[name]
    first, second = law_drawings(results, laws)
    assert (first.name, second.name) == ("scaling", "scaling_1")
    assert first.caption.startswith("baseline: one line for each number of parameters.")
    assert second.caption.startswith("memory=matrix: one line for each number of parameters.")
    dots = [trace for trace in first.figure.data if trace.mode == "markers"]
    lines = [trace for trace in first.figure.data if trace.mode == "lines"]
    assert (len(dots), len(lines)) == (4, 4)
    # Every trial of the baseline's memory is one dot: its tokens and its value.
    drawn = {(x, y) for trace in dots for x, y in zip(trace.x, trace.y, strict=True)}
    cells = [cell for cell in results.cells if cell.axes["memory"] == "mlp"]
    assert drawn == {
        (cell.axes["task_args.tokens"], value)
        for cell in cells
        for value in results.values[cell.id].values()
    }
    law = {name: one.estimate for name, one in fit.parameters.items()}
    widest = max(cell.parameters or 0 for cell in cells)
    expected = law["E"] + law["A"] * widest ** -law["alpha"]
    expected = expected + law["B"] * np.asarray(lines[-1].x, dtype=float) ** -law["beta"]
    np.testing.assert_allclose(lines[-1].y, expected, rtol=1e-9)


def test_the_page_shows_the_law_of_two_sizes_with_its_table() -> None:
    results = size_and_data_study()
    found = report_sections(results, compare(results))["scaling"]
    assert "L = E + A N^\N{MINUS SIGN}\N{GREEK SMALL LETTER ALPHA} + B D^" in found.lead[0]
    assert found.tables[0].heading[1:6] == ("E", "A", "\N{GREEK SMALL LETTER ALPHA}", "B",
                                            "\N{GREEK SMALL LETTER BETA}")  # fmt: skip
    assert found.tables[0].rows[0][6] == "16 x 3"
    page = html_report(results)
    assert 'data-figure="scaling"' in page
    assert 'data-figure="scaling_1"' in page


def test_a_law_of_the_context_is_fitted_and_drawn() -> None:
    results = context_study()
    laws = laws_of(results)
    assert laws.variables == ("context",)
    fit = laws.curves[0].fit
    assert fit is not None
    assert 0.4 in fit.parameters["alpha"]
    assert 1.8 in fit.parameters["E"]
    (drawing,) = law_drawings(results, laws)
    assert drawing.figure.layout.xaxis.title.text == "context"
    line = next(trace for trace in drawing.figure.data if trace.name and trace.mode == "lines")
    law = {name: one.estimate for name, one in fit.parameters.items()}
    expected = law["E"] + law["A"] * np.asarray(line.x, dtype=float) ** -law["alpha"]
    np.testing.assert_allclose(line.y, expected, rtol=1e-9)


@pytest.mark.parametrize("sizes", [3, 6])
def test_a_curve_without_a_fit_still_has_its_dots_and_a_name(sizes: int) -> None:
    results = size_study(sizes=sizes)
    (drawing,) = law_drawings(results, laws_of(results))
    named = [trace.name for trace in drawing.figure.data if trace.showlegend is not False]
    assert named == ["baseline", "memory=matrix"]
    dots = [trace for trace in drawing.figure.data if trace.mode == "markers"]
    assert [len(trace.x) for trace in dots] == [sizes * 3] * 2
