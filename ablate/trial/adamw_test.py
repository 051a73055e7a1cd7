"""AdamW without the compiler: PyTorch's numbers, and what a first step imports."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch import Tensor, nn

from ablate.trial.adamw import PlainAdamW

FIRST_STEP = """
import sys, torch
from torch import nn
from ablate.trial.train import TrainConfig, make_optimizer
model = nn.Linear(3, 2)
optimizer = make_optimizer(model, TrainConfig())
before = model.weight.detach().clone()
optimizer.zero_grad(set_to_none=True)
model(torch.ones(1, 3)).sum().backward()
nn.utils.clip_grad_norm_(model.parameters(), 1.0)
optimizer.step()
assert not torch.equal(before, model.weight)
print(sorted({"torch._dynamo", "sympy", "pandas", "ray", "mlflow"} & set(sys.modules)))
"""


def train(optimizer: type[torch.optim.AdamW]) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    groups = [{"params": [model.weight], "weight_decay": 0.3}, {"params": [model.bias]}]
    made = optimizer(groups, lr=0.05, betas=(0.8, 0.95))
    for _ in range(5):
        made.zero_grad()
        model(torch.randn(4, 5)).square().sum().backward()
        made.step()
    return [*model.parameters(), *made.state[model.weight].values()]


def test_the_steps_are_those_of_torch_to_the_bit() -> None:
    ours, theirs = train(PlainAdamW), train(torch.optim.AdamW)
    assert len(ours) == 5  # weight, bias, number of steps, two moments
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


def test_a_first_step_does_not_import_the_compiler() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_STEP], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
