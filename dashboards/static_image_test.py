"""The PNG of a figure: read back as pixels, and refused where it would show something else."""

from __future__ import annotations

import io

import numpy as np
import plotly.graph_objects as go
import pytest
from matplotlib.image import imread

from ablate.analysis.example_study import example_study
from ablate.dashboards.figures import figures
from ablate.dashboards.static_image import images, png_bytes
from ablate.dashboards.theme import LIGHT, style


def pixels(png: bytes) -> np.ndarray:
    """Return the image, ``[height width 3]``, each channel 0 to 255."""
    return np.rint(255 * imread(io.BytesIO(png))[:, :, :3]).astype(int)


def share(image: np.ndarray, colour: str) -> float:
    """Return which part of the image has this colour exactly."""
    wanted = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    return float((image == wanted).all(axis=2).mean())


def test_the_main_figures_of_a_study_are_images_of_the_same_bytes() -> None:
    drawn = images(example_study())
    assert set(drawn) == {"effects.png", "learning_curves.png"}
    assert drawn == images(example_study())
    image = pixels(drawn["learning_curves.png"])
    assert image.shape[1] == 860
    assert share(image, LIGHT["paper"]) > 0.5
    # One row of the effect plot has the colour of a verdict, the curves have one each.
    assert share(pixels(drawn["effects.png"]), LIGHT["accent"]) > 0.002
    for colour in ("#2a6fc4", "#c2570c", "#13805a"):
        assert share(image, colour) > 0.0005


def test_a_study_without_results_has_no_images() -> None:
    labels = [cell.label for cell in example_study().cells]
    states = {(label, seed): "diverged" for label in labels for seed in range(3)}
    assert images(example_study(states=states)) == {}


def curve(*, fill: bool, x: list[float]) -> go.Figure:
    axis = {"tickfont": {"size": 12, "color": "#000000"}}
    figure = go.Figure()
    if fill:
        band = {"fill": "toself", "fillcolor": "rgba(255,0,0,1)", "mode": "lines"}
        figure.add_trace(go.Scatter(x=[0, 10, 10, 0], y=[0, 0, 1, 1], showlegend=False, **band))
    figure.add_trace(go.Scatter(x=x, y=[0, 1], mode="lines", line={"color": "#0000ff"}))
    return style(figure, height=300, xaxis={**axis, "range": [0, 10]}, yaxis=axis)


def test_bands_and_lines_are_where_the_figure_has_them() -> None:
    whole = pixels(png_bytes(curve(fill=True, x=[0, 10])))
    assert 0.6 < share(whole, "#ff0000") < 0.95
    blue = (pixels(png_bytes(curve(fill=False, x=[0, 2]))) == [0, 0, 255]).all(axis=2)
    across = np.flatnonzero(blue.any(axis=0)) / blue.shape[1]
    assert across.min() < 0.1
    assert 0.15 < across.max() < 0.3


def test_a_seed_band_is_drawn_only_where_there_are_seeds() -> None:
    several = pixels(png_bytes(figures(example_study(seeds=3))["learning_curves"]))
    one = pixels(png_bytes(figures(example_study(seeds=1))["learning_curves"]))
    assert share(one, LIGHT["paper"]) > share(several, LIGHT["paper"]) + 0.05


def test_a_label_with_dollars_is_text_and_no_formula() -> None:
    with_dollars = pixels(png_bytes(curve(fill=False, x=[0, 2]), r"a $\no{formula$"))
    without = pixels(png_bytes(curve(fill=False, x=[0, 2]), "a"))
    assert share(with_dollars, LIGHT["paper"]) < share(without, LIGHT["paper"])


def test_what_it_cannot_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="a bar trace cannot be drawn as PNG"):
        png_bytes(go.Figure(go.Bar(x=[1], y=[2])))
    star = {"symbol": "star", "size": 5, "color": "#000000"}
    with pytest.raises(ValueError, match="'star' is unknown"):
        png_bytes(go.Figure(go.Scatter(x=[1], y=[2], mode="markers", marker=star)))
