"""What the benchmarks compare is the same function, and what they print has its numbers.

No time is asserted.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import check, layers, models, scaling, startup, streaming
from benchmarks.cases import Case, Layer, Runnable, make, neural_memory
from benchmarks.interleaved import Spent
from benchmarks.peak import peak_bytes
from benchmarks.peers import titans_pytorch

TINY = {"dim": 8, "tokens": 32}


def test_titans_pytorch_with_a_base_is_our_layer() -> None:
    torch.manual_seed(0)
    theirs = titans_pytorch(
        8, chunk=1, layers=1, momentum=True, newton_schulz=False, base=16, lr_max=1 / 8
    )
    ours = Layer(neural_memory(Case("layer", **TINY, chunk=16)))
    memory: Any = ours.memory
    start = theirs.memory_model_parameters[0]
    with torch.no_grad():
        memory.memory.w.copy_(start.mT)
        for mine, other in (
            (ours.queries, theirs.to_queries),
            (ours.keys, theirs.to_keys),
            (ours.values, theirs.to_values),
        ):
            mine.weight.copy_(other.weight)
        gates: list[tuple[Any, nn.Linear, float]] = [
            (memory.inner_optimizer.lr, theirs.to_adaptive_step[0], 1.0),
            (memory.inner_optimizer.momentum, theirs.to_momentum[0], 1.0),
            (memory.retention.gate, theirs.to_decay_factor[0], -1.0),  # it gates what is forgotten
        ]
        for gate, linear, sign in gates:
            gate.project.weight.copy_(sign * linear.weight)
            gate.offset.copy_(sign * linear.bias)
    x = torch.randn(1, 32, 8)
    y = ours(x)
    assert y.std() > 0.1
    torch.testing.assert_close(theirs(x)[0], y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("fla delta recurrent", {"chunk": 1, "optimizer": "gd", "forgets": False}),
        ("fla delta chunked", {"chunk": 1, "optimizer": "gd", "forgets": False}),
        ("fla gated delta chunked", {"chunk": 1, "optimizer": "decayed"}),
        ("fla momentum recurrent", {"chunk": 1}),
        ("oracle", {"chunk": 16}),
        ("oracle", {"chunk": 8, "optimizer": "muon", "steps": 2}),
    ],
)
def test_references_are_our_recurrence(reference: str, words: dict[str, Any]) -> None:
    core = make(Case("core", **TINY, **words))
    given = {**words, "chunk": max(words["chunk"], 8)}
    said = make(Case(reference, **TINY, **given))
    y = core.forward()
    assert y.std() > 0.05
    torch.testing.assert_close(said.forward(), y, rtol=1e-4, atol=2e-5)
    slopes = [part for part in core.both() if part is not None]
    others = [part for part in said.both() if part is not None]
    torch.testing.assert_close(others[0], slopes[0], rtol=1e-3, atol=1e-4)


def tiny(case: Case) -> Case:
    return Case(**{**vars(case), "dim": 8, "tokens": 64})


def test_every_case_of_the_tables_runs() -> None:
    chosen = [*layers.sides(8, 64), *layers.degrees(64), *layers.cores(8, 64)]
    chosen += layers.wide_chunks(8, 64)
    assert len({side.name for side in chosen}) == len(chosen)
    for side in chosen:
        y = make(tiny(side.case)).forward()
        assert y.shape[:2] == (1, 64)
        assert torch.isfinite(y).all(), side.name


def test_targets_say_whether_they_are_met() -> None:
    chosen = layers.sides(64, 2048) + layers.degrees(512) + layers.wide_chunks(64, 2048)
    times = {f"{side.name} {what}": Spent(1.0, 1.0) for side in chosen for what in
             ("forward", "both")}  # fmt: skip
    times["sgemm"] = Spent(1.0, 1.0)
    times["titans-pytorch, momentum, gates of 1 token both"] = Spent(1.0, 12.0)
    times["ablate, momentum, chunk 256, window 64 both"] = Spent(1.0, 1.5)
    found = {one.name.strip(): one for one in layers.targets(times, chosen)}
    assert found["titans-pytorch, per-token momentum / ours"].value == 12
    assert found["titans-pytorch, per-token momentum / ours"].met
    assert not found["titans-pytorch, per-token NS-5 / ours"].met
    assert found["window 64 / window 1"].met
    assert found["the same, chunks of 256"].value == 1.5
    assert not found["the same, chunks of 256"].met
    flops = 3 * 2 * 64**3 * 5 * 512
    share = flops / (2 * 512**3 * layers.PRODUCTS)
    assert found["NS-5 / sgemm, forward"].value == pytest.approx(share)


def test_time_and_memory_are_measured() -> None:
    side = layers.Side("ours", Case("layer", **TINY, chunk=16))
    times = layers.measure([side], rounds=1)
    assert set(times) == {"sgemm", "ours forward", "ours both"}
    assert all(spent.wall > 0 for spent in times.values())
    assert 0 < peak_bytes(Case("layer", dim=16, tokens=2048)) < 2**30


def test_exponents_are_slopes() -> None:
    sizes = (1, 2, 4, 8)
    assert scaling.exponent(sizes, [3 * n**2 for n in sizes]) == pytest.approx(2)
    assert scaling.exponent(sizes, [5] * 4) == pytest.approx(0)
    axis = scaling.Axis("T", "tokens", (16, 32), Case("layer", dim=8, chunk=16), "1")
    found = scaling.measure(axis, 1, memory=False)
    assert len(found["seconds"]) == 2
    low, high = found["seconds"]
    wanted = torch.log2(torch.tensor(high / low)).item()
    assert found["time_exponent"] == pytest.approx(wanted, abs=1e-4)


def test_models_are_trained_in_turns() -> None:
    first, second = models.measure(["transformer", "deltanet"], dim=16, length=16, rounds=1)
    assert (first.name, first.tokens) == ("transformer", 64)
    assert first.parameters != second.parameters
    assert first.speed == first.tokens / first.spent.cpu


def test_check_tells_worse_from_better() -> None:
    stored = {"a": 10.0, "b": 10.0, "c": 10.0, check.MEMORY: 10.0}
    found = {"a": 6.0, "b": 16.0, "c": 9.0, check.MEMORY: 6.0, "new": 1.0}
    verdicts = {one.name: one.verdict for one in check.compare(found, stored)}
    assert verdicts == {
        "a": "worse",
        "b": "better: store it",
        "c": "same",
        check.MEMORY: "worse",
        "new": "not stored",
    }
    with pytest.raises(ValueError, match="gone"):
        check.compare(found, {"gone": 1.0})


def test_what_is_stored_is_what_is_measured() -> None:
    stored = json.loads(check.STORED.read_text())["ratios"]
    assert set(stored) == {*check.RATIOS, check.SHARE, check.MEMORY}
    assert {name for pair in check.RATIOS.values() for name in pair} <= set(check.CASES)


def test_gradients_are_of_every_leaf() -> None:
    x = torch.randn(1, 4, 2, requires_grad=True)
    (slope,) = Runnable(lambda: 3 * x, [x], 4).both()
    assert isinstance(slope, Tensor)
    torch.testing.assert_close(slope.flatten(), 3 * torch.linspace(-1, 1, 8))


def test_a_start_ends_with_the_first_step_and_a_failure_is_no_start() -> None:
    found = startup.measure(["transformer"], rounds=1)
    assert set(found) == {startup.IMPORT, "transformer"}
    assert min(one.cpu for one in found.values()) > 0
    with pytest.raises(RuntimeError, match="ended with 2"):
        startup.spent(startup.TRIAL, "train", "transformer", "task=nothing")


@pytest.mark.parametrize(
    "given", [["startup", "atlass"], ["models", "--only", "atlass"], ["streaming", "atlass"]]
)
def test_a_wrong_name_of_a_model_is_said_in_a_line(
    given: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", given)
    with pytest.raises(SystemExit) as caught:
        {"startup": startup, "models": models, "streaming": streaming}[given[0]].main()
    assert caught.value.code == 2
    assert "'atlass' is no preset. Did you mean 'atlas'?" in capsys.readouterr().err
