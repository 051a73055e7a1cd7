"""Named systems with a matrix as their memory are what their papers write down.

Each preset is built with unequal key and value widths, so that a transposed product cannot pass,
and compared with its own recurrence, one row and head at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ablate.components.backbone import Backbone
from ablate.components.dims import Dims
from ablate.components.neural_memory import NeuralMemory
from ablate.trial.build import build_model, initialise, make_mixer
from ablate.trial.space import apply, compose_model, resolve
from ablate.trial.train import token_loss

DIMS = Dims(model=5, heads=2, key=4, value=3)
EYE = torch.eye(DIMS.key, dtype=torch.float64)


class Unequal(Backbone):
    """A backbone whose values are not as wide as its keys."""

    @property
    def dims(self) -> Dims:
        return DIMS


@dataclass(frozen=True)
class Token:
    """One token of one row and head: keys and values of it and of those before, gates, head."""

    k: Tensor  # latest first
    v: Tensor
    keep: Tensor
    lr: Tensor
    gamma: Tensor
    head: int

    @property
    def write(self) -> Tensor:
        """lr v k^T."""
        return self.lr * torch.outer(self.v[0], self.k[0])

    @property
    def erase(self) -> Tensor:
        """lr k k^T."""
        return self.lr * torch.outer(self.k[0], self.k[0])


def longhorn(m: Tensor, t: Token) -> Tensor:
    size = t.lr / (1 + t.lr * t.k[0] @ t.k[0])
    outer = torch.outer(t.k[0], t.k[0])
    return m @ (EYE - size * outer) + size * torch.outer(t.v[0], t.k[0])


def swla(m: Tensor, t: Token) -> Tensor:
    sums = sum(g * torch.outer(v, k) for g, v, k in zip(t.gamma, t.v, t.k, strict=False))
    return t.keep * m + t.lr * sums


def hgrn2(m: Tensor, t: Token) -> Tensor:
    return m @ torch.diag(t.keep) + torch.outer(t.v[0], 1 - t.keep)


def dfw(m: Tensor, t: Token) -> Tensor:
    columns, rows = t.keep.split([DIMS.key, DIMS.value])
    return torch.outer(rows, columns) * m + torch.outer(t.v[0], t.k[0])


SYSTEMS: dict[str, Callable[[Tensor, Token], Tensor]] = {
    "linear_attention": lambda m, t: m + t.write,
    "retnet": lambda m, t: (1 - 2.0 ** (-5 - t.head)) * m + t.write,
    "lightning": lambda m, t: t.keep * m + t.write,
    "gla": lambda m, t: m @ torch.diag(t.keep) + t.write,
    "hgrn2": hgrn2,
    "dfw": dfw,
    "mamba2": lambda m, t: t.keep * m + t.write,
    "swla": swla,
    "deltanet": lambda m, t: m @ (EYE - t.erase) + t.write,
    "gated_deltanet": lambda m, t: t.keep * m @ (EYE - t.erase) + t.write,
    "longhorn": longhorn,
    "rwkv7": lambda m, t: m @ (torch.diag(t.keep) - t.erase) + t.write,
}


def _layer(name: str) -> NeuralMemory:
    mixer = make_mixer(resolve(compose_model(name)), Unequal(), (), "")
    assert isinstance(mixer, NeuralMemory)
    initialise(mixer, 0)
    return mixer.double()


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_preset_is_its_papers_recurrence(name: str) -> None:
    layer, tokens = _layer(name), 40
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    q, k = (1.3 * normalize(normal(2, tokens, 2, DIMS.key), dim=-1) for _ in range(2))
    v, x = normal(2, tokens, 2, DIMS.value), normal(2, tokens, DIMS.model)
    state = layer.initial_state(2, dtype=torch.float64)
    gates, _ = layer.gates(x, state)
    y, last = layer(q, k, v, x)
    for row, head in ((0, 0), (1, 1)):
        m = state.weights[0][row, head]
        for t in range(tokens):
            at = (row, t, head)
            token = Token(
                k=k[row, : t + 1, head].flip(0),
                v=v[row, : t + 1, head].flip(0),
                keep=gates.keep[at],
                lr=gates.lr[at],
                gamma=gates.gamma[at],
                head=head,
            )
            m = SYSTEMS[name](m, token)
            torch.testing.assert_close(y[at], m @ q[at], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(last.weights[0][row, head], m, rtol=1e-9, atol=1e-9)


OTHERS = ["titans_gd", "dla", "yaad", "moneta", "memora", "mesa"]


@pytest.mark.parametrize("name", [*SYSTEMS, *OTHERS])
def test_twenty_steps_of_training_stay_finite_and_learn(name: str) -> None:
    spec: Any = compose_model(name)
    for key, value in (("backbone.dim", 16), ("backbone.heads", 2), ("backbone.layers", 1)):
        spec = apply(spec, key, value)
    model = build_model(spec, 8, seed=0)
    tokens = torch.arange(20).remainder(5).expand(4, 20)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        loss = token_loss(model(tokens[:, :-1])[0], tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert losses[-1] < 0.5 * losses[0]
