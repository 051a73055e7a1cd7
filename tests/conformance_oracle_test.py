"""Presets against the definition: one token after the other, inner gradients by autograd.

The mixer is the one that the preset's YAML makes, chunk, window and all; only what the definition
has no word for (channels, other losses and retentions) is left to the tests of the components.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.components.memory import GatedMLPMemory
from ablate.components.newton_schulz import NewtonSchulz
from ablate.components.recurrence.oracle import Definition, run_oracle
from ablate.conformance.subject import Subject
from ablate.conformance.suite import shrink
from ablate.trial.space import compose_model

TOKENS = 11
PRESETS = (
    "atlas",
    "atlas_plus",
    "deltanet",
    "dla",
    "linear_attention",
    "mamba2",
    "omeganet",
    "retnet",
    "swla",
    "titans_gd",
    "titans_lmm",
    "ttt_linear",
    "ttt_mlp",
)


def definition(mixer: Any, bias: str) -> Definition:
    orthogonal, output, optimizer = mixer.newton_schulz, mixer.memory.output, mixer.inner_optimizer
    steps: dict[str, Any] = {}
    if orthogonal is not None:
        assert isinstance(orthogonal, NewtonSchulz)
        steps = {
            "steps": orthogonal.steps,
            "group": orthogonal.group(mixer.chunk),
            "scale": orthogonal.scale,
            "coefficients": orthogonal.coefficients,
            "eps": orthogonal.eps,
        }
    return Definition(
        bias=bias,
        chunk=mixer.chunk,
        window=mixer.window.length,
        step_inside=optimizer.step_inside,
        gated=isinstance(mixer.memory, GatedMLPMemory),
        residual=output.residual,
        norm=(output.gain, output.offset) if output.norm else None,
        **steps,
    )


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_its_definition(name: str) -> None:
    spec: Any = shrink(compose_model(name))
    bias = {"L2": "l2", "Dot": "dot"}[spec["bias"]["_target_"].rpartition(".")[2]]
    block: Any = Subject(spec).build_shaken().blocks[0]
    mixer = block.mix.mixer
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(2, TOKENS, *shape, generator=generator, dtype=torch.float64)

    q, k, v, x = normal(2, 4), normal(2, 4), normal(2, 4), normal(8)
    state = mixer.initial_state(2, dtype=torch.float64)
    with torch.no_grad():
        y, last = mixer(q, k, v, x)
        gates, _ = mixer.gates(x, state)
    said, weights, _ = run_oracle(
        definition(mixer, bias), mixer.feature_map, q, k, v, gates, state.weights
    )
    assert y.std() > 0.01
    torch.testing.assert_close(said.detach(), y, rtol=1e-8, atol=1e-8)
    for one, other in zip(weights, last.weights, strict=True):
        torch.testing.assert_close(one.detach(), other, rtol=1e-8, atol=1e-8)
