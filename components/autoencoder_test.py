from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ablate.components.attention import SoftmaxAttention
from ablate.components.autoencoder import AutoEncoderBackbone, sinusoids
from ablate.components.backbone_test import initialise
from ablate.components.language_model import LanguageModel

VOCAB, LENGTH = 7, 6


def make_model() -> LanguageModel:
    backbone = AutoEncoderBackbone(dim=8, layers=2, heads=2)
    mixers = [SoftmaxAttention(backbone.dims) for _ in range(2)]
    model = initialise(LanguageModel(VOCAB, backbone, mixers))
    assert isinstance(model, LanguageModel)
    return model.double()


def tokens(rows: int = 3) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(VOCAB, size=(rows, LENGTH)))


def rms(x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def test_a_row_is_said_from_the_last_hidden_state_and_the_position_alone() -> None:
    model = make_model()
    hidden: list[Tensor] = []
    model.norm.register_forward_hook(lambda _module, _inputs, output: hidden.append(output))
    logits, _ = model(tokens())
    weights = [layer.weight for layer in model.head.layers if isinstance(layer, nn.Linear)]
    assert [tuple(weight.shape) for weight in weights] == [(8, 8), (8, 8), (VOCAB, 8)]
    for t in range(LENGTH):
        angles = [t / 10_000 ** (2 * pair / 8) for pair in range(4)]
        place = torch.tensor([f(a) for a in angles for f in (np.sin, np.cos)], dtype=torch.float64)
        z = hidden[0][:, -1] + place
        for weight in weights[:2]:
            z = nn.functional.gelu(rms(z) @ weight.T)
        torch.testing.assert_close(logits[:, t], rms(z) @ weights[2].T, rtol=1e-5, atol=1e-6)


def test_every_token_of_the_row_reaches_every_position() -> None:
    model, rows = make_model(), tokens(1)
    base = model(rows)[0]
    for place in range(LENGTH):
        changed = rows.clone()
        changed[0, place] = (changed[0, place] + 1) % VOCAB
        moved = (model(changed)[0] - base).abs().amax(dim=-1)[0]
        assert (moved > 1e-9).all()


@pytest.mark.parametrize("width", [2, 5, 8])
def test_positions_differ_and_begin_at_sine_0(width: int) -> None:
    table = sinusoids(50, like=torch.zeros(1, 1, width, dtype=torch.float64))
    assert table.shape == (50, width)
    assert table[0].tolist() == [float(column % 2) for column in range(width)]
    assert len({tuple(row) for row in table.tolist()}) == 50


def test_the_loss_of_one_position_reaches_every_parameter() -> None:
    model = make_model()
    logits = model(tokens())[0]
    nn.functional.cross_entropy(logits[:, 2], tokens()[:, 2]).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
