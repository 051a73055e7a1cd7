"""The identities that the papers' equations imply, each on the real modules, in float64.

O1 and O2 (kernels, rank of the lift), O3 to O5 (Omega by chunks and online), O11 and O12 (orders of
decay, implicit step) and the limit cases between systems are here. The others stand beside what
they are about: O6 and O7 (DeepTransformers, Dot) in exponential_test and exponential_reads_test, O8
(Newton-Schulz) in newton_schulz_test, O9 and O10 (Memora's logits, the elastic net and L_q as
minimisers) in nonlinear_retention_test, O13 (recursive least squares) in
recurrence/least_squares_test, O14 (attention as a regression) in attention_test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, normalize

from ablate.components.bias import Huber, Lp
from ablate.components.dims import Dims
from ablate.components.feature_map import Polynomial
from ablate.components.neural_memory import NeuralMemory
from ablate.components.nonlinear_retention import LqRetention
from ablate.components.recurrence.coefficients import Gates
from ablate.components.retention import NoRetention

MakeLayer = Callable[..., NeuralMemory]
TOKENS = 9


def inputs(layer: NeuralMemory, tokens: int = TOKENS) -> tuple[Tensor, ...]:
    generator, dims = torch.Generator().manual_seed(3), layer.dims

    def normal(*shape: int) -> Tensor:
        return torch.randn(1, tokens, *shape, dtype=torch.float64, generator=generator)

    q, k = (normalize(normal(dims.heads, dims.key), dim=-1) for _ in range(2))
    return q, k, normal(dims.heads, dims.value), normal(dims.model)


def gates_of(layer: NeuralMemory, x: Tensor) -> Gates:
    return layer.gates(x, layer.initial_state(1, dtype=torch.float64))[0]


def products(rate: Tensor) -> Tensor:
    """T[t, n] = rate_{n+1} ... rate_t."""
    n = len(rate)
    rows = [[rate[s + 1 : t + 1].prod() if s <= t else rate.new_zeros(()) for s in range(n)]
            for t in range(n)]  # fmt: skip
    return torch.stack([torch.stack(row) for row in rows])


def band(gamma: Tensor) -> Tensor:
    """The window's weight of token i at token t."""
    n, c = gamma.shape
    made = gamma.new_zeros(n, n)
    for t in range(n):
        for j in range(min(c, t + 1)):
            made[t, t - j] = gamma[t, j]
    return made


@pytest.mark.parametrize("construction", ["monomial", "kronecker"])
def test_o1_lifts_have_the_polynomial_kernel_and_o2_its_rank(construction: str) -> None:
    dims, a = Dims(5, 2, 4, 3), [1 / math.factorial(i) for i in range(4)]
    lift = Polynomial(dims, degree=3, construction=construction).double()
    lift.init_weights(lambda _: torch.Generator())
    q, k = torch.randn(2, 200, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    dot = (q * k).sum(-1)
    want = sum(a[i] * dot**i for i in range(4))
    torch.testing.assert_close((lift(q) * lift(k)).sum(-1), want, rtol=1e-6, atol=1e-6)
    assert torch.linalg.matrix_rank(lift(k)) == math.comb(4 + 3, 3)


@pytest.mark.parametrize("optimizer", ["gd", "momentum"])
def test_o3_a_linear_chunk_is_its_dual_form(make_layer: MakeLayer, optimizer: str) -> None:
    """M_end = B M_0 - E diag(Om_b) K and Y = B M_0 Q - (Om * Q K^T) E^T with Om = A T Gamma."""
    layer = make_layer("matrix", optimizer, window=3, chunk=TOKENS, degree=1, key=4, value=3)
    q, k, v, x = inputs(layer)
    y, state = layer(q, k, v, x)
    gates = gates_of(layer, x)
    for head in range(2):
        keys, queries, values = k[0, :, head], q[0, :, head], v[0, :, head]
        start = layer.memory.initial()[0][head]  # type: ignore[operator]
        error = keys @ start.mT - values
        weights = gates.lr[0, :, head, None] * band(gates.gamma[0, :, head])
        if gates.theta is not None:
            weights = products(gates.theta[0, :, head]) @ weights
        weights = products(gates.keep[0, :, head]) @ weights
        left = gates.keep[0, :, head].cumprod(0)
        reads = left[:, None] * queries @ start.mT - (weights * (queries @ keys.mT)) @ error
        end = left[-1] * start - error.mT @ (weights[-1, :, None] * keys)
        torch.testing.assert_close(y[0, :, head], reads, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(state.weights[0][0, head], end, rtol=1e-11, atol=1e-12)


def test_o4_a_deep_chunk_is_its_hidden_and_its_output_read(make_layer: MakeLayer) -> None:
    layer = make_layer("mlp", "gd", window=3, chunk=TOKENS, degree=1, key=4)
    q, k, v, x = inputs(layer)
    y, state = layer(q, k, v, x)
    gates = gates_of(layer, x)
    for head in range(2):
        keys, queries, values = k[0, :, head], q[0, :, head], v[0, :, head]
        w2, w1 = (w[head] for w in layer.memory.initial())  # type: ignore[operator]
        z = (keys @ w2.mT).detach().requires_grad_()
        hidden = gelu(z)
        slope = torch.autograd.grad(hidden.sum(), z, retain_graph=True)[0]
        error = keys + hidden @ w1.mT - values
        inner = (error @ w1) * slope
        weights = gates.lr[0, :, head, None] * band(gates.gamma[0, :, head])
        weights = products(gates.keep[0, :, head]) @ weights
        left = gates.keep[0, :, head].cumprod(0)[:, None]
        read = gelu(left * (queries @ w2.mT) - (weights * (queries @ keys.mT)) @ inner)
        out = queries + left * (read @ w1.mT) - (weights * (read @ hidden.mT)) @ error
        torch.testing.assert_close(y[0, :, head], out, rtol=1e-11, atol=1e-12)
        last = weights[-1, :, None]
        for got, want in (
            (state.weights[0], left[-1] * w2 - inner.mT @ (last * keys)),
            (state.weights[1], left[-1] * w1 - error.mT @ (last * hidden)),
        ):
            torch.testing.assert_close(got[0, head], want, rtol=1e-11, atol=1e-12)


def test_o5_the_exact_omega_rule_has_a_closed_form_with_a_plus(make_layer: MakeLayer) -> None:
    """M_t = M_{t-1} (keep I - sum g k k^T) + sum g v k^T: Atlas Eq. 11 prints a minus."""
    layer = make_layer("matrix", "gd", window=3, chunk=1, degree=1, key=4, value=3)
    q, k, v, x = inputs(layer)
    y, _ = layer(q, k, v, x)
    gates, eye = gates_of(layer, x), torch.eye(4, dtype=torch.float64)
    for head in range(2):
        m = layer.memory.initial()[0][head]  # type: ignore[operator]
        for t in range(TOKENS):
            seen = [t - j for j in range(min(3, t + 1))]
            size = gates.lr[0, t, head] * gates.gamma[0, t, head, : len(seen)]
            keys, values = k[0, seen, head], v[0, seen, head]
            m = m @ (gates.keep[0, t, head] * eye - keys.mT @ (size[:, None] * keys))
            m = m + values.mT @ (size[:, None] * keys)
            torch.testing.assert_close(y[0, t, head], m @ q[0, t, head], rtol=1e-11, atol=1e-12)


def test_o11_the_two_orders_of_decay_are_one_after_rescaling(make_layer: MakeLayer) -> None:
    """M (a I - b k k^T) + b v k^T is a M (I - b' k k^T) + b' v' k^T with b' = b / a, v' = a v."""
    titans, delta = (
        make_layer("matrix", kind, window=1, chunk=1, degree=1, key=4, value=3, gates="none")
        for kind in ("gd", "decayed")
    )
    q, k, v, x = inputs(titans)
    gates = gates_of(titans, x)
    keep = gates.keep.unsqueeze(-1)
    state = delta.initial_state(1, dtype=torch.float64)
    rescaled = Gates(gates.keep, gates.lr / gates.keep, None, gates.gamma)
    want, _ = titans(q, k, v, x)
    plain, _ = delta(q, k, v, x)
    same, _ = delta.run(q, k, keep * v, x, rescaled, state)
    assert (plain - want).abs().max() > 1e-3
    torch.testing.assert_close(same, want, rtol=1e-11, atol=1e-12)


def test_o12_longhorn_is_the_implicit_step(make_layer: MakeLayer) -> None:
    """M_t - M_{t-1} = -lr (M_t k - v) k^T, the error being that after the write."""
    layer = make_layer(
        "matrix", "implicit", window=1, chunk=1, degree=1, key=4, value=3, gates="none",
        retention=NoRetention,
    )  # fmt: skip
    q, k, v, x = inputs(layer)
    lr, state = gates_of(layer, x).lr, layer.initial_state(1, dtype=torch.float64)
    for t in range(TOKENS):
        before = state.weights[0]
        _, state = layer(*(part[:, t : t + 1] for part in (q, k, v, x)), state)
        after = state.weights[0]
        error = torch.einsum("bhed,bhd->bhe", after, k[:, t]) - v[:, t]
        step = lr[:, t, :, None, None] * error.unsqueeze(-1) * k[:, t].unsqueeze(-2)
        torch.testing.assert_close(after - before, -step, rtol=1e-11, atol=1e-12)


PLAIN: dict[str, Any] = {"memory": "mlp", "optimizer": "gd", "window": 1, "degree": 1}
SQUARE = partial(Lp, p=2.0)


@pytest.mark.parametrize(
    ("special", "general"),
    [
        ({}, {"bias": partial(Huber, delta=1e9)}),
        ({}, {"bias": partial(Huber, delta=1e9, form="switched")}),
        ({}, {"bias": SQUARE, "retention": partial(LqRetention, q=2.0)}),
        ({"optimizer": "momentum"}, {"optimizer": "muon", "steps": 0}),
    ],
    ids=["Yaad", "Yaad switched", "Moneta p=q=2", "Atlas without Newton-Schulz"],
)
def test_systems_meet_in_their_limits(
    make_layer: MakeLayer, special: dict[str, Any], general: dict[str, Any]
) -> None:
    """With constant gates: Titans without momentum, and Titans, as limits of the others."""
    made = [make_layer(**{**PLAIN, **options}) for options in (special, general)]
    with torch.no_grad():
        for layer in made:
            for name, part in layer.named_parameters():
                if "project.weight" in name:
                    part.zero_()
                elif name.endswith("lr.offset"):
                    part.fill_(0.3)
                elif name.endswith("offset") and "memory" not in name:
                    part.fill_(1.5)
        for mine, theirs in zip(
            made[0].memory.parameters(), made[1].memory.parameters(), strict=True
        ):
            theirs.copy_(mine)
    q, k, v, x = inputs(made[0])
    want, got = (layer(q, k, v, x)[0] for layer in made)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_a_hebbian_vector_is_its_linear_recurrence(make_layer: MakeLayer) -> None:
    """w_t = a_t w_{t-1} + lr_t g_t v_t s(k_t), y_t = w_t s(q_t) (Atlas Eq. 2 with n = 1)."""
    layer: Any = make_layer("vector", "gd", window=1, chunk=4, bias="dot", degree=1, key=4)
    q, k, v, x = inputs(layer)
    y, _ = layer(q, k, v, x)
    gates, probe = gates_of(layer, x), layer.memory.probe
    w = layer.memory.initial()[0].squeeze(-1)
    for t in range(TOKENS):
        size = gates.lr[0, t] * gates.gamma[0, t, :, 0] * (k[0, t] @ probe)
        w = gates.keep[0, t, :, None] * w + size[:, None] * v[0, t]
        want = w * (q[0, t] @ probe)[:, None]
        torch.testing.assert_close(y[0, t], want, rtol=1e-11, atol=1e-12)
