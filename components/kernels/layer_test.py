"""A whole memory layer through the kernels, in Triton's interpreter, against torch in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from ablate.components.kernels import newton_schulz, polynomial
from ablate.components.kernels.backend import served
from ablate.components.kernels.exactness import worst

if TYPE_CHECKING:
    from ablate.components.conftest import MakeLayer


KERNELS = {
    getattr(polynomial.polynomial_kernels, f"{name}_kernel") for name in ("read", "write", "slope")
}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Kernels of features of degree 2 in the order that they ran in."""
    found: list[Any] = []
    run = polynomial._run
    monkeypatch.setattr(
        polynomial, "_run", lambda kernel, *a, **k: found.append(kernel) or run(kernel, *a, **k)
    )
    return found


def outcome(layer: Any, tokens: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Outputs and state of two calls, the second from the first one's state; all gradients."""
    stream = torch.Generator().manual_seed(3)
    dims, dtype = layer.dims, next(layer.parameters()).dtype
    shapes = [(1, tokens, dims.heads, n) for n in (dims.key, dims.key, dims.value)]
    shapes.append((1, tokens, dims.model))
    whole = [
        torch.randn(shape, generator=stream, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in shapes
    ]
    first, state = layer(*(x[:, :5] for x in whole))
    second, state = layer(*(x[:, 5:] for x in whole), state)
    outputs = [first, second, *state.weights, *state.momentum]
    total = sum((y * torch.arange(y.numel()).to(y).view_as(y).cos()).sum() for y in outputs)
    given = dict(zip("qkvx", whole, strict=True)) | dict(layer.named_parameters())
    slopes = torch.autograd.grad(total, list(given.values()), allow_unused=True)
    return outputs, {n: g for n, g in zip(given, slopes, strict=True) if g is not None}


@pytest.mark.parametrize(
    ("memory", "made"),
    [
        pytest.param("matrix", {"window": 3, "degree": 2, "value": 2}, id="halo, odd, features"),
        pytest.param("mlp", {"window": 2, "degree": 1, "granularity": 2}, id="deep, in pairs"),
    ],
)
def test_a_layer_and_every_gradient_are_those_of_torch(
    make_layer: MakeLayer, monkeypatch: pytest.MonkeyPatch, memory: str, made: dict[str, Any]
) -> None:
    layer = make_layer(memory, "muon", chunk=4, steps=2, **made)
    truth, true_slopes = outcome(layer, 7)
    layer = layer.float()
    layer.backend = "triton"
    calls: list[str] = []
    for name in ("sums", "gradients"):
        form = getattr(newton_schulz, name)
        monkeypatch.setattr(
            newton_schulz, name, lambda *a, f=form, n=name: calls.append(n) or f(*a)
        )
    found, slopes = outcome(layer, 7)
    assert {one.backend for one in served(layer, torch.device("cpu"))} == {"triton"}
    assert set(calls) == {"sums", "gradients"}
    check(found, slopes, truth, true_slopes)


def check(
    found: list[Tensor],
    slopes: dict[str, Tensor],
    truth: list[Tensor],
    true_slopes: dict[str, Tensor],
) -> None:
    for one, true in zip(found, truth, strict=True):
        torch.testing.assert_close(one.double(), true, rtol=1e-4, atol=2e-5)
    assert slopes.keys() == true_slopes.keys()
    for name, slope in slopes.items():
        assert worst([slope], [true_slopes[name]]) < 2e-4, name


@pytest.mark.parametrize(
    ("memory", "optimizer", "made"),
    [
        pytest.param("matrix", "momentum", {"window": 3, "value": 2}, id="one scan, halo"),
        pytest.param("matrix", "gd", {"window": 1, "chunk": 1, "read": "before"}, id="online"),
        pytest.param("mlp", "momentum", {"window": 2, "constant": False}, id="deep, no constant"),
        pytest.param("gated", "gd", {"window": 2, "rank": 2, "read": "before"}, id="gated, rank"),
    ],
)
def test_queries_are_read_before_they_are_lifted(
    make_layer: MakeLayer,
    memory: str,
    optimizer: str,
    made: dict[str, Any],
    ran: list[Any],
) -> None:
    """Two calls, rests of chunks, and coefficients that are not at their start."""
    layer = make_layer(memory, optimizer, **({"chunk": 4} | made))
    lift: Any = layer.feature_map
    with torch.no_grad():
        lift.raw.copy_(torch.tensor([0.3, 0.8, -0.4])[lift.lowest :])
    lifted: list[int] = []
    lift.register_forward_hook(lambda _, given, made: lifted.append(made.shape[-2]))
    truth, true_slopes = outcome(layer, 7)
    of_torch = lifted.copy()
    lifted.clear()
    layer = layer.float()
    layer.backend = "triton"
    found, slopes = outcome(layer, 7)
    check(found, slopes, truth, true_slopes)
    assert "feature_map.raw" in slopes
    assert lifted == of_torch[::2]  # keys alone
    assert set(ran) == KERNELS
    said = {one.use.operation: one.backend for one in served(layer, torch.device("cpu"))}
    assert said["read_polynomial"] == "triton"
    assert ("read_weight" in said) == (memory != "matrix")


def test_a_coefficient_that_underflows_has_no_slope(make_layer: MakeLayer) -> None:
    layer = make_layer("matrix", "gd", dtype=torch.float32)
    with torch.no_grad():
        layer.feature_map.raw[2] = -200.0  # type: ignore[index, operator]
    truth, true_slopes = outcome(layer, 7)
    layer.backend = "triton"
    found, slopes = outcome(layer, 7)
    assert slopes["feature_map.raw"][2] == 0.0
    check(found, slopes, [y.double() for y in truth], true_slopes)


def test_lanes_of_models_have_coefficients_of_their_own(
    make_layer: MakeLayer, ran: list[Any]
) -> None:
    layers = [make_layer("matrix", "gd", key=2, seed=seed, dtype=torch.float32) for seed in (0, 1)]
    with torch.no_grad():
        layers[1].feature_map.raw.add_(0.5)  # type: ignore[operator, union-attr]
    parameters, _ = torch.func.stack_module_state(layers)  # type: ignore[arg-type]
    stream = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn((1, 5, 2, width), generator=stream) for width in (2, 2, 1))
    x = torch.randn((1, 5, 5), generator=stream)

    def total(given: dict[str, Tensor]) -> Tensor:
        y, _ = torch.func.functional_call(layers[0], given, (q, k, v, x))
        return y.square().sum()

    found = []
    for backend in ("torch", "triton"):
        layers[0].backend = backend
        found.append(torch.func.vmap(torch.func.grad(total))(parameters))
    for name, slope in found[0].items():
        torch.testing.assert_close(found[1][name], slope, rtol=1e-3, atol=1e-6)
    assert set(ran) == KERNELS
