"""What separates models: at one width attention recalls, linear attention does not."""

from __future__ import annotations

from ablate.experiments.mqar.task import MQARTask
from ablate.experiments.task import Row
from ablate.trial.build import build_model
from ablate.trial.space import compose_model
from ablate.trial.train import TrainConfig, train

# The task and the block of mqar.yaml with 8 pairs, half as long.
TASK = MQARTask(
    pairs=8,
    train_rows=4_000,
    test_rows=200,
    more_train=((32, 2, 4_000),),
    random_non_queries=False,
    batch=8,
    tokens=80_000,
)
BLOCK = {"dim": 32, "layers": 1, "heads": 2, "head_dim": 16, "conv_width": 2, "embedding_std": 0.02}


def recalled(name: str) -> float:
    config = compose_model(name)
    config["backbone"] = {**config["backbone"], **BLOCK}
    rows: list[Row] = []
    model = build_model(config, TASK.vocab, seed=0)
    train(model, TASK, TrainConfig(lr=1e-2, evaluations=1), seed=0, report=rows.append)
    return rows[-1].metrics["val/accuracy"]


def test_attention_recalls_eight_pairs_and_linear_attention_does_not() -> None:
    assert recalled("transformer") > 0.95
    assert recalled("linear_attention") < 0.5
