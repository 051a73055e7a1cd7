from __future__ import annotations

import time

import pytest

from ablate.errors import UserError
from ablate.trial.bench import ShapeBench
from ablate.trial.build import apply, compose_model, resolve
from ablate.trial.cost import count_parameters


def test_counts_equal_those_of_whole_models() -> None:
    bench = ShapeBench()
    for name in ("transformer", "samba", "titans_mac", "titans_mag", "rwkv7", "deep_transformer"):
        model = resolve(compose_model(name))
        for vocab in (64, 100):
            assert bench.parameters(model, vocab) == count_parameters(model, vocab), name


@pytest.mark.parametrize("preset", ["atlas", "titans_mac", "atlas_alternate"])
def test_counts_follow_every_choice(preset: str) -> None:
    bench = ShapeBench()
    base = compose_model(preset)
    changes = [
        {},
        {"memory": "matrix"},
        {"memory": "gated_mlp", "feature_map": "identity"},
        {"feature_map": "polynomial", "retention": "none"},
        {"inner_optimizer": "gd", "backbone.dim": 96},
        {"backbone.layers": 6, "window": 1},
    ]
    for change in changes:
        model = base
        for key, value in change.items():
            model = apply(model, key, value)
        model = resolve(model)
        assert bench.parameters(model, 64) == count_parameters(model, 64), change


def test_what_does_not_go_together_is_found_and_a_thousand_take_a_second() -> None:
    bench = ShapeBench()
    model = resolve(compose_model("atlas"))
    began = time.process_time()
    for window in range(1, 501):
        for chunk in (4, 16):
            one = {**model, "chunk": chunk, "window": {**model["window"], "length": window}}
            bench.parameters(one, 64)
    assert time.process_time() - began < 2.0
    bad = {**model, "window": {**model["window"], "length": 0}}
    with pytest.raises(UserError, match="cell x: .*length"):
        bench.parameters(bad, 64, where="cell x")
