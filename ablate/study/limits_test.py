from __future__ import annotations

from pathlib import Path

import pytest

from ablate.components.limits import Limit
from ablate.components.retention import NoRetention, ScalarRetention
from ablate.study.configure import Workshop
from ablate.study.expand_test import plan
from ablate.study.limits import limit_sentences
from ablate.study.plan_test import SMALL
from ablate.study.schema import validate

FACTORS = {"retention": ["scalar", "none"]}


def sentences(tmp_path: Path, *, own: bool = True) -> list[str]:
    cells = list(plan(tmp_path, design={"factors": FACTORS}).cells)
    workshop = Workshop(validate({**SMALL}, Path("s.yaml")), "s.yaml")
    return [text for text in limit_sentences(workshop, cells, own=own) if "retention" in text]


def declare(monkeypatch: pytest.MonkeyPatch, limit: Limit) -> None:
    monkeypatch.setattr(ScalarRetention, "limits", (limit,), raising=False)
    monkeypatch.setattr(NoRetention, "limits", (), raising=False)


def test_a_limit_that_holds_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_gate = Limit("open", {"init": 60.0}, {"retention": "none"})
    declare(monkeypatch, open_gate)
    assert sentences(tmp_path) == []


def test_a_limit_that_does_not_hold_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(monkeypatch, Limit("half open is open", {"init": 0.0}, {"retention": "none"}))
    assert sentences(tmp_path, own=False) == []
    (said,) = sentences(tmp_path)
    assert said.startswith(
        "retention ScalarRetention: 'half open is open' does not hold: outputs differ by "
    )
    declare(monkeypatch, Limit("nonsense", {"inti": 0.0}, {"retention": "none"}))
    (said,) = sentences(tmp_path)
    assert "could not be checked: " in said
    assert "'inti' is no key of retention" in said
