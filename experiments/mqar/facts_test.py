"""What separates models: at one width attention recalls, linear attention does not."""

from __future__ import annotations

from ablate.experiments.mqar.task import MQARTask
from ablate.experiments.task import Row
from ablate.trial.build import build_model
from ablate.trial.space import compose_model
from ablate.trial.train import TrainConfig, train

# As in mqar.yaml with 8 pairs, but only such rows, which linear attention finds harder.
TASK = MQARTask(pairs=8, test_rows=200, random_non_queries=False, batch=8, tokens=150_000)
BLOCK = {"dim": 32, "layers": 1, "heads": 2, "head_dim": 16, "embedding_std": 0.02}
SEED = 2


def recalled(name: str) -> float:
    config = compose_model(name)
    config["backbone"] = {**config["backbone"], **BLOCK}
    rows: list[Row] = []
    model = build_model(config, TASK.vocab, seed=SEED)
    train(model, TASK, TrainConfig(lr=1e-2, evaluations=1), seed=SEED, report=rows.append)
    return rows[-1].metrics["val/accuracy"]


def test_attention_recalls_eight_pairs() -> None:
    assert recalled("transformer") > 0.95


def test_linear_attention_of_the_same_width_does_not() -> None:
    assert recalled("linear_attention") < 0.5
