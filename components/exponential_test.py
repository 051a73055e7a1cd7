from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablate.components.attention import SoftmaxAttention
from ablate.components.backbone import unit
from ablate.components.backbone_test import draw, initialise
from ablate.components.bias import L2, Dot, Huber
from ablate.components.dims import Dims
from ablate.components.exponential import Exponential, ExponentialMemory
from ablate.components.feature_map import Polynomial
from ablate.components.inner_optimizer import GradientDescent, Momentum
from ablate.components.memory import GatedMLPMemory, MatrixMemory, MLPMemory
from ablate.components.recurrence.coefficients import Gates
from ablate.components.recurrence.oracle import Definition, run_oracle
from ablate.components.retention import NoRetention, ScalarRetention
from ablate.components.state_size import state_bytes
from ablate.components.window import OmegaWindow

HEADS, KEY, LENGTH = 2, 3, 9


def make(
    memory: str = "mlp",
    bias: str = "dot",
    *,
    window: int = 1,
    chunk: int | None = None,
    normalised: bool = False,
    span: int | None = None,
    anchors: int = 4,
    forget: bool = True,
    gates: str = "reader",
    border: str = "halo",
    read: str = "after",
    rope: bool = False,
    key: int = KEY,
) -> ExponentialMemory:
    dims = Dims(model=5, heads=HEADS, key=key, value=key)
    lift = Exponential(dims, anchors=anchors, normalised=normalised, span=span, rope=rope)
    kinds = {
        "matrix": MatrixMemory,
        "mlp": functools.partial(MLPMemory, expansion=2),
        "deep": functools.partial(MLPMemory, expansion=2, layers=3),
        "gated": functools.partial(GatedMLPMemory, expansion=2, norm=True),
    }
    layer = ExponentialMemory(
        dims,
        memory=kinds[memory](dims, anchors),
        feature_map=lift,
        window=OmegaWindow(dims, length=window, gates=gates, border=border),
        bias={"dot": Dot, "l2": L2}[bias](dims),
        retention=ScalarRetention(dims, init=2.0) if forget else NoRetention(dims),
        inner_optimizer=GradientDescent(dims, lr_max=0.4),
        chunk=chunk,
        read=read,
    )
    made = initialise(layer)
    assert isinstance(made, ExponentialMemory)
    with torch.no_grad():
        for seed, weight in enumerate(made.memory.parameters()):
            weight.normal_(std=0.5, generator=torch.Generator().manual_seed(seed))
    return made


def inputs(t: int = LENGTH, rows: int = 2) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k = (unit(draw(rows, t, HEADS, KEY, seed=seed)) for seed in (1, 2))
    return q, k, draw(rows, t, HEADS, KEY, seed=3), draw(rows, t, 5, seed=4)


def gates_of(layer: ExponentialMemory, x: Tensor) -> Gates:
    return layer.gates(x, layer.initial_state(x.shape[0], dtype=x.dtype))[0]


def truncate(layer: ExponentialMemory, degree: int) -> Any:
    """phi* up to a degree, and the same truncation of the layer's kernel."""
    lift = Polynomial(layer.dims, degree=degree, construction="kronecker", learnable=False)
    lift = lift.double()
    lift.init_weights(lambda _: torch.Generator())
    scale = layer.feature_map.log_scale.exp()  # type: ignore[operator]
    a = lift.coefficients().detach()

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        s = scale.repeat(x.shape[0] // HEADS)[:, None, None]
        logits = s * torch.bmm(x, y.mT)
        return torch.exp(-s) * sum(a[i] * logits**i for i in range(degree + 1))

    layer.feature_map.kernel = kernel  # type: ignore[assignment]

    def features(x: Tensor) -> Tensor:
        phi: Tensor = lift(x * scale.sqrt()[:, None])
        return phi * torch.exp(-scale / 2)[:, None]

    return features


def oracle(layer: ExponentialMemory, features: Any, sequence: tuple[Tensor, ...]) -> Tensor:
    """The token loop on materialised features."""
    memory: Any = layer.memory
    fronts, initial = memory.fronts, memory.initial()
    anchors: Tensor = layer.feature_map.anchors  # type: ignore[assignment]
    phi = features(anchors.transpose(0, 1)).transpose(0, 1)
    lifted = (*(w @ phi for w in initial[:fronts]), *initial[fronts:])
    weights = tuple(w.expand(sequence[0].shape[0], *w.shape) for w in lifted)
    definition = Definition(
        gated=fronts == 2,
        residual=memory.output.residual,
        norm=(memory.output.gain, memory.output.offset) if memory.output.norm else None,
        bias="l2" if isinstance(layer.bias, L2) else "dot",
        chunk=layer.chunk or 10_000,
        window=layer.window.length,  # type: ignore[arg-type]
        step_inside=True,
        truncated=layer.rule().truncated,
        read_before=layer.read == "before",
    )
    q, k, v, x = sequence
    y, _, _ = run_oracle(definition, features, q, k, v, gates_of(layer, x), weights)
    return y


CASES = [
    ("mlp", "dot", 1, None),  # DeepTransformers
    ("mlp", "dot", 3, None),  # SWDT as a windowed write
    ("mlp", "dot", 2, 4),
    ("mlp", "l2", 1, 1),
    ("mlp", "l2", 3, 4),  # Dot
    ("gated", "l2", 2, 4),
    ("gated", "dot", 2, None),
    ("deep", "l2", 2, 4),
    ("matrix", "dot", 3, 4),
    ("matrix", "l2", 1, 1),  # one triangular solve
    ("matrix", "l2", 3, 1),
    ("matrix", "l2", 3, 4),
]


@pytest.mark.parametrize(("memory", "bias", "window", "chunk"), CASES)
def test_equals_the_token_loop_on_truncated_features(
    memory: str, bias: str, window: int, chunk: int | None
) -> None:
    """Identities O6 and O7 with the same truncation on both sides: no error but rounding."""
    layer = make(memory, bias, window=window, chunk=chunk)
    features = truncate(layer, degree=4)
    sequence = inputs()
    expected = oracle(layer, features, sequence)
    torch.testing.assert_close(layer(*sequence)[0], expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "options", [{"gates": "both"}, {"gates": "constant", "border": "truncate"}]
)
@pytest.mark.parametrize(("memory", "bias"), [("mlp", "l2"), ("matrix", "dot")])
def test_every_window_equals_the_token_loop(
    memory: str, bias: str, options: dict[str, str]
) -> None:
    layer = make(memory, bias, window=3, chunk=4, **options)
    features = truncate(layer, degree=3)
    sequence = inputs()
    expected = oracle(layer, features, sequence)
    torch.testing.assert_close(layer(*sequence)[0], expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("memory", "bias", "window", "chunk"), [CASES[0], CASES[4], ("matrix", "l2", 3, 1)]
)
def test_truncated_features_tend_to_the_exponential(
    memory: str, bias: str, window: int, chunk: int | None
) -> None:
    layer, sequence = make(memory, bias, window=window, chunk=chunk), inputs()
    exact, _ = layer(*sequence)
    errors = [
        (oracle(layer, truncate(layer, degree), sequence) - exact).abs().max().item()
        for degree in (2, 4, 8)
    ]
    assert errors[0] > 5 * errors[1]
    assert errors[1] > 30 * errors[2]
    assert errors[2] < 1e-3


def attend(layer: ExponentialMemory, q: Tensor, k: Tensor, v: Tensor, *, softmax: bool) -> Tensor:
    """Attention in matrices: exp(s (q . k - 1)) v over the past, divided by its sum or not."""
    scale: Tensor = layer.feature_map.log_scale.exp()  # type: ignore[operator]
    weights = torch.exp(scale[:, None, None] * (torch.einsum("bthd,bshd->bhts", q, k) - 1)).tril()
    if softmax:
        weights = weights / weights.sum(-1, keepdim=True)
    return torch.einsum("bhts,bshe->bthe", weights, v)


@pytest.mark.parametrize("normalised", [False, True])
def test_a_matrix_with_the_dot_bias_is_attention(normalised: bool) -> None:
    layer = make("matrix", normalised=normalised, forget=False, gates="none", anchors=0)
    q, k, v, x = inputs(80)
    step = gates_of(layer, x).lr.unsqueeze(-1)
    expected = attend(layer, q, k, step * v, softmax=normalised)
    torch.testing.assert_close(layer(q, k, v, x)[0], expected, rtol=0, atol=1e-10)


def test_with_a_constant_step_it_is_the_attention_mixer() -> None:
    layer = make("matrix", normalised=True, forget=False, gates="none", anchors=0)
    nn.init.zeros_(layer.inner_optimizer.lr.project.weight)  # type: ignore[union-attr, arg-type]
    attention = initialise(SoftmaxAttention(layer.dims, rope=False))
    sequence = inputs(30)
    step = 0.4 * 0.5  # lr_max times a gate of 1/2
    expected = step * attention(*sequence)[0]
    torch.testing.assert_close(layer(*sequence)[0], expected, rtol=0, atol=1e-12)


def test_an_online_matrix_with_l2_is_the_delta_rule_on_pairs() -> None:
    """u_t = lr_t (v_t - f_{t-1}(k_t)), f_t(x) = sum_{i<=t} u_i K(k_i, x) (Atlas Eq. 31)."""
    layer = make("matrix", "l2", chunk=1, forget=False, gates="none", anchors=0)
    q, k, v, x = inputs(40)
    step = gates_of(layer, x).lr.unsqueeze(-1)
    scale: Tensor = layer.feature_map.log_scale.exp()  # type: ignore[operator]

    def kernel(reader: Tensor, t: int) -> Tensor:
        products = torch.einsum("bhd,bshd->bsh", reader, k[:, :t])
        return torch.exp(scale * (products - 1)).unsqueeze(-1)

    u = torch.zeros_like(v)
    y = torch.zeros_like(v)
    for t in range(40):
        found = (kernel(k[:, t], t) * u[:, :t]).sum(1)
        u[:, t] = step[:, t] * (v[:, t] - found)
        y[:, t] = (kernel(q[:, t], t + 1) * u[:, : t + 1]).sum(1)
    torch.testing.assert_close(layer(q, k, v, x)[0], y, rtol=0, atol=1e-10)


@pytest.mark.parametrize("memory", ["mlp", "matrix"])
@pytest.mark.parametrize("normalised", [False, True])
def test_a_span_as_long_as_the_sequence_changes_nothing_and_a_short_one_forgets(
    memory: str, normalised: bool
) -> None:
    options: dict[str, Any] = {"window": 2, "normalised": normalised}
    q, k, v, x = inputs()
    whole, _ = make(memory, **options)(q, k, v, x)
    wide, _ = make(memory, span=LENGTH, **options)(q, k, v, x)
    torch.testing.assert_close(wide, whole, rtol=0, atol=1e-12)
    keys, values = k.clone().requires_grad_(), v.clone().requires_grad_()
    narrow, _ = make(memory, span=3, **options)(q, keys, values, x)
    for gradient in torch.autograd.grad(narrow[:, -1].sum(), (keys, values)):
        moved = gradient.abs().sum(dim=(0, 2, 3)).nonzero().flatten().tolist()
        assert moved == [LENGTH - 3, LENGTH - 2, LENGTH - 1]


VARIANTS: list[dict[str, Any]] = [
    {"memory": "mlp", "bias": "dot"},
    {"memory": "mlp", "bias": "dot", "window": 3, "normalised": True},
    {"memory": "mlp", "bias": "dot", "window": 2, "span": 4},
    {"memory": "mlp", "bias": "l2", "window": 3, "chunk": 4, "gates": "both"},
    {"memory": "matrix", "bias": "dot", "window": 3, "chunk": 4, "border": "truncate"},
    {"memory": "mlp", "bias": "dot", "span": 4, "normalised": True},
    {"memory": "mlp", "bias": "l2", "window": 3, "chunk": 4, "normalised": True},
    {"memory": "gated", "bias": "dot", "window": 2, "span": 4, "normalised": True},
    {"memory": "deep", "bias": "l2", "chunk": 4},
    {"memory": "matrix", "bias": "l2", "window": 3, "chunk": 1, "normalised": True},
    {"memory": "matrix", "bias": "l2", "window": 2, "chunk": 4},
    {"memory": "matrix", "bias": "dot", "window": 2, "chunk": 4},
]


def in_pieces(layer: ExponentialMemory, sequence: tuple[Tensor, ...], sizes: list[int]) -> Tensor:
    state, read = None, []
    for piece in zip(*(torch.split(part, sizes, dim=1) for part in sequence), strict=True):
        y, state = layer(*piece, state)
        read.append(y)
    return torch.cat(read, dim=1)


@pytest.mark.parametrize("options", VARIANTS)
def test_pieces_with_the_state_equal_the_whole(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, sequence = make(**options), inputs(LENGTH)
    whole, _ = layer(*sequence)
    for sizes in ([1] * LENGTH, [4, 5], [2, 6, 1]):
        torch.testing.assert_close(in_pieces(layer, sequence, sizes), whole, rtol=0, atol=1e-11)
    monkeypatch.setattr("ablate.components.recurrence.kernel.BLOCK", 2)
    monkeypatch.setattr("ablate.components.recurrence.kernel.SOLVED", 1)
    torch.testing.assert_close(layer(*sequence)[0], whole, rtol=0, atol=1e-11)


@pytest.mark.parametrize("options", VARIANTS)
def test_no_output_feels_a_later_token_or_another_row(options: dict[str, Any]) -> None:
    layer, sequence = make(**options), inputs()
    whole, _ = layer(*sequence)
    for place in (3, 6):
        changed = tuple(part.clone() for part in sequence)
        for part in changed:
            part[0, place] = part[0, place].flip(-1)
        y, _ = layer(*changed)
        torch.testing.assert_close(y[0, :place], whole[0, :place], rtol=0, atol=1e-12)
        assert (y[0, place:] != whole[0, place:]).flatten(1).any(dim=1)[0]
        torch.testing.assert_close(y[1], whole[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", VARIANTS)
def test_gradients_agree_with_finite_differences(options: dict[str, Any]) -> None:
    layer = make(**options)
    sequence = [part.requires_grad_() for part in inputs(5, rows=1)]
    weights = list(layer.parameters())

    def output(*given: Tensor) -> Tensor:
        y: Tensor = layer(*given[:4])[0]
        return y

    assert torch.autograd.gradcheck(output, (*sequence, *weights), fast_mode=True)


@pytest.mark.parametrize("options", [VARIANTS[0], VARIANTS[2], VARIANTS[3], VARIANTS[-1]])
def test_retrieving_is_reading_without_a_write(options: dict[str, Any]) -> None:
    layer = make(**options, forget=False)
    sequence = inputs()
    _, state = layer(*sequence)
    q, k, v, x = inputs(1)
    layer.inner_optimizer.lr_max = 0.0  # type: ignore[assignment]
    retrieved = layer.retrieve(q, layer.frozen(state, 2))
    torch.testing.assert_close(layer(q, k, v, x, state)[0], retrieved, rtol=0, atol=1e-11)


def test_any_loss_can_be_descended() -> None:
    """With thresholds that no error reaches, Huber is l2, in value and in what it carries."""
    plain, robust = (make_bare(bias=bias, chunk=3) for bias in (L2(DIMS), Huber(DIMS, delta=1e6)))
    initialise(plain)
    initialise(robust)
    sequence = inputs()
    expected = plain(*sequence)[0]
    torch.testing.assert_close(robust(*sequence)[0], expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(in_pieces(robust, sequence, [4, 5]), expected, rtol=0, atol=1e-9)


def test_the_state_is_a_cache_and_low_precision_stays_close() -> None:
    layer = make("matrix", anchors=0).float()
    sequence = tuple(part.float() for part in inputs(70))
    sizes = [state_bytes(layer(*(part[:, :t] for part in sequence))[1]) for t in (35, 70)]
    assert sizes[1] == 2 * sizes[0] == 4 * 2 * HEADS * 70 * (KEY + KEY)
    exact, _ = layer(*sequence)
    coarse, _ = layer(*(part.bfloat16() for part in sequence))
    assert coarse.dtype == torch.bfloat16
    torch.testing.assert_close(coarse.float(), exact, rtol=0.05, atol=0.05)


def test_the_meta_device_gives_shapes() -> None:
    with torch.device("meta"):
        layer = make_bare()
        state = None
        for t in (5, 1):
            parts = [torch.zeros(2, t, HEADS, KEY) for _ in range(3)]
            y, state = layer(*parts, torch.zeros(2, t, 5), state)
    assert y.shape == (2, 1, HEADS, KEY)


def make_bare(**changes: Any) -> ExponentialMemory:
    dims = Dims(model=5, heads=HEADS, key=KEY, value=KEY)
    lift = changes.pop("feature_map", None) or Exponential(dims)
    parts: dict[str, Any] = {
        "memory": MLPMemory(dims, lift.width),
        "window": OmegaWindow(dims, length=2),
        "bias": Dot(dims),
        "retention": ScalarRetention(dims),
        "inner_optimizer": GradientDescent(dims),
        **changes,
    }
    return ExponentialMemory(dims, feature_map=lift, **parts)


DIMS = Dims(model=5, heads=HEADS, key=KEY, value=KEY)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"inner_optimizer": Momentum(DIMS)},
            "inner_optimizer Momentum with an expo",
        ),
        ({"newton_schulz": nn.Identity()}, "newton_schulz with an exponential feature_map"),
        ({"chunk": 0}, "chunk=0: must be None"),
        ({"feature_map": Exponential(DIMS, anchors=0)}, "anchors=0 with a deep memory"),
        ({"feature_map": Exponential(DIMS, span=4), "chunk": 2}, "span=4 needs bias dot and chunk"),
        ({"feature_map": Exponential(DIMS, span=4), "bias": L2(DIMS)}, "span=4 needs bias dot"),
        ({"feature_map": Exponential(DIMS, span=1)}, "span=1 is shorter than window.length=2"),
    ],
)
def test_what_does_not_exist_is_refused_with_the_reason(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_bare(**changes)
