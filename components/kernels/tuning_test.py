"""The fastest launch is found once, by a clock that is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from triton.runtime.errors import OutOfResources

from ablate.components.kernels import tuning

CPU = torch.device("cpu")
TAKES = {"slow": 3.0, "fast": 1.0, "middle": 2.0}


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_best", {})


def test_the_fastest_is_found_and_remembered_and_what_does_not_fit_is_left_out() -> None:
    calls = []

    def run(launch: str) -> float:
        calls.append(launch)
        if launch == "large":
            raise OutOfResources(300_000, 232_448, "shared memory")
        return TAKES[launch]

    def timer(call: Callable[[], Any]) -> float:
        return float(call())

    tried = ["slow", "large", "fast", "middle"]
    assert tuning.fastest("sums", tried, run, CPU, timer=timer) == "fast"
    assert tuning.fastest("sums", tried, run, CPU, timer=timer) == "fast"
    assert calls == tried
    with pytest.raises(RuntimeError, match="sums: no launch runs here: large: out of resource"):
        tuning.fastest("sums", ["large"], run, CPU, timer=timer)


def test_without_a_gpu_nothing_is_run() -> None:
    assert tuning.fastest("sums", ["slow", "fast"], pytest.fail, CPU) == "slow"
