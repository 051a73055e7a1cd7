from __future__ import annotations

from typing import cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ablate.components.attention import SoftmaxAttention
from ablate.components.backbone import Backbone
from ablate.components.backbone_test import initialise
from ablate.components.bias import L2
from ablate.components.dims import Dims
from ablate.components.feature_map import Polynomial
from ablate.components.inner_optimizer import Muon
from ablate.components.language_model import LanguageModel
from ablate.components.memory import MLPMemory
from ablate.components.neural_memory import NeuralMemory
from ablate.components.newton_schulz import NewtonSchulz
from ablate.components.retention import ScalarRetention
from ablate.components.state_size import state_bytes
from ablate.components.window import OmegaWindow

VOCAB, LENGTH = 11, 13
KINDS = ("attention", "window", "atlas")


def make_mixer(kind: str, dims: Dims) -> nn.Module:
    if kind != "atlas":
        return SoftmaxAttention(dims, window=None if kind == "attention" else 5)
    lift = Polynomial(dims, degree=2)
    return NeuralMemory(
        dims,
        memory=MLPMemory(dims, lift.width, expansion=2),
        feature_map=lift,
        window=OmegaWindow(dims, length=3),
        bias=L2(dims),
        retention=ScalarRetention(dims),
        inner_optimizer=Muon(dims),
        newton_schulz=NewtonSchulz(dims),
        chunk=4,
    )


def make_model(kind: str = "attention") -> LanguageModel:
    backbone = Backbone(dim=8, layers=2, heads=2)
    mixers = [make_mixer(kind, backbone.dims) for _ in range(2)]
    model = initialise(LanguageModel(VOCAB, backbone, mixers))
    assert isinstance(model, LanguageModel)
    return model


def make_tokens(rows: int = 3, length: int = LENGTH, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, (rows, length), generator=generator)


def in_pieces(model: LanguageModel, tokens: Tensor, pieces: list[int]) -> Tensor:
    state, logits = None, []
    for piece in torch.split(tokens, pieces, dim=1):
        part, state = model(piece, state)
        logits.append(part)
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [0, 3, LENGTH - 1])
def test_no_logit_feels_a_later_token(kind: str, place: int) -> None:
    model, tokens = make_model(kind), make_tokens()
    changed = tokens.clone()
    changed[:, place] = (changed[:, place] + 1) % VOCAB
    before, after = model(tokens)[0], model(changed)[0]
    assert torch.equal(before[:, :place], after[:, :place])
    assert (before[:, place:] != after[:, place:]).any(dim=2).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_batch_do_not_feel_each_other(kind: str) -> None:
    model, tokens = make_model(kind), make_tokens()
    together = model(tokens)[0]
    for row in range(3):
        alone = model(tokens[row : row + 1])[0]
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefill", range(1, LENGTH))
def test_prefill_then_decode_equals_one_call(kind: str, prefill: int) -> None:
    model, tokens = make_model(kind), make_tokens()
    whole, _ = model(tokens)
    pieces = [prefill] + [1] * (LENGTH - prefill)
    torch.testing.assert_close(in_pieces(model, tokens, pieces), whole, rtol=0, atol=1e-10)


@settings(max_examples=20, deadline=None)
@given(cuts=st.sets(st.integers(1, LENGTH - 1)), kind=st.sampled_from(KINDS))
def test_any_split_equals_one_call(cuts: set[int], kind: str) -> None:
    model, tokens = make_model(kind), make_tokens(rows=1)
    edges = [0, *sorted(cuts), LENGTH]
    pieces = [b - a for a, b in zip(edges, edges[1:], strict=False)]
    whole, _ = model(tokens)
    torch.testing.assert_close(in_pieces(model, tokens, pieces), whole, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_modes_do_not_change_the_logits(kind: str) -> None:
    model, tokens = make_model(kind), make_tokens()
    training = model.train()(tokens)[0]
    assert torch.equal(model.eval()(tokens)[0], training)
    with torch.no_grad():
        assert torch.equal(model(tokens)[0], training)
    with torch.inference_mode():
        assert torch.equal(model(tokens)[0], training)


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_gets_a_gradient(kind: str) -> None:
    model = make_model(kind)
    model(make_tokens())[0].logsumexp(dim=-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@pytest.mark.parametrize("kind", KINDS)
def test_zero_embeddings_give_finite_logits_and_gradients(kind: str) -> None:
    model = make_model(kind)
    torch.nn.init.zeros_(model.embedding.weight)
    logits, _ = model(make_tokens())
    logits.square().sum().backward()
    assert torch.equal(logits, torch.zeros_like(logits))
    assert model.embedding.weight.grad is not None
    assert model.embedding.weight.grad.isfinite().all()


def test_shapes_and_state_bytes_on_the_meta_device() -> None:
    backbone = Backbone(dim=8, layers=1, heads=2)
    with torch.device("meta"):
        model = LanguageModel(VOCAB, backbone, [SoftmaxAttention(backbone.dims)])
        logits, state = model(torch.zeros(2, 5, dtype=torch.int64))
        _, state = model(torch.zeros(2, 1, dtype=torch.int64), state)
    assert logits.shape == (2, 5, VOCAB)
    tail, cache = 2 * 3 * 24, 2 * 6 * 16
    assert state_bytes(state) == 4 * (tail + cache)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (torch.zeros(4, dtype=torch.int64), r"shape \[4\]: must be \[b t\]"),
        (torch.zeros(2, 0, dtype=torch.int64), r"shape \[2, 0\]"),
        (torch.zeros(2, 3), "type torch.float32: must be torch.int64"),
    ],
)
def test_wrong_tokens_are_refused(tokens: Tensor, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_model()(tokens)


def test_a_state_of_another_batch_or_model_is_refused() -> None:
    model, tokens = make_model(), make_tokens()
    _, state = model(tokens)
    with pytest.raises(ValueError, match="3 batch rows, but tokens has 1"):
        model(tokens[:1], state)
    with pytest.raises(ValueError, match="1 layers, but the model has 2"):
        model(tokens, state[:1])


def test_one_mixer_per_layer_is_needed() -> None:
    backbone = Backbone(dim=8, heads=2)
    with pytest.raises(ValueError, match="1 mixers for backbone.layers=2"):
        LanguageModel(VOCAB, backbone, [SoftmaxAttention(backbone.dims)])


def test_embeddings_have_the_size_that_the_backbone_says() -> None:
    made = {}
    for std in (None, 0.02, 0.04):
        backbone = Backbone(dim=64, layers=1, embedding_std=std)
        model = LanguageModel(256, backbone, [SoftmaxAttention(backbone.dims)])
        made[std] = cast(LanguageModel, initialise(model)).embedding.weight.detach()
    assert abs(made[0.02].std().item() - 0.02) < 1e-3
    torch.testing.assert_close(made[0.04], 2 * made[0.02])
    assert made[None].std().item() > 0.1
    with pytest.raises(ValueError, match=r"embedding_std=0.0: must be above 0"):
        Backbone(embedding_std=0.0)
