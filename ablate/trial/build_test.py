from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ablate.errors import UserError
from ablate.trial.build import build_model, initialise
from ablate.trial.space import Model, apply, choices, compose_model
from ablate.trial.train import token_loss

TINY = {"backbone.dim": 16, "backbone.heads": 2, "backbone.layers": 2, "chunk": 4}


def tiny(name: str, **settings: Any) -> Model:
    model = compose_model(name)
    layers = max(2, (model["hybrid"] or {}).get("period", 2))
    for key, value in {**TINY, "backbone.layers": layers, **settings}.items():
        # Rules that are only exact token by token fix their chunk.
        if not (key == "chunk" and model["chunk"] in (None, 1)):
            model = apply(model, key, value)
    return model


def step(model: Model, *, seed: int = 0) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of one fixed batch."""
    built = build_model(model, 11, seed=seed)
    tokens = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(5))
    loss = token_loss(built(tokens[:, :-1])[0], tokens[:, 1:])
    loss.backward()
    grads = {name: p.grad for name, p in built.named_parameters() if p.grad is not None}
    return loss.item(), grads


@pytest.mark.parametrize("name", choices("model"))
def test_every_preset_runs_forward_and_backward(name: str) -> None:
    loss, grads = step(tiny(name))
    assert 1.5 < loss < 4.0, "about log(11) = 2.4 at the start"
    assert all(grad.isfinite().all() for grad in grads.values())
    reached = sum(bool(grad.abs().sum() > 0) for grad in grads.values())
    assert reached >= 0.9 * len(grads)


@pytest.mark.parametrize("name", choices("model"))
def test_the_meta_device_gives_the_same_shapes(name: str) -> None:
    real = build_model(tiny(name), 11, seed=0)
    meta = build_model(tiny(name), 11, seed=0, device="meta")
    assert {n: p.shape for n, p in real.named_parameters()} == {
        n: p.shape for n, p in meta.named_parameters()
    }
    assert all(parameter.is_meta for parameter in meta.parameters())


def test_a_difference_that_changes_nothing_is_bit_equal() -> None:
    one = tiny("deltanet", **{"window.normalised": False})
    other = tiny("deltanet", **{"window.normalised": True})  # divides by a length of 1
    assert one != other
    (loss, grads), (other_loss, other_grads) = step(one), step(other)
    assert loss == other_loss
    assert all(torch.equal(grad, other_grads[name]) for name, grad in grads.items())


def test_swapping_one_component_leaves_all_other_initial_weights() -> None:
    mlp, matrix = tiny("atlas"), apply(tiny("atlas"), "memory", "matrix")
    first = dict(build_model(mlp, 11, seed=3).named_parameters())
    second = dict(build_model(matrix, 11, seed=3).named_parameters())
    shared = first.keys() & second.keys()
    assert {name.rpartition(".")[0] for name in first.keys() ^ second.keys()} == {
        "blocks.0.mix.mixer.memory",
        "blocks.1.mix.mixer.memory",
    }
    assert all(torch.equal(first[name], second[name]) for name in shared)
    other_seed = dict(build_model(mlp, 11, seed=4).named_parameters())
    assert not torch.equal(first["head.weight"], other_seed["head.weight"])


def test_layers_and_roles_draw_different_numbers() -> None:
    weights = dict(build_model(tiny("transformer"), 11, seed=0).named_parameters())
    assert not torch.equal(weights["blocks.0.mlp.up.weight"], weights["blocks.1.mlp.up.weight"])
    assert not torch.equal(weights["blocks.0.mlp.up.weight"], weights["blocks.0.mlp.gate.weight"])
    spread = weights["blocks.0.mlp.up.weight"].std().item()
    assert spread == pytest.approx(16**-0.5, rel=0.15)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("window", -4, "s.yaml: window: OmegaWindow.length=-4: must be >= 1"),
        ("feature_map.degree", 0, "s.yaml: feature_map: Polynomial.degree=0: must be >= 1"),
        ("backbone.dim", 0, "s.yaml: backbone: backbone.dim=0: must be a whole number >= 1"),
        ("window", "omgea", "'omgea' is no choice of window. Did you mean 'omega'?"),
        ("window.length", "long", "s.yaml: window.length is 'long': must be a whole number."),
        ("chunk", 0, "s.yaml: chunk is 0; it must be a whole number >= 1."),
    ],
)
def test_bad_values_are_the_users_mistake_and_name_the_key(
    key: str, value: object, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        build_model(apply(tiny("atlas"), key, value), 11, seed=0, device="meta", where="s.yaml")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        (
            "deep_transformer",
            "inner_optimizer",
            "momentum",
            "s.yaml: inner_optimizer Momentum with",
        ),
        ("atlas", "feature_map", "exponential", "s.yaml: inner_optimizer Muon with an exponential"),
        ("dot", "feature_map.span", 4, "s.yaml: feature_map.span=4 needs bias dot and chunk null"),
        (
            "deep_transformer",
            "feature_map",
            "identity",
            "s.yaml: chunk is None; it must be a whole",
        ),
    ],
)
def test_an_exponential_map_that_does_not_exist_is_refused_with_the_reason(
    name: str, key: str, value: object, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        build_model(apply(tiny(name), key, value), 11, seed=0, device="meta", where="s.yaml")
    assert str(caught.value).startswith(message)


def test_a_hybrid_that_does_not_exist_is_refused_with_the_reason() -> None:
    attention = apply(tiny("transformer"), "hybrid", "mac")
    with pytest.raises(UserError, match="s.yaml: hybrid mac with SoftmaxAttention: mac reads the"):
        build_model(attention, 11, seed=0, device="meta", where="s.yaml")
    shallow = apply(tiny("atlas_alternate"), "hybrid.period", 3)
    with pytest.raises(UserError, match="^s.yaml: hybrid alternate with period=3 and backbone.la"):
        build_model(shallow, 11, seed=0, device="meta", where="s.yaml")


class Bare(nn.Module):
    """Has a parameter and no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(2))


class Forgetful(Bare):
    """Has a rule that does nothing."""

    def init_weights(self, stream: Callable[[str], torch.Generator]) -> None:
        """Set nothing."""


def test_a_parameter_without_a_rule_or_left_unset_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"0 \(Bare\) has parameters scale and no rule"):
        initialise(nn.Sequential(Bare()), 0)
    with pytest.raises(ValueError, match="0.scale was left unset"):
        initialise(nn.Sequential(Forgetful()), 0)


def test_shapes_alone_do_not_load_the_compiler() -> None:
    code = """
import sys
from ablate.trial.build import build_model, compose_model
model = compose_model("atlas")
built = build_model(model, 64, seed=0, device="meta")
assert all(parameter.is_meta for parameter in built.parameters())
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
