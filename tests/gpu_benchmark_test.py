"""The logic of `benchmarks.gpu`, in Triton's interpreter at tiny sizes; no time is measured."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu import ceilings
from benchmarks.gpu_cases import (
    CASES,
    Case,
    newton_schulz,
    read_polynomial,
    read_weight,
    scan_weight,
)

CPU = torch.device("cpu")
TOP = gpu.Ceilings(1e6, 1e5)


def second(call: Callable[[], Any]) -> float:
    """Everything takes a second; what it computes is not looked at."""
    del call
    return 1.0


@pytest.fixture(autouse=True)
def small_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "ceilings", lambda *_: TOP)


def run(*cases: Case, until: float = float("inf")) -> tuple[list[gpu.Result], list[str]]:
    return gpu.run_all(cases, ["highest"], CPU, second, until=until, most={})


def test_arithmetic_is_counted_by_hand() -> None:
    case = newton_schulz(4, 3, columns=8, tokens=2, window=3, steps=1)
    assert case.shapes[1:3] == ((3, 4, 4), (3, 4, 8))
    # X X^T and B X take 2*4*4*8 each, A A 2*4*4*4; S of 4 sources and reads of 2 tokens 2*4*8 each.
    assert case.forward == 3 * 2 * (256 + 256 + 128 + 6 * 64)
    assert case.backward == 3 * 2 * (5 * 256 + 2 * 128 + 3 * 6 * 64)
    assert read_weight(4, 3, tokens=2).forward == 2 * 3 * 2 * (2 * 16 + 2 * 2 * 4)
    assert scan_weight(4, 3, chunks=2, tokens=2).forward == 2 * 2 * 3 * (2 * 16 * 3 + 4 * 16)
    lifted = read_polynomial(4, 3, tokens=2)
    assert lifted.shapes[1] == (3, 8, 15)
    assert (lifted.forward, lifted.backward) == (2 * 3 * 2 * 8 * 15, 2 * 3 * 2 * 8 * (15 + 20))


def test_ceilings_are_rates_of_a_product_and_a_copy() -> None:
    assert ceilings(CPU, "medium", second, square=8, copied=16) == gpu.Ceilings(1024.0, 32.0)


def test_each_kernel_has_cases_of_the_heads_of_models() -> None:
    cases = [make() for make in CASES]
    assert len({case.name for case in cases}) == len(cases)
    assert {case.operation for case in cases} == {
        "newton_schulz", "read_polynomial", "read_weight", "scan_weight",
    }  # fmt: skip
    most = max(sum(torch.Size(shape).numel() for shape in case.shapes) for case in cases)
    assert most * 4 < 2e9


def test_kernels_are_right_and_rates_are_of_the_ceilings() -> None:
    case = newton_schulz(3, 1, tokens=1, steps=1)
    others = (
        read_weight(4, 1, tokens=2),
        scan_weight(4, 1, chunks=1, tokens=2),
        read_polynomial(3, 1, tokens=2),
    )
    results, left = run(case, *others)
    assert [one.problem for one in results] == [None] * 4
    assert all(one.right and 0 < one.error < 1e-4 for one in results)
    assert left == []
    assert results[0].bytes == 4 * (9 + 3 + 3 + 1 + 1 + 1 + 1 + 3 + 3 + 9)
    lines = gpu.table(results, {"highest": TOP}).splitlines()
    assert len(lines) == 2 + 4 + 2
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert len(cells) == lines[0].count("|") - 1
    assert cells[6] == f"{case.forward / 1e6:.0%}"
    assert (cells[3], cells[-2]) == ("yes", "1.00")


def test_a_wrong_kernel_and_one_that_does_not_run_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    case = read_weight(4, 1, tokens=2)
    broken = dataclasses.replace(case, name="broken", words={"size": 3})
    plain = case.form
    monkeypatch.setattr(gpu, "_kernel", lambda one: lambda *x: 1.1 * plain(*x, **one.words))
    (wrong, other), _ = run(case, broken)
    assert wrong.error == pytest.approx(0.1, rel=1e-3)
    assert not wrong.right
    assert "unexpected keyword argument 'size'" in str(other.problem)
    assert "| NO |" in gpu.table([wrong, other], {"highest": TOP})
    content = json.loads(gpu.report([wrong, other], ["late, highest"], {"highest": TOP}, "none"))
    assert [one["right"] for one in content["results"]] == [False, False]
    assert content["results"][1]["error"] is None
    assert content["ceilings"]["highest"] == {"flops": 1e6, "bytes": 1e5}


def test_cases_that_time_is_too_short_for_are_named() -> None:
    results, left = run(read_weight(4, 1), until=time.monotonic() - 1)
    assert results == []
    assert left == ["read_weight 4x4, chunk 64, window 1, highest"]


def test_without_a_gpu_it_says_so_and_exits_with_four(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == gpu.NO_GPU == 4
    assert "nothing was measured: torch sees no GPU" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        gpu.main(["--only", "convolution"])
    assert "no case has that in its name" in capsys.readouterr().err
