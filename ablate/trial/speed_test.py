from __future__ import annotations

from typing import Any, cast

from ablate.experiments.catalogue import make_task
from ablate.experiments.task import SequenceTask
from ablate.trial.build_test import tiny
from ablate.trial.cost import count_work
from ablate.trial.space import resolve
from ablate.trial.speed import estimate_seconds, machine_rates, probe, score_tokens
from ablate.trial.train import TrainConfig

ARGS = {"pairs": 2, "length": 16, "vocab": 32, "train_rows": 64, "test_rows": 8, "tokens": 16_000}


def mqar(**changes: Any) -> SequenceTask:
    return cast(SequenceTask, make_task("mqar", {**ARGS, **changes}))


def test_the_tokens_of_one_scoring_are_what_the_task_really_reads() -> None:
    assert score_tokens(mqar()) == 8 * 16
    assert score_tokens(mqar(test_rows=24)) == 24 * 16


def test_a_probe_estimates_the_time_and_shows_equal_losses() -> None:
    config = {
        "model": resolve(tiny("deltanet")),
        "task": {"name": "mqar", "args": ARGS},
        "train": {"evaluations": 1},
    }
    first, second = probe(config, scored=128), probe(config, scored=128)
    assert first.losses == second.losses
    assert len(first.losses) == 3
    assert 0 < first.seconds < 600


def test_an_estimate_grows_with_the_budget_and_the_scoring() -> None:
    work = count_work(resolve(tiny("deltanet")), 32, 16)
    config = TrainConfig(evaluations=4)
    short = estimate_seconds(work, mqar(), config, scored=128)
    assert 1.9 < estimate_seconds(work, mqar(tokens=32_000), config, scored=128) / short < 2.1
    assert estimate_seconds(work, mqar(), config, scored=128_000) > 2 * short
    rates = machine_rates(1)
    assert rates is machine_rates(1), "measured once"
    assert min(rates.flops, rates.bytes, rates.operation) > 0
