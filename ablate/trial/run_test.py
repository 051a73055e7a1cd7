from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import nn

import ablate.trial.run as run_module
from ablate.experiments.language.task import LanguageTask
from ablate.trial.build_test import tiny
from ablate.trial.revision import revision
from ablate.trial.run import run_trial
from ablate.trial.space import resolve


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("corpus") / "text.txt"
    file.write_text("the cat sat on the mat and the dog sat on the log. " * 200)
    return str(file)


def spec(corpus: str, *, seed: int = 0, train: dict[str, Any] | None = None) -> dict[str, Any]:
    args = {"corpus": corpus, "context": 16, "batch": 2, "tokens": 320, "validation_bytes": 64}
    return {
        "id": f"c-s{seed}",
        "cell": "c",
        "seed": seed,
        "config": {
            "model": resolve(tiny("titans_lmm")),
            "task": {"name": "language", "args": args},
            "train": {"evaluations": 2, **(train or {})},
        },
        "resources": {"cpus": 1.0, "gpus": 0.0},
    }


def messages(given: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    run_trial(given, found.append)
    json.dumps(found)  # plain values only
    kinds = [message["kind"] for message in found]
    assert kinds == ["start", *["row"] * (len(kinds) - 2), "end"]
    return found


def test_a_trial_starts_reports_rows_and_ends(corpus: str) -> None:
    start, first, second, end = messages(spec(corpus))
    assert start["info"]["corpus"] == corpus
    assert (
        start["info"]["data"]
        == LanguageTask(**spec(corpus)["config"]["task"]["args"]).data_identity()
    )
    assert start["info"].get("commit") == revision()
    assert start["info"]["parameters"] > 1000
    assert start["info"]["flops_per_token"] > start["info"]["parameters"]
    assert start["device"] == "cpu"
    assert len(start["fingerprint"]) == 12
    assert [first["step"], second["step"]] == [5, 10]
    assert second["tokens"] == 320
    assert (end["state"], end["error"], end["traceback"]) == ("done", None, None)
    assert end["summary"]["val/loss"] == second["metrics"]["val/loss"]
    assert end["summary"]["tokens"] == 320
    rate = end["summary"]["tokens_per_second"]
    assert rate == pytest.approx(320 / second["seconds"])
    assert end["summary"]["seconds"] >= second["seconds"]
    assert 1e7 < end["summary"]["peak_memory_bytes"] < 1e11
    assert 0 < end["summary"]["cpu_seconds"] < 100 * end["summary"]["seconds"]


def test_the_same_trial_twice_is_bit_equal(corpus: str) -> None:
    first, second = (messages(spec(corpus)) for _ in range(2))
    assert [m["metrics"] for m in first[1:-1]] == [m["metrics"] for m in second[1:-1]]
    other = messages(spec(corpus, seed=1))
    assert first[1]["metrics"] != other[1]["metrics"]


def test_a_count_from_the_plan_is_taken_over(corpus: str) -> None:
    cost = {"parameters": 7, "state_bytes": 8, "flops_per_token": 9.0, "seconds_per_trial": None}
    start = messages({**spec(corpus), "cost": cost})[0]
    assert start["info"]["parameters"] == 7
    assert "seconds_per_trial" not in start["info"]


def test_divergence_keeps_the_step_and_the_last_finite_values(
    corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([3.0, math.nan])
    monkeypatch.setattr(LanguageTask, "score", lambda self, model: {"val/loss": next(scores)})
    *_, row, end = messages(spec(corpus))
    assert math.isnan(row["metrics"]["val/loss"])
    assert end["state"] == "diverged"
    assert end["error"].startswith("val/loss not finite at step 10; last finite values (step 5): ")
    assert end["summary"]["val/loss"] == 3.0
    assert end["traceback"] is None


def test_a_learning_rate_that_is_far_too_high_never_passes_for_done(corpus: str) -> None:
    end = messages(spec(corpus, train={"lr": 1e30}))[-1]
    assert end["state"] == "diverged"
    assert "train/loss not finite at step" in end["error"]


def test_a_failure_is_reported_not_raised(corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: LanguageTask, model: nn.Module) -> dict[str, Any]:
        return {"val/loss": "low"}

    monkeypatch.setattr(LanguageTask, "score", broken)
    end = messages(spec(corpus))[-1]
    assert end["state"] == "failed"
    assert end["error"] == "MetricError: metric 'val/loss' is 'low' (str); it must be a number"
    assert "in train" in end["traceback"]


def test_a_trial_that_cannot_start_still_ends(corpus: str) -> None:
    given = spec(corpus)
    given["config"]["model"]["window"]["length"] = -1
    start, end = messages(given)
    assert start["fingerprint"] is None
    assert end["state"] == "failed"
    assert "OmegaWindow.length=-1: must be >= 1" in end["error"]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        MemoryError(),
    ],
    ids=["cuda", "cpu", "python"],
)
def test_running_out_of_memory_is_its_own_state(
    corpus: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(run_module, "build_for", full)
    assert messages(spec(corpus))[-1]["state"] == "oom"


def test_a_gpu_that_is_not_there_is_said(corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    start, *_, end = messages({**spec(corpus), "resources": {"cpus": 1.0, "gpus": 0.5}})
    assert start["device"] == "cpu"
    assert end["warnings"] == ["resources.gpus asks for a GPU, torch sees none: ran on the CPU"]


def test_a_task_with_its_own_learner_needs_no_model() -> None:
    args = {"dim": 8, "length": 64, "rank": 2}
    config = {"model": None, "task": {"name": "learnability", "args": args}, "train": None}
    found = messages({"id": "c-s0", "cell": "c", "seed": 0, "config": config})
    assert found[-1]["state"] == "done"
    assert found[-2]["step"] == 64
    assert found[-1]["summary"]["final/loss"] == found[-2]["metrics"]["final/loss"]
    config["task"] = {"name": "learnability", "args": {**args, "optimizer": "sgd", "lr": 1e30}}
    assert messages({"id": "c-s0", "seed": 0, "config": config})[-1]["state"] == "diverged"
