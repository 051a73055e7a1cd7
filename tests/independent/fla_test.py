"""Shipped presets against flash-linear-attention's references, which others wrote and use.

The references (fla-core 0.6.0, MIT) are loops over tokens in float32. They get the queries, keys,
values and gates of a preset; a step size multiplies its value where the reference has none. Where a
reference says something else than its paper, a test says what, so that a new release is noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, normalize

from ablate.components.bias import L2
from ablate.components.dims import Dims
from ablate.components.feature_map import Identity
from ablate.components.inner_optimizer import GradientDescent, Momentum
from ablate.components.memory import MatrixMemory
from ablate.components.multi_step import interleave
from ablate.components.neural_memory import NeuralMemory
from ablate.components.recurrence.chunked import run_chunked
from ablate.components.recurrence.coefficients import Gates
from ablate.components.retention import ScalarRetention
from ablate.components.window import OmegaWindow
from ablate.trial.build import build_model
from ablate.trial.space import apply, compose_model

Load = Callable[[str], ModuleType]
WIDTH, HEADS, TOKENS = 6, 2, 48
DIMS = Dims(model=12, heads=HEADS, key=WIDTH, value=WIDTH)
ROUNDING = 2e-6  # of float32, relative to the largest output


@dataclass(frozen=True)
class Sample:
    """What a preset's mixer was given, its gates, and what it said; all `[b t h ...]`."""

    q: Tensor
    k: Tensor
    v: Tensor
    keep: Tensor
    lr: Tensor
    x: Tensor
    y: Tensor
    mixer: Any

    @property
    def scaled(self) -> Tensor:
        """Queries for a reference that divides them by the root of their width."""
        return self.q * WIDTH**0.5

    @property
    def write(self) -> Tensor:
        """lr v."""
        return self.v * self.lr[..., None]


def mixer_of(name: str, **changes: Any) -> Any:
    spec: Any = compose_model(name)
    small = {"backbone.dim": 12, "backbone.heads": HEADS, "backbone.layers": 1}
    for key, value in {**small, **{k.replace("__", "."): v for k, v in changes.items()}}.items():
        spec = apply(spec, key, value)
    block: Any = build_model(spec, 5, seed=0, dtype=torch.float64).blocks[0]
    return block.mix.mixer


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and the block's input."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(2, TOKENS, *shape, dtype=torch.float64, generator=generator)

    q, k = (normalize(normal(HEADS, WIDTH), dim=-1) for _ in range(2))
    return q, k, normal(HEADS, WIDTH), 2 * normal(12)


def sample(name: str, **changes: Any) -> Sample:
    mixer = mixer_of(name, **changes)
    q, k, v, x = inputs()
    with torch.no_grad():
        gates, _ = mixer.gates(x, mixer.initial_state(2, dtype=torch.float64))
        y, _ = mixer(q, k, v, x)
        # A learned start is read and, in the delta rules, corrected: the references start from 0.
        assert not any(start.any() for start in mixer.initial_state(1).weights)
    return Sample(q, k, v, gates.keep, gates.lr, x, y, mixer)


def head_first(*parts: Tensor) -> list[Tensor]:
    return [part.transpose(1, 2) for part in parts]


def linear(fla: Load, s: Sample) -> Tensor:
    return fla("linear_attn").naive_recurrent_linear_attn(s.q, s.k, s.write, scale=1.0)[0]


def retention(fla: Load, s: Sample) -> Tensor:
    said = fla("retention").naive_retention(*head_first(s.scaled, s.k, s.write))
    return said.transpose(1, 2)


def simple_gla(fla: Load, s: Sample) -> Tensor:
    run = fla("simple_gla").naive_recurrent_simple_gla
    return run(s.q, s.k, s.write, s.keep.log(), scale=1.0)[0]


def simple_gla_in_chunks(fla: Load, s: Sample) -> Tensor:
    run = fla("simple_gla").naive_chunk_simple_gla
    return run(s.q, s.k, s.write, s.keep.log(), scale=1.0, chunk_size=16)[0]


def gla(fla: Load, s: Sample) -> Tensor:
    return fla("gla").naive_recurrent_gla(s.scaled, s.k, s.write, s.keep.log())[0]


def delta(fla: Load, s: Sample) -> Tensor:
    run = fla("delta_rule").delta_rule_recurrence
    return run(*head_first(s.scaled, s.k, s.v, s.lr))[0].transpose(1, 2)


def gated_delta(fla: Load, s: Sample) -> Tensor:
    run = fla("gated_delta_rule").naive_recurrent_gated_delta_rule
    return run(s.q, s.k, s.v, beta=s.lr, g=s.keep.log(), scale=1.0)[0]


def gated_delta_in_chunks(fla: Load, s: Sample) -> Tensor:
    run = fla("gated_delta_rule").naive_chunk_gated_delta_rule
    return run(s.q, s.k, s.v, beta=s.lr, g=s.keep.log(), scale=1.0, chunk_size=16)[0]


def kimi_delta(fla: Load, s: Sample) -> Tensor:
    run = fla("kda").naive_recurrent_kda
    return run(s.q, s.k, s.v, s.keep.log(), s.lr, scale=1.0)[0]


def diagonal_plus_rank_one(fla: Load, s: Sample) -> Tensor:
    """RWKV-7's transition diag(a) - lr k k^T, by the general form diag(a) + alpha beta^T."""
    run = fla("generalized_delta_rule.dplr").dplr_recurrence
    alpha, beta = -s.lr[..., None] * s.k, s.k
    parts = head_first(s.scaled, s.k, s.write, alpha, beta, s.keep.log())
    return run(*(part.float() for part in parts))[0].transpose(1, 2)


def mesa(fla: Load, s: Sample) -> Tensor:
    ridge = torch.full((HEADS, WIDTH), s.mixer.inner_optimizer.ridge)
    run = fla("mesa_net").naive_mesa_net_exact
    return run(s.q, s.k, s.v, s.keep.log(), ridge, s.lr)[0]


def tied_gla(fla: Load, s: Sample) -> Tensor:
    """HGRN2 is gated linear attention whose keys are what the gates forget."""
    return fla("gla").naive_recurrent_gla(s.scaled, 1 - s.keep, s.v, s.keep.log())[0]


def delta_product(fla: Load, s: Sample) -> Tensor:
    steps = s.mixer.inner_optimizer.steps
    with torch.no_grad():
        keys, values, _ = s.mixer.inner_optimizer.further(s.x, None, torch.float64)
    k, v = interleave(keys, s.k), interleave(values, s.v)
    run = fla("gated_delta_product").naive_recurrent_gated_delta_product
    decay = s.keep[:, ::steps].log()
    return run(s.q, k, v, decay, s.lr, scale=1.0, num_householder=steps)[0]


ZERO = {"memory__learned_initial": False}
CASES: list[tuple[str, dict[str, Any], Callable[[Load, Sample], Tensor]]] = [
    ("linear_attention", {}, linear),
    ("retnet", {}, retention),
    ("lightning", {}, simple_gla),
    ("mamba2", {}, simple_gla),
    ("mamba2", {}, simple_gla_in_chunks),
    ("gla", {}, gla),
    ("deltanet", ZERO, delta),
    ("gated_deltanet", ZERO, gated_delta),
    ("gated_deltanet", ZERO, gated_delta_in_chunks),
    ("gated_deltanet", {**ZERO, "retention": "channel"}, kimi_delta),
    ("rwkv7", ZERO, diagonal_plus_rank_one),
    ("hgrn2", {}, tied_gla),
    ("deltaproduct", ZERO, delta_product),
    ("deltaproduct", {**ZERO, "inner_optimizer__steps": 3}, delta_product),
    ("mesa", {}, mesa),
]


@pytest.mark.parametrize(
    ("name", "changes", "reference"), CASES, ids=[f"{name}-{f.__name__}" for name, _, f in CASES]
)
def test_a_preset_says_what_the_reference_says(
    fla: Load, name: str, changes: dict[str, Any], reference: Callable[[Load, Sample], Tensor]
) -> None:
    found = sample(name, **changes)
    assert_same(reference(fla, found), found.y)


def test_the_references_tell_neighbours_apart(fla: Load) -> None:
    """The comparison could fail: the gated delta rule is not the one with an undecayed error."""
    found = sample("gated_deltanet", **ZERO, inner_optimizer__prediction="undecayed")
    assert (gated_delta(fla, found) - found.y).abs().max() > 0.01 * found.y.abs().max()


def assert_same(said: Tensor, y: Tensor) -> None:
    assert said.shape == y.shape
    assert y.std() > 0.05
    assert (said - y).abs().max() <= 5 * ROUNDING * y.abs().max()


def test_gated_slot_attention_is_the_references(fla: Load) -> None:
    mixer, (q, k, v, x) = mixer_of("gsa"), inputs()
    with torch.no_grad():
        y, _ = mixer(q, k, v, x)
        keep, scale = mixer.forget(x), mixer.log_scale.exp()
    assert (scale == scale[0]).all()
    run = fla("gsa").naive_recurrent_gsa
    assert_same(run(q, k, v, 1 - keep, keep.log(), scale=scale[0].item())[0], y)


@pytest.mark.parametrize("window", [None, 7])
def test_softmax_attention_is_the_references(fla: Load, window: int | None) -> None:
    mixer = mixer_of("transformer", memory__rope=False, memory__window=window)
    q, k, v, x = inputs()
    with torch.no_grad():
        y, _ = mixer(q, k, v, x)
        scale = mixer.log_scale.exp()[0].item()
    run = fla("attn").naive_parallel_attn
    assert_same(run(q, k, v, scale=scale, window_size=window)[0], y)


class WithOne(nn.Module):
    """phi(k) = (k, 1): the last column of a matrix is then a bias."""

    width = WIDTH + 1

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, torch.ones_like(x[..., :1])), dim=-1)


def layer(
    *, features: nn.Module, optimizer: type[nn.Module], norm: bool, chunk: int
) -> NeuralMemory:
    made: Any = optimizer(DIMS, lr_max=1.0)
    width: Any = features.width
    built = NeuralMemory(
        DIMS,
        memory=MatrixMemory(DIMS, width, residual=norm, norm=norm, learned_initial=False),
        feature_map=features,
        window=OmegaWindow(DIMS, length=1),
        bias=L2(DIMS),
        retention=ScalarRetention(DIMS),
        inner_optimizer=made,
        chunk=chunk,
    )
    for module in built.modules():
        init: Any = getattr(module, "init_weights", None)
        if init is not None:
            init(lambda _: torch.Generator().manual_seed(0))
    return built.double()


def drawn(seed: int, tokens: int = 32) -> tuple[list[Tensor], list[Tensor]]:
    """Queries, keys and values; and three gates."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, tokens, HEADS, WIDTH)
    parts = [torch.randn(*shape, generator=generator).double() for _ in range(3)]
    gates = [torch.rand(*shape[:3], generator=generator).double() for _ in range(3)]
    return [normalize(parts[0], dim=-1), normalize(parts[1], dim=-1), parts[2]], gates


def test_momentum_and_delta_rule_are_titans_with_a_matrix(fla: Load) -> None:
    """S = theta S + lr grad at M_{t-1}, M = alpha M - S: fla's momentum delta rule with p = k."""
    built = layer(features=Identity(DIMS), optimizer=Momentum, norm=False, chunk=1)
    (q, k, v), (keep, lr, theta) = drawn(0)
    lr = 0.3 * lr
    gates = Gates(keep=keep, lr=lr, theta=theta, gamma=torch.ones_like(lr)[..., None])
    state = built.initial_state(2, dtype=torch.float64)
    with torch.no_grad():
        y, last = run_chunked(built.rule(), q, k, v, gates, state)
    said, final = fla("momentum_delta_rule").recurrent_momentum_delta_rule_ref(
        q, k, v, keep.log(), theta.log(), k, torch.ones_like(lr), lr, scale=1.0,
        output_final_state=True,
    )  # fmt: skip
    assert_same(said, y)
    for theirs, ours in zip(final, (last.weights[0], last.momentum[0]), strict=True):
        assert (theirs.mT - ours).abs().max() <= 5 * ROUNDING * ours.abs().max()


@dataclass(frozen=True)
class TTT:
    """TTT-Linear in mini-batches of 8, with a bias in the memory, by both."""

    q: Tensor
    said: Tensor
    weights: Tensor  # b h e d+1, the last column is the bias
    their_said: Tensor
    their_weights: Tensor
    gain: Tensor  # h e
    offset: Tensor


def ttt(fla: Load, lr: Tensor) -> TTT:
    built = layer(features=WithOne(), optimizer=GradientDescent, norm=True, chunk=8)
    output: Any = built.memory.output
    with torch.no_grad():
        noise = torch.randn(2, HEADS, WIDTH, generator=torch.Generator().manual_seed(5))
        output.gain.copy_(1 + 0.3 * noise[0])
        output.offset.copy_(0.3 * noise[1])
        qkv, _ = drawn(3)
        gates = Gates(torch.ones_like(lr), lr, None, torch.ones_like(lr)[..., None])
        state = built.initial_state(2, dtype=torch.float64)
        y, last = run_chunked(built.rule(), *qkv, gates, state)
    their_y, matrix, bias = fla("ttt").chunk_ttt_linear_ref(
        *(part.float() for part in qkv), output.gain.data, output.offset.data,
        lr.float()[..., None], scale=1.0, mini_batch_size=8, output_final_state=True,
    )  # fmt: skip
    theirs = torch.cat((matrix.mT, bias.mT), dim=-1)
    return TTT(qkv[0], y, last.weights[0], their_y, theirs, output.gain.data, output.offset.data)


def test_ttt_linear_learns_the_same_memory(fla: Load) -> None:
    found = ttt(fla, torch.full((2, 32, HEADS), 0.2, dtype=torch.float64))
    assert found.weights.std() > 0.05
    worst = (found.their_weights - found.weights).abs().max()
    assert worst <= 10 * ROUNDING * found.weights.abs().max()


def test_fla_reads_ttt_with_another_residual(fla: Load) -> None:
    """TTT (section 2.3) adds the query to the norm; fla 0.6.0 adds what the memory said."""
    found = ttt(fla, torch.full((2, 32, HEADS), 0.2, dtype=torch.float64))
    query = found.q[:, -1]
    z = torch.einsum("bhef,bhf->bhe", found.weights, WithOne()(query))
    normed = layer_norm(z, (WIDTH,), eps=1e-6) * found.gain + found.offset
    torch.testing.assert_close(found.said[:, -1], query + normed, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.their_said[:, -1].double(), z + normed, rtol=1e-4, atol=1e-4)
    assert (z - query).abs().max() > 0.1


def test_fla_takes_the_last_tokens_step_for_a_whole_mini_batch_of_ttt(fla: Load) -> None:
    """Here every token has its own step, as TTT's gate says; fla uses the last one for all."""
    _, (lr, _, _) = drawn(4)
    found = ttt(fla, 0.3 * lr)
    assert (found.their_weights - found.weights).abs().max() > 0.05
    last = (0.3 * lr)[:, 7::8].repeat_interleave(8, dim=1)
    shared = ttt(fla, last)
    worst = (found.their_weights - shared.weights).abs().max()
    assert worst <= 10 * ROUNDING * shared.weights.abs().max()


def test_fla_divides_only_half_of_the_layer_norms_gradient_in_titans(fla: Load) -> None:
    """D g is left whole where (D g - sum g) / (D sigma) is meant: its Titans learns otherwise."""
    generator = torch.Generator().manual_seed(2)
    k, v = torch.randn(2, 1, 1, 1, WIDTH, generator=generator)
    start = torch.randn(1, 1, WIDTH, WIDTH, generator=generator)
    gain, offset = torch.ones(1, WIDTH), torch.zeros(1, WIDTH)
    zero = torch.zeros(1, 1, 1, 1)
    _, end = fla("titans").titans_linear(
        k, k, v, gain, offset, zero + 0.5, zero, zero, 1e-6, 1, start, True
    )
    matrix = start.clone().requires_grad_()
    loss = 0.5 * (layer_norm(k @ matrix, (WIDTH,), eps=1e-6) + k - v).square().sum()
    (gradient,) = torch.autograd.grad(loss, matrix)
    theirs = start - end
    assert (theirs - gradient).norm() > gradient.norm()
    corrected = theirs - k.mT @ _undivided(k @ start, k - v)
    torch.testing.assert_close(corrected, gradient, rtol=1e-4, atol=1e-4)


def _undivided(z: Tensor, rest: Tensor) -> Tensor:
    """What too much of D g stays: D g - g / sigma, for gain 1."""
    error = layer_norm(z, (WIDTH,), eps=1e-6) + rest
    return WIDTH * error - error / torch.sqrt(z.var(-1, correction=0, keepdim=True) + 1e-6)
