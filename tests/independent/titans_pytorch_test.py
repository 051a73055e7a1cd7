"""Titans' memory against titans-pytorch, where that package says what the paper says.

titans-pytorch 0.5.5 (MIT) with chunk_size 1 (gates for every token) and batch_size C (gradients at
the memory after every C tokens) is Titans' chunked form: it takes its inner gradients by
torch.func and its momentum and decay by associative scans, so nothing is shared with the code here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from titans_pytorch import MemoryMLP
from titans_pytorch import NeuralMemory as TheirMemory
from torch import Tensor

from ablate.components.bias import L2
from ablate.components.dims import Dims
from ablate.components.feature_map import Identity
from ablate.components.inner_optimizer import GradientDescent, InnerOptimizer, Momentum, Muon
from ablate.components.memory import MLPMemory
from ablate.components.neural_memory import NeuralMemory
from ablate.components.newton_schulz import NewtonSchulz
from ablate.components.recurrence.chunked import run_chunked
from ablate.components.recurrence.coefficients import Gates
from ablate.components.retention import ScalarRetention
from ablate.components.window import OmegaWindow

WIDTH, TOKENS = 6, 22
DIMS = Dims(model=WIDTH, heads=1, key=WIDTH, value=WIDTH)


def half_square(said: Tensor, value: Tensor) -> Tensor:
    """The loss of Titans Eq. 12; the package's own is the mean over the width."""
    return 0.5 * (said - value).square().sum(dim=-1)


@dataclass(frozen=True)
class Both:
    """What both say and, of each weight, hold after the last token."""

    ours: Tensor
    theirs: Tensor
    our_weights: list[Tensor]
    their_weights: list[Tensor]


def run_theirs(theirs: TheirMemory, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    said, state = theirs(x)
    last, _ = state.states
    return said, [last[name] for name in theirs.memory_model_parameter_names]


def make_theirs(batch_size: int | None, layers: int, **options: Any) -> TheirMemory:
    torch.manual_seed(0)  # the package draws from the global generator
    theirs = TheirMemory(
        dim=WIDTH,
        chunk_size=1,
        batch_size=batch_size,
        model=MemoryMLP(WIDTH, depth=layers, expansion_factor=2.0),
        store_memory_loss_fn=half_square,
        default_step_transform_max_lr=0.3,
        pre_rmsnorm=False,
        mem_model_norm_add_residual=False,
        **options,
    ).double()
    with torch.no_grad():
        theirs.to_decay_factor[0].bias -= 4  # else half of the memory is gone at every token
    return theirs


def make_ours(optimizer: InnerOptimizer, layers: int, chunk: int) -> NeuralMemory:
    orthogonal = NewtonSchulz(DIMS, steps=5) if isinstance(optimizer, Muon) else None
    layer = NeuralMemory(
        DIMS,
        memory=MLPMemory(DIMS, WIDTH, expansion=2, layers=layers, residual=False),
        feature_map=Identity(DIMS),
        window=OmegaWindow(DIMS, length=1),
        bias=L2(DIMS),
        retention=ScalarRetention(DIMS),
        inner_optimizer=optimizer,
        newton_schulz=orthogonal,
        chunk=chunk,
    )
    return layer.double()


def run_ours(
    ours: NeuralMemory, theirs: TheirMemory, x: Tensor, lr: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Our recurrence from their first weights, with their projections and gates."""
    memory: Any = ours.memory
    for mine, start in zip(memory.parameters(), theirs.memory_model_parameters, strict=True):
        mine.copy_(start.mT)
    keep = 1 - theirs.to_decay_factor[0](x).sigmoid()
    momentum = theirs.to_momentum
    theta = None if momentum is None else momentum[0](x).sigmoid()
    q, k, v = (
        part(x)[:, :, None] for part in (theirs.to_queries, theirs.to_keys, theirs.to_values)
    )
    gates = Gates(keep=keep, lr=lr, theta=theta, gamma=torch.ones_like(lr)[..., None])
    state = ours.initial_state(x.shape[0], dtype=torch.float64)
    y, last = run_chunked(ours.rule(), q, k, v, gates, state)
    return y[:, :, 0], [w[:, 0].mT for w in last.weights]


def tokens() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(3, TOKENS, WIDTH, generator=generator, dtype=torch.float64)


def run(chunk: int, layers: int, *, momentum: bool) -> Both:
    theirs, x = make_theirs(chunk, layers, momentum=momentum), tokens()
    optimizer = Momentum(DIMS) if momentum else GradientDescent(DIMS)
    with torch.no_grad():
        lr = 0.3 * theirs.to_adaptive_step[0](x).sigmoid()
        ours = run_ours(make_ours(optimizer, layers, chunk), theirs, x, lr)
        return Both(ours[0], run_theirs(theirs, x)[0], ours[1], run_theirs(theirs, x)[1])


@pytest.mark.parametrize("momentum", [True, False], ids=["momentum", "gradient descent"])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("chunk", [1, 4])
def test_titans_is_what_titans_pytorch_says(chunk: int, layers: int, momentum: bool) -> None:
    """Tokens that fill no chunk included: outputs, and the weights after the last token."""
    both = run(chunk, layers, momentum=momentum)
    assert both.ours.std() > 0.05
    torch.testing.assert_close(both.theirs, both.ours, rtol=1e-9, atol=1e-9)
    for one, other in zip(both.their_weights, both.our_weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_without_batch_size_every_gradient_is_taken_at_the_first_weights() -> None:
    """The package's default is no chunked Titans but one chunk as long as the call."""
    theirs, x = make_theirs(None, 2), tokens()
    with torch.no_grad():
        lr = 0.3 * theirs.to_adaptive_step[0](x).sigmoid()
        said, _ = run_theirs(theirs, x)
        whole, _ = run_ours(make_ours(Momentum(DIMS), 2, TOKENS), theirs, x, lr)
        chunks, _ = run_ours(make_ours(Momentum(DIMS), 2, 4), theirs, x, lr)
    torch.testing.assert_close(said, whole, rtol=1e-9, atol=1e-9)
    assert (said - chunks).abs().max() > 0.01


def test_spectral_norm_surprises_is_muon_whose_step_cancels() -> None:
    """NS(S) with the step inside S (here Muon with step 1): ten times the step changes nothing."""
    x = tokens()[:, :8]
    said = []
    for size in (0.3, 3.0):
        theirs = make_theirs(4, 2, spectral_norm_surprises=True)
        theirs.adaptive_step_transform = lambda step, size=size: size * torch.ones_like(step)
        with torch.no_grad():
            said.append(run_theirs(theirs, x)[0])
            ours, _ = run_ours(make_ours(Muon(DIMS), 2, 4), theirs, x, torch.ones_like(x[..., :1]))
    torch.testing.assert_close(said[0], said[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(said[1], ours, rtol=1e-4, atol=1e-4)
    assert ours.std() > 0.05
