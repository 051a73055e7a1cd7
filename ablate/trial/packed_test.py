from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ablate.trial.build_test import tiny
from ablate.trial.packed import run_pack
from ablate.trial.run import run_trial
from ablate.trial.space import resolve

LEARNING: dict[str, Any] = {"dim": 8, "length": 256, "rank": 2, "window": 16}


def learner(number: int, seed: int, **args: Any) -> dict[str, Any]:
    task = {"name": "learnability", "args": {**LEARNING, **args}}
    return {
        "id": f"l{number}-s{seed}",
        "cell": f"l{number}",
        "seed": seed,
        "config": {"model": None, "task": task, "train": None},
    }


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("corpus") / "text.txt"
    file.write_text("the cat sat on the mat and the dog sat on the log. " * 200)
    return str(file)


def trained(corpus: str, seed: int, **train: Any) -> dict[str, Any]:
    args = {"corpus": corpus, "context": 16, "batch": 2, "tokens": 320, "validation_bytes": 64}
    return {
        "id": f"{json.dumps(train)}-s{seed}",
        "cell": "c",
        "seed": seed,
        "config": {
            "model": resolve(tiny("titans_lmm")),
            "task": {"name": "language", "args": args},
            "train": {"evaluations": 2, **train},
        },
    }


def packed(specs: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {spec["id"]: [] for spec in specs}

    def report(burst: Any) -> None:
        for trial_id, message in json.loads(json.dumps(dict(burst))).items():
            found[trial_id].append(message)

    run_pack(specs, report)
    return found


def alone(spec: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    run_trial(spec, found.append)
    return found


def check_same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """All but times: the same kinds, steps, tokens and facts, and metrics up to rounding."""
    assert [message["kind"] for message in ours] == [message["kind"] for message in theirs]
    for one, other in zip(ours[1:-1], theirs[1:-1], strict=True):
        assert (one["step"], one["tokens"]) == (other["step"], other["tokens"])
        assert one["metrics"] == pytest.approx(other["metrics"], rel=1e-4, nan_ok=True)
    facts = {key: value for key, value in ours[0]["info"].items() if key != "lanes"}
    assert facts == theirs[0]["info"]
    assert ours[0]["fingerprint"] == theirs[0]["fingerprint"]
    assert (ours[-1]["state"], ours[-1]["warnings"]) == (
        theirs[-1]["state"],
        theirs[-1]["warnings"],
    )


def test_learners_in_a_pack_report_what_they_report_alone() -> None:
    specs = [
        learner(0, 0, target="mlp"),
        learner(0, 1, target="mlp"),
        learner(1, 0, target="attention_mlp", lr=1e-3),
    ]
    found = packed(specs)
    for spec in specs:
        check_same(found[spec["id"]], alone(spec))
        assert found[spec["id"]][0]["info"]["lanes"] == 3


def test_seconds_are_shares_that_add_up_and_what_is_the_processs_is_left_out() -> None:
    import time

    specs = [learner(0, seed, target="mlp") for seed in range(4)]
    began = time.perf_counter()
    ends = [found[-1]["summary"] for found in packed(specs).values()]
    spent = time.perf_counter() - began
    assert 0.5 * spent < sum(end["seconds"] for end in ends) <= spent
    for end in ends:
        assert end["tokens_per_second"] == pytest.approx(256 / end["seconds"], rel=0.2)
        assert not {"peak_memory_bytes", "cpu_seconds"} & set(end)


def test_a_diverging_learner_ends_alone() -> None:
    specs = [
        learner(0, 0, optimizer="sgd", target="mlp", lr=0.01),
        learner(1, 0, optimizer="sgd", target="attention_mlp", lr=1e4),
    ]
    found = packed(specs)
    for spec in specs:
        check_same(found[spec["id"]], alone(spec))
    end = found["l1-s0"][-1]
    assert end["state"] == "diverged"
    assert "train/loss" in end["error"]


def test_models_in_a_pack_report_what_they_report_alone(corpus: str) -> None:
    specs = [trained(corpus, 0), trained(corpus, 1), trained(corpus, 0, lr=0.01)]
    found = packed(specs)
    for spec in specs:
        check_same(found[spec["id"]], alone(spec))


def test_a_diverging_model_ends_alone(corpus: str) -> None:
    specs = [trained(corpus, 0), trained(corpus, 0, lr=1e30), trained(corpus, 1)]
    found = packed(specs)
    for spec in specs:
        check_same(found[spec["id"]], alone(spec))
    end = found[specs[1]["id"]][-1]
    assert end["state"] == "diverged"
    assert math.isfinite(end["summary"]["train/loss"])


def test_a_cancelled_lane_ends_and_the_others_go_on(tmp_path: Path) -> None:
    specs = [learner(0, seed, target="mlp") for seed in range(2)]
    for spec in specs:
        spec["files"] = {"study": str(tmp_path), "attempt": 1, "checkpoint": None}
    (tmp_path / "cancel").mkdir()
    (tmp_path / "cancel" / "l0-s1").write_text("cancelled by a test")
    found = packed(specs)
    states = [(messages[-1]["state"], messages[-1]["error"]) for messages in found.values()]
    assert states == [("done", None), ("cancelled", "cancelled by a test")]


def test_what_breaks_the_program_ends_every_lane_and_memory_asks_to_be_tried_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ablate.experiments.learnability.lanes import MLPLanes

    def full(*args: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(MLPLanes, "step", full)
    ends = [found[-1] for found in packed([learner(0, s, target="mlp") for s in range(2)]).values()]
    assert [end["state"] for end in ends] == ["oom", "oom"]
    assert ends[0]["retry"] == {"alone": True}
    assert "MemoryError: no room" in ends[1]["traceback"]
