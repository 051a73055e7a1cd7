from __future__ import annotations

from typing import Any

import pytest

from ablate.errors import UserError
from ablate.sweep.packs import Packer
from ablate.trial.fingerprint import fingerprint
from ablate.trial.online import memory_cost, memory_layer
from ablate.trial.packed_test import alone, check_same, packed
from ablate.trial.space import Model, apply, compose_model, resolve

NAMES = ("memory", "retention", "inner_optimizer", "hybrid")


def model(preset: str = "atlas", **settings: Any) -> Model:
    made = compose_model(preset)
    shape = {"backbone.dim": 4, "backbone.heads": 1, "backbone.layers": 1}
    names = {key: value for key, value in settings.items() if key in NAMES}
    options = {key.replace("__", "."): v for key, v in settings.items() if key not in NAMES}
    for key, value in {**names, **shape, **options}.items():
        made = apply(made, key, value)
    return resolve(made)


def trial(number: int, seed: int, spec: Model, **args: Any) -> dict[str, Any]:
    task = {"name": "online_memory", "args": {"length": 32, "rank": 1, "window": 8, **args}}
    return {
        "id": f"m{number}-s{seed}",
        "cell": f"m{number}",
        "seed": seed,
        "config": {"model": spec, "task": task, "train": None},
    }


def test_trials_of_one_model_are_lanes_that_report_what_each_reports_alone() -> None:
    spec = model("titans_gd", chunk=1)
    specs = [
        trial(n, seed, spec, target=target, rates=[0.01, 0.1])
        for n, target in enumerate(("low_rank", "attention_mlp"))
        for seed in (0, 7)
    ]
    specs.append(trial(9, 0, spec, rates=[1e15]))
    other = trial(5, 0, model("titans_gd", chunk=1, memory="matrix"))
    assert [len(job) for job in Packer().jobs_of([*specs, other])] == [5, 1]
    found = packed(specs)
    for one in specs:
        messages = alone(one)
        check_same(found[one["id"]], messages)
    *good, bad = (found[one["id"]] for one in specs)
    assert {messages[-1]["state"] for messages in good} == {"done"}
    assert bad[-1]["state"] == "diverged"
    assert good[0][0]["info"]["state_bytes"] == memory_cost(spec).state_bytes
    assert len({m[-1]["summary"]["final/loss"] for m in good}) == 4
    assert good[0][-1]["summary"]["final/rate"] == good[1][-1]["summary"]["final/rate"]


@pytest.mark.parametrize("preset", ["deltanet", "omeganet", "memora", "dot"])
def test_memories_of_all_kinds_learn_alone_or_as_lanes(preset: str) -> None:
    specs = [trial(0, seed, model(preset), length=12) for seed in (0, 1)]
    found = packed(specs)
    for one in specs:
        check_same(found[one["id"]], alone(one))
        assert found[one["id"]][-1]["state"] == "done"
    ends = [found[one["id"]][-1]["summary"]["final/loss"] for one in specs]
    assert ends[0] != ends[1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"backbone__heads": 2}, r"backbone\.heads=2: .*model_args\.backbone\.heads: 1"),
        ({"hybrid": "mag"}, "hybrid: a memory learns alone here"),
        ({"preset": "transformer"}, "memory: SoftmaxAttention is no memory"),
        ({"preset": "hgrn2"}, "several steps .* keys are given"),
        ({"preset": "deltaproduct"}, "several steps .* keys are given"),
    ],
)
def test_models_whose_memory_cannot_learn_alone_are_refused(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=f"there: {said}"):
        memory_cost(model(**settings), where="there")


def test_a_layer_reads_before_it_writes_and_counts_its_own_code_only() -> None:
    spec = model()
    assert memory_layer(spec).read == "before"
    config = trial(0, 0, spec)["config"]
    trained = {**config, "train": {}}
    assert fingerprint(config) != fingerprint(trained)
