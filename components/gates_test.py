"""Gates, and the axes that are little more than gates: window, retention, inner optimiser."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ablate.components.dims import Dims
from ablate.components.gate import HeadGate
from ablate.components.inner_optimizer import GradientDescent, Momentum, Muon
from ablate.components.retention import NoRetention, ScalarRetention
from ablate.components.window import PAIR, OmegaWindow

DIMS = Dims(model=5, heads=3, key=4, value=2)


def _x(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(0)).to(dtype)


def _drawn(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, generator=generator)
    return module


def test_a_gate_is_the_sigmoid_of_a_linear_map_with_its_offset() -> None:
    gate = HeadGate(DIMS, count=2, offset=1.5)
    _drawn(gate)
    want = torch.sigmoid(_x() @ gate.project.weight.T + 1.5).view(2, 7, 3, 2)
    torch.testing.assert_close(gate(_x()), want)


def test_a_gate_is_float32_on_bfloat16_and_takes_mixed_inputs() -> None:
    gate = HeadGate(DIMS)
    _drawn(gate)
    want = gate(_x(torch.bfloat16).float())
    torch.testing.assert_close(gate(_x(torch.bfloat16)), want)
    assert gate.bfloat16()(_x(torch.bfloat16)).dtype == torch.float32


def test_init_weights_restores_the_offset() -> None:
    gate = HeadGate(DIMS, offset=4.0)
    with torch.no_grad():
        gate.offset.zero_()
    gate.init_weights(lambda _: torch.Generator())
    assert (gate.offset == 4.0).all()


def test_no_retention_keeps_all_and_scalar_retention_starts_near_one() -> None:
    assert (NoRetention(DIMS)(_x()) == 1).all()
    kept = ScalarRetention(DIMS)
    nn.init.zeros_(kept.gate.project.weight)
    torch.testing.assert_close(kept(_x()), torch.full((2, 7, 3), 0.9820138))


def test_optimisers_give_a_bounded_step_and_a_decay_where_there_is_momentum() -> None:
    for kind, momentum in ((GradientDescent, False), (Momentum, True), (Muon, True)):
        optimizer = _drawn(kind(DIMS, lr_max=0.2))
        step = optimizer(_x())
        assert step.size.shape == (2, 7, 3)
        assert (step.size > 0).all()
        assert (step.size < 0.2).all()
        assert (step.decay is not None) == momentum
        if momentum:
            assert (step.decay < 1).all()


def test_the_step_is_outside_the_momentum_only_for_muon() -> None:
    assert GradientDescent.step_inside
    assert Momentum.step_inside
    assert not Muon.step_inside
    assert Muon.axes == ("newton_schulz",)
    assert Momentum.axes == ()


def test_a_step_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Muon\.lr_max=0\.0: must be > 0"):
        Muon(DIMS, lr_max=0.0)


def test_window_gates_are_one_number_for_each_token_back() -> None:
    window = OmegaWindow(DIMS, length=4)
    _drawn(window)
    gamma = window(_x())
    assert gamma.shape == (2, 7, 3, 4)
    assert ((gamma > 0) & (gamma < 1)).all()
    divided = OmegaWindow(DIMS, length=4, normalised=True)
    divided.load_state_dict(window.state_dict())
    torch.testing.assert_close(divided(_x()), gamma / 4)


def test_a_window_without_gates_weighs_all_alike() -> None:
    assert (OmegaWindow(DIMS, length=2, gates="none")(_x()) == 1).all()
    assert (OmegaWindow(DIMS, length=2, gates="none", normalised=True)(_x()) == 0.5).all()
    assert not list(OmegaWindow(DIMS, gates="none").parameters())


def test_gates_of_both_compare_the_reader_with_each_source() -> None:
    window = OmegaWindow(DIMS, length=3, gates="both")
    _drawn(window)
    window.init_weights(lambda _: torch.Generator())
    assert window.reads is not None
    assert window.says is not None
    x = _x()
    left = window.said(x)
    assert left is not None
    gamma = window(x, torch.cat([torch.zeros_like(left[:, :2]), left], dim=1))
    reads, says = ((x @ w.weight.T).view(2, 7, 3, PAIR) for w in (window.reads, window.says))
    for t in range(7):
        for j in range(min(3, t + 1)):
            match = (reads[:, t] * says[:, t - j]).sum(-1) / PAIR**0.5
            torch.testing.assert_close(gamma[:, t, :, j], torch.sigmoid(match + 1))


def test_constant_gates_are_learned_numbers_for_each_place() -> None:
    window = OmegaWindow(DIMS, length=3, gates="constant", normalised=True)
    window.init_weights(lambda _: torch.Generator())
    gamma = window(_x())
    torch.testing.assert_close(gamma, torch.sigmoid(torch.ones(2, 7, 3, 3)) / 3)
    assert [tuple(p.shape) for p in window.parameters()] == [(3, 3)]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"length": 0}, "length=0: must be >= 1"),
        ({"border": "wall"}, "border='wall': must be one of halo, truncate"),
        ({"gates": "writer"}, "gates='writer': must be one of reader, none, both, constant"),
    ],
)
def test_a_bad_window_is_refused(options: dict[str, object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        OmegaWindow(DIMS, **options)  # type: ignore[arg-type]
