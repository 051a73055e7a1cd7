from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.components.bias import Huber, Lp, ValueShift
from ablate.components.inner_optimizer import Momentum, Muon
from ablate.components.neural_memory import NeuralMemory
from ablate.components.newton_schulz import NewtonSchulz
from ablate.components.nonlinear_retention import ElasticNet, LqRetention, SimplexRetention
from ablate.components.recurrence.state import MemoryState
from ablate.components.retention import (
    ChannelRetention,
    ConstantRetention,
    ResetRetention,
    TiedRetention,
)
from ablate.components.state_size import state_bytes

MakeLayer = Callable[..., NeuralMemory]
AT_ENDS = partial(SimplexRetention, applied="chunk")
BOTH = partial(ChannelRetention, side="both")
BY_ROW = partial(ChannelRetention, side="value")
ROBUST = partial(Lp, p=1.5)
LEARNED = partial(ConstantRetention, schedule="learned")
KINDS: list[Mapping[str, object]] = [
    {"memory": "matrix", "optimizer": "gd", "window": 1},
    {"memory": "matrix", "optimizer": "momentum", "window": 6},
    {"memory": "mlp", "optimizer": "gd", "chunk": 1},
    {"memory": "mlp", "optimizer": "momentum"},
    {"memory": "mlp", "optimizer": "muon"},
    {"memory": "mlp", "optimizer": "muon", "granularity": 3, "chunk": 5},
    {"memory": "matrix", "optimizer": "muon", "granularity": "chunk"},
    {"memory": "mlp", "optimizer": "gd", "bias": Huber},
    {"memory": "gated norm", "optimizer": "gd", "window": 2},
    {"memory": "matrix", "optimizer": "momentum", "gates": "both", "window": 7},
    {"memory": "mlp", "optimizer": "gd", "gates": "constant", "border": "truncate", "window": 9},
    {"memory": "mlp", "optimizer": "muon", "granularity": 2, "gates": "both", "read": "before"},
    {"memory": "matrix norm", "optimizer": "gd", "chunk": 3, "window": 1},
    {"memory": "mlp of 3", "optimizer": "muon", "granularity": 2},
    {"memory": "matrix", "optimizer": "decayed", "window": 1, "chunk": 1},
    {"memory": "matrix", "optimizer": "implicit", "window": 1},
    {"memory": "matrix", "optimizer": "least squares", "window": 2},
    {"memory": "mlp", "optimizer": "nesterov", "retention": ChannelRetention, "degree": 1},
    {"memory": "matrix", "optimizer": "gd", "retention": BY_ROW, "chunk": 1},
    {"memory": "mlp", "optimizer": "gd", "retention": SimplexRetention},
    {"memory": "matrix", "optimizer": "gd", "retention": LqRetention, "bias": Huber},
    {"memory": "mlp", "optimizer": "momentum", "retention": LEARNED, "bias": ValueShift},
    {"memory": "matrix", "optimizer": "momentum", "retention": ElasticNet, "bias": ROBUST},
    {"memory": "mlp", "optimizer": "momentum", "retention": ResetRetention},
    {"memory": "matrix", "optimizer": "multi step", "window": 1, "chunk": 1},
    {"memory": "mlp", "optimizer": "three steps", "window": 1, "chunk": 1, "read": "before"},
    {"memory": "mlp", "optimizer": "momentum", "retention": AT_ENDS},
    {"memory": "vector", "optimizer": "momentum", "retention": BY_ROW},
    {"memory": "vector", "optimizer": "gd", "window": 1, "chunk": 1},
    {"memory": "matrix", "optimizer": "constant", "retention": TiedRetention, "degree": 1},
    {"memory": "matrix", "optimizer": "gd", "retention": BOTH, "degree": 1, "window": 1},
]


def _inputs(
    layer: NeuralMemory, *, rows: int = 2, tokens: int = 11, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    generator, dims = torch.Generator().manual_seed(3), layer.dims

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    q, k = (F.normalize(normal(rows, tokens, dims.heads, dims.key), dim=-1) for _ in range(2))
    v, x = normal(rows, tokens, dims.heads, dims.value), normal(rows, tokens, dims.model)
    return [t.to(dtype).requires_grad_() for t in (q, k, v, x)]


def _pieces(
    layer: NeuralMemory, inputs: list[Tensor], sizes: list[int]
) -> tuple[Tensor, MemoryState]:
    outputs, state = [], None
    for piece in zip(*(t.split(sizes, dim=1) for t in inputs), strict=True):
        y, state = layer(*piece, state)
        outputs.append(y)
    assert state is not None
    return torch.cat(outputs, dim=1), state


def _tensors(state: MemoryState) -> list[Tensor]:
    step = [part for part in (state.step, state.said, state.tail, state.kept) if part is not None]
    return [*state.weights, *state.base, *state.momentum, state.keys, state.values, *step]


@pytest.mark.parametrize("kind", KINDS)
def test_two_calls_with_the_state_carried_equal_one(
    make_layer: MakeLayer, kind: dict[str, object]
) -> None:
    layer = make_layer(**kind)
    inputs = _inputs(layer)
    leaves = [*inputs, *layer.parameters()]
    y, state = layer(*inputs)
    seeds = [torch.ones_like(t) * 0.3 for t in (y, *_tensors(state))]
    want = torch.autograd.grad([y, *_tensors(state)], leaves, seeds, allow_unused=True)
    for first in range(1, 11):
        got, last = _pieces(layer, inputs, [first, 11 - first])
        assert (last.filled, last.position) == (state.filled, state.position)
        for g, w in zip((got, *_tensors(last)), (y, *_tensors(state)), strict=True):
            torch.testing.assert_close(g, w, rtol=1e-10, atol=1e-11)
        if first in (1, 5, 8):
            grads = torch.autograd.grad([got, *_tensors(last)], leaves, seeds, allow_unused=True)
            for g, w in zip(grads, want, strict=True):
                torch.testing.assert_close(g, w, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_token_by_token_equals_one_call(
    make_layer: MakeLayer, kind: dict[str, object]
) -> None:
    layer = make_layer(**kind)
    inputs = _inputs(layer)
    y, state = layer(*inputs)
    got, last = _pieces(layer, inputs, [1] * 11)
    for g, w in zip((got, *_tensors(last)), (y, *_tensors(state)), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_the_future_and_other_rows_change_nothing(
    make_layer: MakeLayer, kind: dict[str, object]
) -> None:
    layer = make_layer(**kind)
    inputs = [t.detach() for t in _inputs(layer)]
    y, _ = layer(*inputs)
    for token in (1, 6, 10):
        changed = [t.clone() for t in inputs]
        for t in changed:
            t[0, token:] = t[0, token:] + 1.5
        got, _ = layer(*changed)
        assert torch.equal(got[0, :token], y[0, :token])
        assert torch.equal(got[1], y[1])
        assert not torch.allclose(got[0, token], y[0, token])
    one, _ = layer(*(t[1:] for t in inputs))
    torch.testing.assert_close(one, y[1:], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_every_mode_gives_the_same(make_layer: MakeLayer, kind: dict[str, object]) -> None:
    layer = make_layer(**kind)
    inputs = [t.detach() for t in _inputs(layer)]
    want, _ = layer.train()(*inputs)
    assert torch.equal(layer(*inputs)[0], want)
    assert torch.equal(layer.eval()(*inputs)[0], want)
    with torch.no_grad():
        assert torch.equal(layer(*inputs)[0], want)
    with torch.inference_mode():
        assert torch.equal(layer(*inputs)[0], want)


@pytest.mark.parametrize(
    "kind",
    [
        {"memory": "mlp", "optimizer": "muon", "granularity": 2, "steps": 2},
        {"memory": "mlp", "optimizer": "momentum"},
        {"memory": "matrix", "optimizer": "gd"},
        {"memory": "gated norm", "optimizer": "gd"},
        {"memory": "matrix", "optimizer": "least squares"},
        {"memory": "mlp of 3", "optimizer": "muon", "gates": "both", "read": "before"},
        {"memory": "mlp norm", "optimizer": "gd", "gates": "constant", "border": "truncate"},
        {"memory": "mlp", "optimizer": "nesterov", "retention": SimplexRetention},
        {"memory": "matrix", "optimizer": "gd", "retention": LqRetention, "bias": Huber},
        {"memory": "mlp", "optimizer": "gd", "retention": ChannelRetention, "degree": 1},
    ],
)
def test_gradients_equal_finite_differences_through_three_chunks(
    make_layer: MakeLayer, kind: dict[str, object]
) -> None:
    layer = make_layer(**kind, window=2, chunk=2, key=2, value=2)
    inputs = _inputs(layer, rows=1, tokens=5)
    parameters = dict(layer.named_parameters())

    def run(*given: Tensor) -> Tensor:
        values = dict(zip(parameters, given[4:], strict=True))
        y: Tensor = torch.func.functional_call(layer, values, given[:4])[0]
        return y

    assert torch.autograd.gradcheck(run, (*inputs, *parameters.values()), fast_mode=True)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 5e-3), (torch.float32, 1e-6)])
@pytest.mark.parametrize("kind", KINDS)
def test_short_dtypes_stay_close_and_keep_a_float32_state(
    make_layer: MakeLayer, kind: dict[str, object], dtype: torch.dtype, bound: float
) -> None:
    short = make_layer(**kind, dtype=dtype)
    inputs = [t.detach() for t in _inputs(short, dtype=dtype)]
    exact = make_layer(**kind)
    exact.load_state_dict(short.state_dict())
    want, _ = exact(*(t.double() for t in inputs))
    y, state = short(*inputs)
    assert y.dtype == dtype
    assert all(t.dtype == torch.float32 for t in _tensors(state))
    # A layer norm over three numbers that nearly agree magnifies what rounding leaves of them.
    bound *= 5 if "norm" in str(kind["memory"]) else 1
    assert (y.double() - want).norm() / want.norm() < bound


def test_autocast_does_not_reach_the_memory(make_layer: MakeLayer) -> None:
    layer = make_layer(dtype=torch.float32)
    inputs = [t.detach() for t in _inputs(layer, dtype=torch.float32)]
    want, _ = layer(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer(*inputs)[0], want)


@pytest.mark.parametrize("kind", KINDS)
def test_odd_inputs_stay_finite(make_layer: MakeLayer, kind: dict[str, object]) -> None:
    layer = make_layer(**kind, dtype=torch.float32)
    names = ["zero keys", "zero values", "same keys", "huge values"]
    # A deep memory with an unbounded step leaves any numbers behind on values of a million.
    bounded = kind["memory"] == "matrix" or kind["optimizer"] == "muon"
    for name in names if bounded else names[:3]:
        q, k, v, x = (t.detach() for t in _inputs(layer, tokens=24, dtype=torch.float32))
        k = k * (name != "zero keys")
        k = k[:, :1].expand_as(k) if name == "same keys" else k
        v = v * {"zero values": 0.0, "huge values": 1e6}.get(name, 1.0)
        given = [t.clone().requires_grad_() for t in (q, k, v, x)]
        y, _ = layer(*given)
        grads = torch.autograd.grad(y.sum(), [*given, *layer.parameters()], allow_unused=True)
        assert y.isfinite().all(), name
        assert all(g is None or g.isfinite().all() for g in grads), name


def test_the_learned_start_gets_a_gradient_from_the_last_token(make_layer: MakeLayer) -> None:
    layer = make_layer()
    y, _ = layer(*_inputs(layer))
    y[:, -1].sum().backward()
    for parameter in layer.memory.parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().max() > 0


def test_the_layer_runs_on_the_meta_device(make_layer: MakeLayer) -> None:
    for kind in KINDS:
        layer = make_layer(**kind, dtype=torch.float32).to("meta")
        given = [t.detach().to("meta", torch.float32) for t in _inputs(layer)]
        y, state = layer(*given)
        assert y.shape == (2, 11, 2, layer.dims.value)
        y.sum().backward()
        assert all(p.grad is not None for p in layer.memory.parameters())
        assert state_bytes(state) > 0


def test_state_bytes_count_all_that_decoding_carries(make_layer: MakeLayer) -> None:
    layer = make_layer("mlp", "muon", window=3, chunk=4, granularity=2, dtype=torch.float32)
    weights = 2 * (6 * 10 + 3 * 6)  # heads, W2 and W1
    want = 4 * 2 * (3 * weights + 2 * 2 * (3 + 3) + 2)  # weights, base, momentum; ring; step
    fresh = layer.initial_state(2)
    _, later = layer(*_inputs(layer, dtype=torch.float32))
    assert state_bytes(fresh) == state_bytes(later) == want
    online = make_layer("matrix", "gd", window=1, chunk=1, dtype=torch.float32)
    assert state_bytes(online.initial_state(2)) == 4 * 2 * 2 * (2 * 10)


def test_a_fresh_state_may_be_passed_or_left_out(make_layer: MakeLayer) -> None:
    layer = make_layer()
    inputs = _inputs(layer)
    want, _ = layer(*inputs)
    assert torch.equal(layer(*inputs, layer.initial_state(2, dtype=torch.float64))[0], want)


def _rebuilt(layer: NeuralMemory, **changed: object) -> NeuralMemory:
    names = ("memory", "feature_map", "window", "bias", "retention", "inner_optimizer")
    parts: dict[str, object] = {name: getattr(layer, name) for name in names}
    parts |= {"newton_schulz": layer.newton_schulz, "chunk": layer.chunk, **changed}
    return NeuralMemory(layer.dims, **parts)  # type: ignore[arg-type]


def test_combinations_that_make_no_sense_are_refused(make_layer: MakeLayer) -> None:
    layer = make_layer()
    dims = layer.dims
    with pytest.raises(ValueError, match="inner_optimizer=Muon without newton_schulz"):
        _rebuilt(layer, newton_schulz=None)
    with pytest.raises(ValueError, match="newton_schulz=NewtonSchulz with inner_optimizer=Mom"):
        _rebuilt(layer, inner_optimizer=Momentum(dims), newton_schulz=NewtonSchulz(dims))
    with pytest.raises(ValueError, match="chunk=0: must be a whole number >= 1"):
        _rebuilt(layer, inner_optimizer=Muon(dims), chunk=0)
    other = make_layer(degree=3).feature_map
    with pytest.raises(ValueError, match="built for feature width 10, but Polynomial gives 20"):
        _rebuilt(layer, feature_map=other)


def test_wrong_widths_are_refused_by_name(make_layer: MakeLayer) -> None:
    layer = make_layer()
    q, k, v, x = _inputs(layer)
    with pytest.raises(ValueError, match=r"q has shape .*heads 2, width 3"):
        layer(q[..., :2], k[..., :2], v, x)
    with pytest.raises(ValueError, match=r"v has shape .*heads 2, width 3"):
        layer(q, k, v[..., :2], x)
    with pytest.raises(ValueError, match="time >= 1"):
        layer(*(t[:, :0] for t in (q, k, v, x)))
