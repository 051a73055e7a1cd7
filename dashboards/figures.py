"""All figures of a study by name, for the report and for the tracker."""

from __future__ import annotations

import plotly.graph_objects as go

from ablate.analysis.comparisons import compare
from ablate.analysis.frame import StudyResults
from ablate.dashboards.block_figure import block_figure
from ablate.dashboards.cost_figures import cost_figures
from ablate.dashboards.curve_figure import curve_figure
from ablate.dashboards.effect_figure import effect_figure


def figures(results: StudyResults) -> dict[str, go.Figure]:
    """Return every figure that the results can fill, by name; none of them is empty."""
    comparisons = compare(results)
    found = {
        "effects": effect_figure(results, comparisons),
        "learning_curves": curve_figure(results, comparisons),
        "blocks": block_figure(results, comparisons),
        **cost_figures(results, comparisons),
    }
    return {name: figure for name, figure in found.items() if figure is not None}
