"""In Triton's interpreter against the torch form of the same functions: outputs and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from ablate.components.kernels import fast_weight as tiled
from ablate.components.kernels.backend import facts, set_backend
from ablate.components.kernels.exactness import worst
from ablate.components.recurrence import fast_weight as plain

if TYPE_CHECKING:
    from ablate.components.conftest import MakeLayer

Inputs = dict[str, Tensor | None]


pytestmark = pytest.mark.usefixtures("poisoned")


def read_inputs(p: int, n: int, s: int, o: int, i: int, m: int) -> Inputs:
    shapes = {"z": (p, n, i), "state": (p, m, o, i), "zs": (p, s, i), "us": (p, s, o),
              "share": (p, n, m), "read": (p, n, s)}  # fmt: skip
    return draw(shapes)


def scan_inputs(g: int, p: int, s: int, o: int, i: int, m: int, k: int) -> Inputs:
    shapes = {"state": (p, m, o, i), "probes": (g, p, k, s, i), "zs": (g, p, s, i),
              "values": (g, p, s, o), "mix": (g, p, m, m), "last": (g, p, s, m)}  # fmt: skip
    made = draw(shapes)
    return made if k else made | {"probes": None}


def draw(shapes: dict[str, tuple[int, ...]]) -> Inputs:
    stream = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=stream) * 0.5 for name, shape in shapes.items()}


def outputs_and_gradients(
    function: Callable[..., Any], inputs: Inputs
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    leaves = {k: None if x is None else x.detach().requires_grad_() for k, x in inputs.items()}
    found = function(**leaves)
    outputs = dict(enumerate(found if isinstance(found, tuple) else (found,)))
    stream = torch.Generator().manual_seed(1)
    total = torch.zeros(())
    for y in outputs.values():
        total = total + (y * torch.randn(y.shape, generator=stream).to(y.dtype)).sum()
    names = [name for name, x in leaves.items() if x is not None]
    grads = torch.autograd.grad(total, [leaves[name] for name in names])  # type: ignore[misc]
    return {str(k): y for k, y in outputs.items()}, dict(zip(names, grads, strict=True))


def check(name: str, inputs: Inputs, limit: float = 5e-6) -> None:
    """The kernels in fp32 against torch in float64."""
    true = {k: None if x is None else x.double() for k, x in inputs.items()}
    found = outputs_and_gradients(getattr(tiled, name), inputs)
    wanted = outputs_and_gradients(getattr(plain, name), true)
    for made, right in zip(found, wanted, strict=True):
        for key, value in right.items():
            assert worst([made[key]], [value]) < limit, key


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((2, 7, 12, 8, 5, 2), id="momentum, halo, odd"),
        pytest.param((1, 16, 16, 40, 70, 1), id="several blocks of the matrix"),
        pytest.param((1, 65, 70, 4, 4, 1), id="several blocks of tokens and sources"),
        pytest.param((1, 1, 1, 1, 1, 2), id="one of everything"),
    ],
)
def test_a_read_and_every_gradient_are_those_of_torch(sizes: tuple[int, ...]) -> None:
    check("read_weight", read_inputs(*sizes))


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((3, 2, 7, 8, 5, 2, 1), id="momentum, errors at the start"),
        pytest.param((2, 1, 5, 3, 6, 2, 2), id="errors at the momentum too"),
        pytest.param((3, 1, 6, 4, 5, 1, 0), id="given values only"),
        pytest.param((2, 1, 66, 40, 70, 1, 1), id="several blocks of everything"),
        pytest.param((1, 1, 1, 1, 1, 1, 1), id="one of everything"),
    ],
)
def test_a_scan_and_every_gradient_are_those_of_torch(sizes: tuple[int, ...]) -> None:
    check("scan_weight", scan_inputs(*sizes))


def test_a_write_is_a_scan_of_one_stretch() -> None:
    given = scan_inputs(1, 2, 5, 6, 7, 2, 0)
    assert given["values"] is not None
    inputs: Inputs = {"us": given["values"][0]}
    for name in ("state", "zs", "mix", "last"):
        x = given[name]
        assert x is not None
        inputs[name] = x if name == "state" else x[0]
    check("write_weight", inputs)


@pytest.mark.parametrize("gate", [0.0, 1.0])
def test_gates_of_exactly_zero_and_one(gate: float) -> None:
    inputs = scan_inputs(3, 1, 4, 5, 6, 2, 1)
    inputs["mix"] = torch.full_like(inputs["mix"], gate)  # type: ignore[arg-type]
    check("scan_weight", inputs)
    reads = read_inputs(1, 4, 4, 5, 6, 2)
    reads["share"] = torch.full_like(reads["share"], gate)  # type: ignore[arg-type]
    reads["read"] = torch.full_like(reads["read"], gate).tril()  # type: ignore[arg-type]
    check("read_weight", reads)


def test_bf16_inputs_are_read_as_fp32() -> None:
    inputs = {
        k: x.to(torch.bfloat16) for k, x in read_inputs(1, 5, 5, 4, 6, 2).items() if x is not None
    }
    y = tiled.read_weight(**inputs)
    assert y.dtype == torch.bfloat16
    true = plain.read_weight(**{k: x.double() for k, x in inputs.items()})
    assert worst([y], [true]) < 4e-3


def test_lanes_are_more_rows() -> None:
    inputs = [x for x in scan_inputs(2, 1, 3, 4, 5, 1, 1).values() if x is not None]
    lanes = [torch.stack([x, 2 * x]) for x in inputs]

    def total(*given: Tensor) -> Tensor:
        us, starts, end = tiled.scan_weight(*given)
        read = tiled.read_weight(
            given[2][0], end, given[2][1], us[1], given[5][0], us[0] @ us[1].mT
        )
        return read.square().sum() + starts.square().sum()

    slopes = torch.func.grad(total, tuple(range(len(lanes))))
    mapped = torch.func.vmap(slopes)(*lanes)
    for lane in range(2):
        for one, many in zip(slopes(*(x[lane] for x in lanes)), mapped, strict=True):
            torch.testing.assert_close(many[lane], one)


@pytest.mark.parametrize(
    ("memory", "degree", "said"),
    [
        pytest.param("matrix", 1, {"scan_weight": "2x3", "read_weight": "2x3"}, id="one scan"),
        pytest.param(
            "mlp", 1, {"write_weight": "6x3, 3x6", "read_weight": "6x3, 3x6"}, id="two phases"
        ),
        pytest.param(
            "matrix",
            3,
            {
                "scan_weight": "2x20",
                "read_weight": "2x20",
                "read_polynomial": "2x20 (monomial features of degree 3; it makes monomials of "
                "degree 2)",
            },
            id="lifted queries",
        ),
    ],
)
def test_a_layer_with_kernels_is_the_layer(
    make_layer: MakeLayer, memory: str, degree: int, said: dict[str, str]
) -> None:
    """With momentum, a window over chunks, a rest of a chunk, and a state that is carried on."""
    layer = make_layer(memory, "momentum", degree=degree, dtype=torch.float32)
    stream = torch.Generator().manual_seed(2)
    widths = (3, 3, layer.dims.value)
    q, k, v = (torch.randn((1, 7, 2, w), generator=stream) for w in widths)
    x = torch.randn((1, 7, 5), generator=stream)
    found = []
    for choice in ("torch", "triton"):
        served = set_backend(layer, choice, torch.device("cpu"))
        first, state = layer(q[:, :5], k[:, :5], v[:, :5], x[:, :5])
        last, _ = layer(q[:, 5:], k[:, 5:], v[:, 5:], x[:, 5:], state)
        y = torch.cat([first, last], 1)
        weights = [w for w in layer.parameters() if w.requires_grad]
        slopes = torch.autograd.grad(y.square().sum(), weights, allow_unused=True)
        found.append([y, *(each for each in slopes if each is not None)])
    for plainly, made in zip(*found, strict=True):
        torch.testing.assert_close(made, plainly, rtol=2e-4, atol=2e-5)
    told = facts(served)
    assert told.pop("backend") == ("triton" if degree == 1 else "torch+triton")
    assert told == {
        f"backend_{name}": f"{'torch' if '(' in sizes else 'triton'}: {sizes}"
        for name, sizes in said.items()
    }


def test_the_self_check_passes_here_and_finds_a_wrong_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = (1, 2, 3, 2, 3, 1, 1)
    error, allowed = tiled.self_check(torch.device("cpu"), sizes)
    assert error < 2e-5 < allowed
    right = tiled.read_weight
    monkeypatch.setattr(tiled, "read_weight", lambda *given: 1.01 * right(*given))
    assert tiled.self_check(torch.device("cpu"), sizes)[0] > allowed
