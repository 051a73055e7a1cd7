from __future__ import annotations

import pytest

import ablate.study.checks as checks
from ablate.errors import UserError
from ablate.study.cells import Cell
from ablate.study.schema import Resources
from ablate.trial.cost import Cost

CONFIG = {"task": {"name": "mqar", "args": {"batch": 64}}}


def needing(gigabytes: float) -> list[Cell]:
    cost = Cost(memory_bytes=int(gigabytes * checks.GB))
    return [Cell("a", "baseline", {}, {}, None, CONFIG, cost, "")]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four cores and 8 GiB."""
    monkeypatch.setattr(checks, "_memory", lambda resources: (8.0 * checks.GB, "this machine"))
    monkeypatch.setattr(checks.os, "cpu_count", lambda: 4)


def test_what_fits_passes_in_silence() -> None:
    assert checks.check_memory(needing(1.5), Resources(cpus=1.0), "s.yaml") == []
    assert checks.check_memory(needing(0), Resources(), "s.yaml") == []


def test_what_fits_only_alone_is_said() -> None:
    found = checks.check_memory(needing(3), Resources(cpus=1.0), "s.yaml")
    assert found == [
        "4 trials side by side need about 12.0 GiB, this machine has 8.0: give each trial more "
        "resources.cpus"
    ]


def test_what_does_not_fit_is_refused_with_a_batch_that_would() -> None:
    with pytest.raises(UserError) as caught:
        checks.check_memory(needing(16), Resources(), "s.yaml")
    assert str(caught.value) == (
        "s.yaml: cell baseline needs about 16.0 GiB for one trial, but this machine has 8.0 GiB. "
        "task_args.batch=32 would fit."
    )


def test_much_memory_on_a_gpu_that_is_not_here_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_memory", lambda resources: (None, ""))
    found = checks.check_memory(needing(6400), Resources(gpus=1.0), "s.yaml")
    assert found == [
        "no GPU here to check memory against: baseline needs about 6.25 TiB with its 64 rows in "
        "one pass, about 100 GiB a row; a trial that runs out of memory goes on with half the "
        "rows at a time"
    ]
    assert checks.check_memory(needing(60), Resources(gpus=1.0), "s.yaml") == []
