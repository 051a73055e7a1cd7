from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ablate.errors import UserError
from ablate.study.expand_test import plan
from ablate.trial.cost import count_parameters, measure_cost

WIDE = {"backbone.dim": 64, "backbone.heads": 2, "backbone.head_dim": 4, "backbone.layers": 2}
FACTORS = {"memory": ["mlp", "matrix"], "feature_map.degree": [1, 2]}


def matching(tmp_path: Path, on: str, by: str, tolerance: float = 0.02, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "model_args": {**WIDE, "chunk": 4},
        "design": {"factors": FACTORS},
        "match": {"on": on, "by": by, "tolerance": tolerance},
        **changes,
    }
    return plan(tmp_path, **settings)


def test_every_cell_gets_as_many_parameters_as_the_baseline(tmp_path: Path) -> None:
    made = matching(tmp_path, "parameters", "width")
    first = made.cells[0].cost.parameters
    for cell in made.cells[1:]:
        assert abs(cell.cost.parameters / first - 1) <= 0.02
        assert cell.matched.mismatch == pytest.approx(cell.cost.parameters / first - 1)
        assert cell.config["model"]["backbone"]["dim"] == cell.matched.after
        neighbour = {**cell.config["model"]}
        for step in (-1, 1):
            neighbour["backbone"] = {
                **cell.config["model"]["backbone"],
                "dim": cell.matched.after + step,
            }
            other = count_parameters(neighbour, 32)
            assert abs(other / first - 1) >= abs(cell.matched.mismatch), "the best width"
    assert made.cells[2].matched.after < made.cells[2].matched.before
    assert len({cell.id for cell in made.cells}) == 3
    assert made.to_json()["cells"][1]["matched"]["key"] == "backbone.dim"


def test_counting_shapes_is_counting_parameters(tmp_path: Path) -> None:
    cell = matching(tmp_path, "none", "width").cells[1]
    model = cell.config["model"]
    assert count_parameters(model, 32) == measure_cost(model, 32, 16).parameters
    assert cell.matched is None


def test_flops_are_matched_by_any_whole_number_of_a_component(tmp_path: Path) -> None:
    design = {"factors": {"memory": ["mlp", "matrix"]}}
    made = matching(tmp_path, "flops", "backbone.dim", 0.05, design=design)
    first = made.cells[0].cost.flops_per_token
    assert all(abs(cell.cost.flops_per_token / first - 1) <= 0.05 for cell in made.cells)


@pytest.mark.parametrize(
    ("on", "by", "changes", "message"),
    [
        (
            "parameters",
            "layers",
            {"match": {"on": "parameters", "by": "layers", "tolerance": 1e-4}},
            r"match.by: cell .* cannot have [\d,]+ parameters within 0.0% by backbone.layers: "
            r"the best is backbone.layers=\d+ with [\d,]+ \([+-][\d.]+%\)",
        ),
        ("parameters", "depth", {}, "has no whole number depth. Valid: width, heads, layers"),
        (
            "parameters",
            "width",
            {"model_args": None, "design": {"factors": {"backbone.dim": [64, 32]}}},
            "backbone.dim is a factor: it cannot move too",
        ),
    ],
)
def test_what_cannot_be_matched_is_refused_with_the_best(
    on: str, by: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        matching(tmp_path, on, by, **changes)
