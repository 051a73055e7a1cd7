from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import ablate.trial.cost as cost_module
from ablate.components.state_size import state_bytes
from ablate.errors import UserError
from ablate.trial.build import build_model
from ablate.trial.build_test import tiny
from ablate.trial.cost import Work, count_work, measure_cost
from ablate.trial.long_context import extrapolate, short_lengths
from ablate.trial.space import resolve
from ablate.trial.train import token_loss


def test_a_transformer_costs_what_paper_and_pencil_say() -> None:
    cost = measure_cost(resolve(tiny("transformer")), vocab=11, context=8)
    dim, heads, hidden, layers, width = 16, 2, 40, 2, 4
    block = 3 * dim * dim + 3 * dim * width + 2 * dim * dim + 3 * dim * hidden
    vectors = 2 * dim + dim // heads + heads  # two norms, the head norm, the heads' factors
    assert cost.parameters == 2 * 11 * dim + dim + layers * (block + vectors)
    cache, tail = 2 * 8 * dim, 3 * dim * (width - 1)
    assert cost.state_bytes == 4 * layers * (cache + tail)
    matrices = layers * (5 * dim * dim + 3 * dim * hidden) + 11 * dim
    attention = layers * 2 * 8 * dim  # each token against all 8, scores and sums
    assert cost.flops_per_token == 6 * (matrices + attention)


@pytest.mark.parametrize("name", ["atlas", "transformer"])
def test_the_meta_device_counts_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = resolve(tiny(name, **{"backbone.layers": 1}))
    real = measure_cost(model, vocab=11, context=8)
    cost_module._count.cache_clear()
    monkeypatch.setattr(cost_module, "REAL", 0)
    assert measure_cost(model, vocab=11, context=8) == real


@pytest.mark.parametrize("name", ["atlas", "atlas_alternate"])
def test_the_count_agrees_with_torchs_own_counter(name: str) -> None:
    model = resolve(tiny(name))
    built = build_model(model, 11, seed=0)
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):
        token_loss(built(tokens)[0], tokens).backward()
    assert measure_cost(model, 11, 8).flops_per_token == counter.get_total_flops() / 8


@pytest.mark.parametrize("layers", [2, 3, 4])
def test_blocks_that_take_turns_are_all_counted(layers: int) -> None:
    model = resolve(tiny("samba", **{"backbone.layers": layers, "hybrid.window": 4}))
    built = build_model(model, 11, seed=0)
    cost = measure_cost(model, vocab=11, context=8)
    assert cost.parameters == sum(parameter.numel() for parameter in built.parameters())
    assert cost.state_bytes == state_bytes(built(torch.zeros(1, 8, dtype=torch.int64))[1])


def test_a_neural_memory_state_does_not_grow_with_the_context() -> None:
    model = resolve(tiny("deltanet", chunk=1))
    short, long = (measure_cost(model, vocab=11, context=n).state_bytes for n in (4, 16))
    heads, key, value, tail = 2, 8, 8, 3 * 16 * 3
    assert short == long == 4 * 2 * (heads * key * value + tail)


def test_bad_values_name_the_place() -> None:
    model = resolve(tiny("atlas"))
    model["window"]["length"] = 0
    with pytest.raises(UserError, match="s.yaml: cell x: window: OmegaWindow.length=0: must be"):
        measure_cost(model, 11, 8, where="s.yaml: cell x")


@pytest.mark.parametrize("dim", [10**10, 10**30])
@pytest.mark.parametrize("preset", ["transformer", "titans_lmm"])
def test_a_model_beyond_all_counting_is_the_users_mistake(preset: str, dim: int) -> None:
    model = resolve(tiny(preset))
    model["backbone"] |= {"dim": dim, "head_dim": 2}
    with pytest.raises(UserError, match="s.yaml: cell x: the model has a tensor of more numbers"):
        measure_cost(model, 11, 8, where="s.yaml: cell x")


def test_a_trace_tells_models_apart_and_sees_what_no_gradient_reaches() -> None:
    atlas, other = (resolve(tiny("atlas", **{"window.length": n})) for n in (2, 3))
    first, same, second = (
        count_work(model, 11, 8) for model in (atlas, {**atlas, "name": "x"}, other)
    )
    assert first.trace == same.trace != second.trace
    assert first.unreached == ()
    assert first.kept > 0
    assert first.operations > 100


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("transformer", {}),
        ("deltanet", {"chunk": 1}),
        ("atlas", {"window.length": 4, "newton_schulz.granularity": "chunk"}),
        ("samba", {"hybrid.window": 32}),
    ],
)
def test_a_long_context_is_counted_from_short_ones_exactly(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_module, "REAL", 0)
    model = resolve(tiny(name, **{"chunk": 64, "backbone.layers": 2, **options}))
    lengths = short_lengths(model, 640)
    assert lengths == [128, 192, 256, 320]
    key = json.dumps({**model, "name": ""}, sort_keys=True)
    counted: list[int] = []
    whole = cost_module._count_whole

    def counting(spec: str, vocab: int, context: int, allow: tuple[str, ...]) -> Work:
        counted.append(context)
        return whole(spec, vocab, context, allow)

    monkeypatch.setattr(cost_module, "_count_whole", counting)
    assert count_work(model, 11, 640) == whole(key, 11, 640, ())
    assert counted == (lengths if name in ("transformer", "samba") else lengths[:3])


def test_what_is_no_square_is_counted_itself() -> None:
    def counts(length: int) -> tuple[int, ...]:
        return (length**2 + 3 * length, length**3)

    assert extrapolate(lambda n: counts(n)[:1], [2, 4, 6, 8], 100) == [10_300]
    assert extrapolate(counts, [2, 4, 6, 8], 100) is None
    assert extrapolate(lambda n: counts(n)[:1], [2, 4, 6, 8], 101) is None


def test_short_lengths_hold_whole_chunks_and_windows() -> None:
    atlas = resolve(tiny("atlas", chunk=48, **{"window.length": 500}))
    assert short_lengths(atlas, 192 * 20) == [192 * i for i in (4, 5, 6, 7)]
    assert short_lengths(atlas, 192 * 20 + 64) == []
    assert short_lengths(atlas, 192 * 13) == []
