from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ablate.experiments.learnability.learner import OnlineMLP, OptimizerName

OPTIMIZERS = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop, "sgd": torch.optim.SGD}


def make_learner(
    widths: list[int], optimizer: OptimizerName = "adam", lr: float = 0.01
) -> OnlineMLP:
    draws = np.random.default_rng(0)
    return OnlineMLP(widths, optimizer=optimizer, lr=lr, draws=draws, dtype=torch.float64)


def as_modules(learner: OnlineMLP) -> nn.Sequential:
    layers: list[nn.Module] = []
    for weight in learner.weights:
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=torch.float64)
        linear.weight.data = weight.clone()
        layers += [linear, nn.GELU()]
    return nn.Sequential(*layers[:-1])


def draw(steps: int, width: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((steps, width)))


def normalised_loss(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    error: Tensor = model(x) - target
    return error.square().sum() / target.square().sum()


@pytest.mark.parametrize("widths", [[5, 4], [5, 7, 4], [5, 7, 6, 4], [5, 20, 20, 20, 5]])
def test_gradients_are_those_of_autograd(widths: list[int]) -> None:
    learner = make_learner(widths)
    model = as_modules(learner)
    x, target = draw(1, widths[0], 1)[0], draw(1, widths[-1], 2)[0]
    loss = normalised_loss(model, x, target)
    expected = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(learner.backward(x, target), loss.detach(), rtol=1e-12, atol=0)
    for gradient, wanted in zip(learner.gradients, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop", "sgd"])
def test_a_run_is_that_of_plain_modules_with_torchs_optimizer(optimizer: OptimizerName) -> None:
    learner = make_learner([5, 8, 8, 4], optimizer)
    model = as_modules(learner)
    reference = OPTIMIZERS[optimizer](model.parameters(), lr=0.01, foreach=False)
    for x, target in zip(draw(30, 5, 1), draw(30, 4, 2), strict=True):
        before = normalised_loss(model, x, target)
        reference.zero_grad()
        torch.autograd.backward(before)
        reference.step()
        torch.testing.assert_close(learner.step(x, target), before.detach(), rtol=1e-8, atol=0)
    for weight, wanted in zip(learner.weights, model.parameters(), strict=True):
        torch.testing.assert_close(weight, wanted.detach(), rtol=1e-7, atol=1e-9)


def test_weights_start_uniform_within_one_over_the_root_of_the_fan_in() -> None:
    for weight in make_learner([256, 64, 256]).weights:
        bound = weight.shape[1] ** -0.5
        assert weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)


def test_a_zero_learner_scores_exactly_one() -> None:
    learner = make_learner([5, 6, 4])
    learner.weights[-1].zero_()
    assert learner.backward(draw(1, 5, 1)[0], draw(1, 4, 2)[0]).item() == 1.0
