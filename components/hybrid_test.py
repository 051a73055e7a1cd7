from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import silu

from ablate.components.attention import SoftmaxAttention
from ablate.components.backbone import Backbone, MixerLayer, unit
from ablate.components.backbone_test import draw, initialise
from ablate.components.bias import L2
from ablate.components.dims import Dims
from ablate.components.exponential import Exponential, ExponentialMemory
from ablate.components.feature_map import Identity
from ablate.components.hybrid import (
    AfterMemory,
    Alternate,
    GatedByMemory,
    Hybrid,
    MemoryAlone,
    MemoryAsContext,
    MemoryAsGate,
    MemoryAsLayer,
    PersistentTokens,
)
from ablate.components.inner_optimizer import GradientDescent
from ablate.components.language_model import LanguageModel
from ablate.components.language_model_test import VOCAB, in_pieces, make_mixer, make_tokens
from ablate.components.memory import MatrixMemory, MLPMemory
from ablate.components.memory_as_context import MemoryAsContextLayer
from ablate.components.neural_memory import NeuralMemory
from ablate.components.retention import ScalarRetention
from ablate.components.window import OmegaWindow

HYBRIDS: dict[str, Hybrid] = {
    "mac": MemoryAsContext(segment=5, persistent=2),
    "mac_bare": MemoryAsContext(segment=5, persistent=0),
    "mag": MemoryAsGate(window=3, persistent=2),
    "mal": MemoryAsLayer(window=3, persistent=2),
    "alternate": Alternate(window=3),
}
LENGTH = 13


def online(dims: Dims) -> NeuralMemory:
    """A quick memory."""
    return NeuralMemory(
        dims,
        memory=MatrixMemory(dims, dims.key),
        feature_map=Identity(dims),
        window=OmegaWindow(dims, gates="none"),
        bias=L2(dims),
        retention=ScalarRetention(dims),
        inner_optimizer=GradientDescent(dims),
        chunk=8,
    )


def make_model(kind: str, memory: str = "atlas") -> LanguageModel:
    backbone = Backbone(dim=8, layers=2, heads=2)
    make = online if memory == "online" else functools.partial(make_mixer, memory)
    layers = HYBRIDS[kind].layers(backbone, lambda: make(backbone.dims))
    model = initialise(LanguageModel(VOCAB, backbone, layers))
    assert isinstance(model, LanguageModel)
    return model


@pytest.mark.parametrize("kind", HYBRIDS)
@pytest.mark.parametrize("place", [4, LENGTH - 1])
def test_no_logit_feels_a_later_token(kind: str, place: int) -> None:
    model, tokens = make_model(kind), make_tokens(length=LENGTH)
    changed = tokens.clone()
    changed[:, place] = (changed[:, place] + 1) % VOCAB
    before, after = model(tokens)[0], model(changed)[0]
    assert torch.equal(before[:, :place], after[:, :place])
    assert (before[:, place:] != after[:, place:]).any(dim=2).all()


@settings(max_examples=8, deadline=None)
@given(cuts=st.sets(st.integers(1, LENGTH - 1)), kind=st.sampled_from(sorted(HYBRIDS)))
def test_any_split_equals_one_call(cuts: set[int], kind: str) -> None:
    model, tokens = make_model(kind), make_tokens(rows=2, length=LENGTH)
    edges = [0, *sorted(cuts), LENGTH]
    pieces = [b - a for a, b in zip(edges, edges[1:], strict=False)]
    whole, _ = model(tokens)
    torch.testing.assert_close(in_pieces(model, tokens, pieces), whole, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", HYBRIDS)
@pytest.mark.parametrize("prefill", [4, 7])
def test_prefill_then_decode_equals_one_call(kind: str, prefill: int) -> None:
    model, tokens = make_model(kind), make_tokens(length=LENGTH)
    whole, _ = model(tokens)
    pieces = [prefill] + [1] * (LENGTH - prefill)
    torch.testing.assert_close(in_pieces(model, tokens, pieces), whole, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", HYBRIDS)
def test_rows_do_not_feel_each_other_and_modes_do_not_matter(kind: str) -> None:
    model, tokens = make_model(kind), make_tokens()
    together = model(tokens)[0]
    for row in range(3):
        alone = model(tokens[row : row + 1])[0]
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=1e-10)
    with torch.inference_mode():
        assert torch.equal(model.eval()(tokens)[0], together)


@pytest.mark.parametrize("kind", HYBRIDS)
def test_every_parameter_learns_for_twenty_steps(kind: str) -> None:
    model, tokens = make_model(kind, "online").float(), make_tokens(length=LENGTH)
    before = {name: p.clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(20):
        logits = model(tokens)[0][:, :-1].flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]
    assert not [name for name, p in model.named_parameters() if torch.equal(p, before[name])]


@pytest.mark.parametrize("kind", HYBRIDS)
def test_the_meta_device_gives_shapes(kind: str) -> None:
    with torch.device("meta"):
        backbone = Backbone(dim=8, layers=2, heads=2)
        layers = HYBRIDS[kind].layers(backbone, lambda: make_mixer("atlas", backbone.dims))
        model = LanguageModel(VOCAB, backbone, layers)
        logits, state = model(torch.zeros(2, 7, dtype=torch.int64))
        logits, _ = model(torch.zeros(2, 1, dtype=torch.int64), state)
    assert logits.shape == (2, 1, VOCAB)


def infinite(dims: Dims) -> ExponentialMemory:
    """A memory whose state grows."""
    lift = Exponential(dims, anchors=3)
    return ExponentialMemory(
        dims,
        memory=MLPMemory(dims, lift.width, expansion=1),
        feature_map=lift,
        window=OmegaWindow(dims, length=2),
        bias=L2(dims),
        retention=ScalarRetention(dims),
        inner_optimizer=GradientDescent(dims),
        chunk=4,
    )


@pytest.mark.parametrize("kind", ["mac", "mag"])
def test_a_memory_that_grows_can_be_beside_attention(kind: str) -> None:
    backbone = Backbone(dim=8, layers=1, heads=2)
    layers = HYBRIDS[kind].layers(backbone, lambda: infinite(backbone.dims))
    model, tokens = LanguageModel(VOCAB, backbone, layers), make_tokens(length=LENGTH)
    initialise(model)
    whole, _ = model(tokens)
    pieces = [3, 1, 1, 6, 2]
    torch.testing.assert_close(in_pieces(model, tokens, pieces), whole, rtol=0, atol=1e-10)


class Silent(nn.Module):
    """A memory that says nothing."""

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, state: Any = None
    ) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(v), v[:, :0]


def same_weights(layer: nn.Module, like: nn.Module) -> nn.Module:
    """Give `layer` the weights of `like` that have its names."""
    layer.load_state_dict(like.state_dict(), strict=False)
    return layer


def test_mag_with_a_silent_memory_is_sliding_window_attention() -> None:
    backbone = Backbone(dim=8, heads=2)
    attention = SoftmaxAttention(backbone.dims, window=3)
    mag = initialise(GatedByMemory(backbone, Silent(), attention))
    alone = MixerLayer(backbone, SoftmaxAttention(backbone.dims, window=3)).double()
    same_weights(alone, mag)
    same_weights(alone, mag.attention)  # type: ignore[arg-type]
    x = draw(2, 9, 8)
    torch.testing.assert_close(mag(x)[0], alone(x)[0], rtol=0, atol=1e-12)


def test_mal_with_a_silent_memory_is_sliding_window_attention() -> None:
    backbone = Backbone(dim=8, heads=2)
    mal = initialise(AfterMemory(backbone, Silent(), SoftmaxAttention(backbone.dims, window=3)))
    assert isinstance(mal, AfterMemory)
    x = draw(2, 9, 8)
    expected, _ = mal.attention(mal.between(x))
    torch.testing.assert_close(mal(x)[0], expected, rtol=0, atol=1e-12)


def test_persistent_tokens_are_seen_from_everywhere_and_the_window_ends() -> None:
    backbone = Backbone(dim=8, heads=2, conv_width=1)
    attention = SoftmaxAttention(backbone.dims, window=3, prefix=2)
    layer = initialise(PersistentTokens(backbone, MixerLayer(backbone, attention), 2))
    x = draw(1, 40, 8).requires_grad_()
    assert isinstance(layer, PersistentTokens)
    far = layer(x)[0][0, -1].sum()
    tokens, stream = torch.autograd.grad(far, (layer.tokens, x))
    assert (tokens.abs().sum(dim=1) > 0).all()
    assert stream[0].abs().sum(dim=1).nonzero().flatten().tolist() == [37, 38, 39]


def test_prefix_attention_equals_the_definition() -> None:
    """Loops: prefix keys are read unrotated; the others by the distance, inside the window."""
    backbone = Backbone(dim=8, heads=2)
    attention = initialise(SoftmaxAttention(backbone.dims, window=3, prefix=2))
    plain = initialise(SoftmaxAttention(backbone.dims, rope=False))
    q, k, v = (unit(draw(1, 8, 2, 4, seed=seed)) for seed in range(3))
    y, _ = attention(q, k, v, draw(1, 8, 8))
    for t in range(2, 8):
        seen = [0, 1, *range(max(2, t - 2), t + 1)]
        logits = []
        for s in seen:
            pair = [q[:, t : t + 1], k[:, s : s + 1]]
            if s >= 2:
                pair = [attention.turned(pair[0], t), attention.turned(pair[1], s)]
            logits.append(plain.scaled(pair[0]).mul(pair[1]).sum(-1))
        weights = torch.stack(logits).softmax(dim=0)
        expected = sum(w[..., None] * v[:, s : s + 1] for w, s in zip(weights, seen, strict=True))
        torch.testing.assert_close(y[:, t : t + 1], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("persistent", [0, 2])
def test_mac_equals_its_equations_token_by_token(persistent: int) -> None:
    """Titans Eq. 21-25 with loops: each token attends to a list of keys made anew for it."""
    backbone = Backbone(dim=8, heads=2, conv_width=1)
    mixer = make_mixer("atlas", backbone.dims)
    layer = initialise(
        MemoryAsContextLayer(backbone, mixer, segment=3, persistent=persistent, rope=False)
    )
    assert isinstance(layer, MemoryAsContextLayer)
    x = draw(2, 8, 8)
    state, read, outputs = None, layer.memory.mixer, []
    for t in range(8):
        if t % 3 == 0:
            fixed: Any = read.frozen(None if state is None else state.mixer, 2)  # type: ignore[operator]
            context: list[Tensor] = []
            if layer.tokens is not None:
                context = [token.expand(2, 1, 8) for token in layer.tokens]
        s = x[:, t : t + 1]
        query = unit(silu(layer.query(s)).unflatten(-1, (2, 4)))
        h = layer.retrieved_norm(read.retrieve(query, fixed))  # type: ignore[operator]
        context += [layer.recall(h.flatten(-2)), s]
        q = layer.attention.project(s, None)[0] * 2  # the factor starts at sqrt(4)
        pairs = [layer.attention.project(token, None)[1:3] for token in context]
        logits = torch.stack([(q * key).sum(-1) for key, _ in pairs])
        weights = logits.softmax(dim=0)[..., None]
        y = layer.attention_norm((weights * torch.stack([value for _, value in pairs])).sum(0))
        said, state = layer.memory(layer.write(y.flatten(-2)), state)
        gated = y * 2 * layer.memory_norm(said).sigmoid()
        outputs.append(layer.out(gated.flatten(-2) * silu(layer.gate(s))))
    expected = torch.cat(outputs, dim=1)
    torch.testing.assert_close(layer(x)[0], expected, rtol=0, atol=1e-10)


def test_alternate_takes_turns() -> None:
    backbone = Backbone(dim=8, heads=2, layers=5)
    made = Alternate(window=3, period=3).layers(backbone, Silent)
    assert [type(layer) for layer in made] == [Silent, Silent, SoftmaxAttention, Silent, Silent]
    asked: list[Any] = []

    def make(other: Any = None) -> Silent:
        asked.append(other)
        return Silent()

    two: dict[str, Any] = {"name": "other"}
    mixed = Alternate(window=3, period=3, memories=[two, "memory"])
    kinds = [type(layer) for layer in mixed.layers(backbone, make)]
    assert kinds == [Silent, Silent, SoftmaxAttention, Silent, Silent]
    assert asked == [two, None, two, None]
    with pytest.raises(ValueError, match="memories has 1 entries with period=3"):
        Alternate(period=3, memories=["memory"])
    assert [type(layer) for layer in MemoryAlone().layers(backbone, Silent)] == [Silent] * 5


def test_what_does_not_exist_is_refused_with_the_reason() -> None:
    backbone = Backbone(dim=8, heads=2, layers=2)
    with pytest.raises(ValueError, match="hybrid mac with Silent: mac reads the memory without"):
        MemoryAsContext().layers(backbone, Silent)
    with pytest.raises(ValueError, match="no layer would be attention; give at least 3"):
        Alternate(period=3).layers(backbone, Silent)
    with pytest.raises(ValueError, match="MemoryAsGate.window=0: must be a whole number >= 1"):
        MemoryAsGate(window=0)
    with pytest.raises(ValueError, match="MemoryAsContext.persistent=-1: must be a whole number"):
        MemoryAsContext(persistent=-1)
