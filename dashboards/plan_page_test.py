from __future__ import annotations

from typing import Any

from ablate.dashboards.plan_page import plan_page
from ablate.sweep.fake_study import FakePlan


def shown(**changes: Any) -> str:
    plan = {**FakePlan(cells=2, seeds=3).to_json(), "design": "one_factor", "search": {}, **changes}
    plan["cost"] = {"trial_seconds": 120.0, "gpu_hours": 0.0, "time_from": "estimate"}
    for cell in plan["cells"]:
        cell |= {"matched": None, "time_from": "estimate"}
    return plan_page(plan)


def test_the_page_shows_every_cell_and_what_it_costs() -> None:
    page = shown()
    for cell in FakePlan(cells=2).to_json()["cells"]:
        assert cell["label"].split("=")[0] in page
    assert "~2 min" in page
    assert "<script" not in page, "a plan has no figures, so no code"


def test_names_of_a_study_are_text_not_html() -> None:
    assert "&lt;b&gt; &amp; 1" in shown(question="<b> & 1")
