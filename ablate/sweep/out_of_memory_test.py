"""Real trials that run out of memory, as far as the driver can tell; and what a no-op changes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ablate.trial.train as train_module
from ablate.analysis.frame import load_results
from ablate.dashboards.provenance import provenance
from ablate.sweep.driver import run_plan
from ablate.sweep.fake_study import FakePlan
from ablate.sweep.inline import InlineExecutor
from ablate.sweep.ledger import Ledger
from ablate.trial.build_test import tiny
from ablate.trial.space import resolve


@dataclass(frozen=True)
class Small(FakePlan):
    """The fake study with real, tiny trials."""

    corpus: str = ""
    models: tuple[dict[str, Any], ...] = ()

    def _config(self, cell: int) -> dict[str, Any]:
        args = {"context": 16, "batch": 2, "tokens": 160, "validation_bytes": 64}
        return {
            "model": self.models[cell],
            "task": {"name": "language", "args": {**args, "corpus": self.corpus}},
            "train": {"evaluations": 2},
        }


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    file = tmp_path / "text.txt"
    file.write_text("the cat sat on the mat and the dog sat on the log. " * 200)
    return str(file)


def test_a_trial_out_of_memory_ends_well_in_two_parts_and_the_report_says_so(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Small(cells=1, seeds=1, corpus=corpus, models=(resolve(tiny("transformer")),))
    with Ledger.open(tmp_path / "plain" / "ledger.sqlite") as ledger:
        run_plan(plan, ledger, executor=InlineExecutor())
        plain = ledger.trial("c0-s0")
    real = train_module.token_loss

    def small_only(logits: Tensor, targets: Tensor, **given: Any) -> Tensor:
        if len(logits) > 1:
            raise torch.OutOfMemoryError("out of memory, as the test wants")
        return real(logits, targets, **given)

    monkeypatch.setattr(train_module, "token_loss", small_only)
    with Ledger.open(tmp_path / "full" / "ledger.sqlite") as ledger:
        run_plan(plan, ledger, executor=InlineExecutor())
        record = ledger.trial("c0-s0")
        first = ledger._db.execute("SELECT state, error FROM attempts WHERE attempt = 1").fetchone()
        facts = dict(provenance(load_results(ledger)))
    assert first == ("oom", "OutOfMemoryError: out of memory, as the test wants")
    assert (record.state, record.attempt, record.info["micro_batches"]) == ("done", 2, 2)
    assert facts["micro_batches"] == "2"
    assert "micro_batches" not in plain.info
    assert record.summary["val/loss"] == pytest.approx(plain.summary["val/loss"], rel=1e-4)


def test_one_row_cannot_be_split(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **given: Any) -> Tensor:
        raise torch.OutOfMemoryError("always")

    monkeypatch.setattr(train_module, "token_loss", full)
    plan = Small(cells=1, seeds=1, corpus=corpus, models=(resolve(tiny("transformer")),))
    with Ledger.open(tmp_path / "full" / "ledger.sqlite") as ledger:
        for attempts in (2, 3):
            run_plan(plan, ledger, executor=InlineExecutor())
            assert (ledger.trial("c0-s0").state, ledger.trial("c0-s0").attempt) == ("oom", attempts)


def test_two_cells_that_differ_in_nothing_are_bit_equal(corpus: str, tmp_path: Path) -> None:
    one = resolve(tiny("deltanet", **{"window.normalised": False}))
    other = resolve(tiny("deltanet", **{"window.normalised": True}))  # divides by a length of 1
    named = {**other, "name": "another label"}
    plan = Small(cells=3, seeds=1, corpus=corpus, models=(one, other, named))
    with Ledger.open(tmp_path / "study" / "ledger.sqlite") as ledger:
        run_plan(plan, ledger, executor=InlineExecutor())
        found = [
            [(row.step, row.tokens, row.name, row.value) for row in ledger.rows(f"c{cell}-s0")]
            for cell in range(3)
        ]
    assert len(found[0]) == 10
    assert found[0] == found[1] == found[2]
