"""Small multiples: one panel for each block, what it draws, and where the PNG has it."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest
from matplotlib.image import imread

from ablate.analysis.comparisons import compare
from ablate.analysis.example_designs import size_study
from ablate.analysis.example_study import example_study
from ablate.analysis.frame import StudyResults
from ablate.dashboards import block_figure as module
from ablate.dashboards.block_figure import block_figure, blocks
from ablate.dashboards.static_image import png_bytes
from ablate.dashboards.theme import series


def in_blocks(sizes: int) -> StudyResults:
    """Two memories at so many widths, compared within the width, each with a curve."""
    results = size_study(sizes=sizes)
    first = {cell.axes["backbone.dim"]: cell for cell in reversed(results.cells)}
    cells = []
    for cell in results.cells:
        of_block = first[cell.axes["backbone.dim"]]
        reference = results.cells[0] if cell is of_block else of_block
        changed = {} if cell is of_block else {"memory": ("mlp", cell.axes["memory"])}
        compared = None if cell is reference else reference.id
        cells.append(dataclasses.replace(cell, compared_with=compared, changed=changed))
    curve = next(iter(example_study().curves.values()))
    return dataclasses.replace(
        results, cells=tuple(cells), curves={trial.id: curve for trial in results.trials}
    )


def test_a_block_is_a_cell_and_what_is_compared_with_it() -> None:
    groups = blocks(compare(in_blocks(3)))
    widths = [[row.cell.axes["backbone.dim"] for row in rows] for rows in groups]
    assert widths == [[32, 32], [64, 64], [96, 96]]
    assert [row.cell.axes["memory"] for row in groups[1]] == ["mlp", "matrix"]


def test_a_design_without_blocks_has_no_such_figure() -> None:
    results = example_study()
    assert blocks(compare(results)) == []
    assert block_figure(results, compare(results)) is None


def test_each_panel_draws_its_own_cells_under_its_name() -> None:
    results = in_blocks(4)
    figure = block_figure(results, compare(results))
    assert figure is not None
    assert [note.text for note in figure.layout.annotations] == [
        "backbone.dim=32",
        "backbone.dim=64",
        "backbone.dim=96",
        "backbone.dim=128",
    ]
    lines = [trace for trace in figure.data if not trace.fill]
    assert len(lines) == 8
    assert [trace.name for trace in lines if trace.showlegend] == ["mlp", "matrix"]
    value = next(iter(results.curves.values()))[results.curve_metric].values[-1]
    assert lines[0].y[-1] == pytest.approx(value)


def test_the_picture_has_panels_side_by_side() -> None:
    results = in_blocks(2)
    figure = block_figure(results, compare(results))
    assert figure is not None
    image = np.rint(255 * imread(io.BytesIO(png_bytes(figure)))[:, :, :3]).astype(int)
    wanted = [int(series(0)[0][at : at + 2], 16) for at in (1, 3, 5)]
    across = np.flatnonzero((image == wanted).all(axis=2).any(axis=0)) / image.shape[1]
    assert ((across < 0.45).any(), (across > 0.6).any()) == (True, True)


def test_of_many_cells_in_a_block_those_that_differ_most_are_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results = in_blocks(3)
    cells, trials, curves = list(results.cells), list(results.trials), dict(results.curves)
    for cell in results.cells:
        if cell.axes["memory"] != "matrix":
            continue
        changed = {"memory": ("mlp", "gated_mlp")}
        cells.append(dataclasses.replace(cell, id=f"far {cell.id}", changed=changed))
        for one in results.by_cell[cell.id]:
            trials.append(dataclasses.replace(one, id=f"far {one.id}", cell=f"far {cell.id}"))
            curves[trials[-1].id] = {
                name: dataclasses.replace(curve, values=curve.values + 5)
                for name, curve in results.curves[one.id].items()
            }
    results = dataclasses.replace(results, cells=tuple(cells), trials=tuple(trials), curves=curves)
    monkeypatch.setattr(module, "MOST_LINES", 2)
    figure = block_figure(results, compare(results))
    assert figure is not None
    assert {trace.name for trace in figure.data if not trace.fill} == {"mlp", "gated_mlp"}
    titles = [axis.title.text for axis in figure.select_xaxes(row=1, col=1)]
    assert titles == ["training tokens (of 3 cells, the 2 that differ most)"]
