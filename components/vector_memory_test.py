from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablate.components.backbone_test import draw, initialise
from ablate.components.dims import Dims
from ablate.components.vector_memory import LSTM, LinearRecurrentUnit

DIMS = Dims(model=5, heads=2, key=4, value=3)
TOKENS = 67  # more than two pieces of a scan


def inputs(t: int = TOKENS, rows: int = 2) -> tuple[Tensor, ...]:
    k = draw(rows, t, 2, 4, seed=2)
    return k, k, draw(rows, t, 2, 3, seed=3), draw(rows, t, 5, seed=4)


def make_unit(**options: Any) -> LinearRecurrentUnit:
    made = initialise(LinearRecurrentUnit(DIMS, **options))
    assert isinstance(made, LinearRecurrentUnit)
    return made


def test_the_linear_recurrent_unit_equals_its_complex_recurrence() -> None:
    layer = make_unit(width=5)
    sequence = tuple(part.requires_grad_() for part in inputs())
    rate = torch.exp(torch.complex(-layer.nu.exp(), layer.theta.exp()))
    into, out = (torch.complex(part[0], part[1]) for part in (layer.into, layer.out))
    h, rows = torch.zeros(2, 2, 5, dtype=torch.complex128), []
    for t in range(TOKENS):
        v = sequence[2][:, t]
        drive = torch.einsum("hne,bhe->bhn", into, v.to(torch.complex128))
        h = rate * h + layer.log_gamma.exp() * drive
        rows.append(torch.einsum("hen,bhn->bhe", out, h).real + layer.skip * v)
    want = torch.stack(rows, dim=1)
    y, state = layer(*sequence)
    torch.testing.assert_close(y, want, rtol=0, atol=1e-11)
    torch.testing.assert_close(state.state, torch.view_as_real(h), rtol=0, atol=1e-11)
    leaves, seed = [sequence[2], *layer.parameters()], draw(*y.shape, seed=9)
    pairs = zip(
        torch.autograd.grad(y, leaves, seed), torch.autograd.grad(want, leaves, seed), strict=True
    )
    for got, expected in pairs:
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)


def test_the_ring_is_drawn_between_its_bounds_and_normalised() -> None:
    layer = make_unit(width=400, least=0.6, most=0.9, phase=1.0)
    size, angle = torch.exp(-layer.nu.exp()), layer.theta.exp()
    assert 0.6 <= size.min() < 0.62
    assert 0.88 < size.max() <= 0.9
    assert 0 < angle.min() < angle.max() <= 1.0
    torch.testing.assert_close(layer.log_gamma.exp(), torch.sqrt(1 - size**2))


def test_the_lstm_is_torchs_for_each_head() -> None:
    layer: Any = initialise(LSTM(DIMS))
    sequence = tuple(part.requires_grad_() for part in inputs(11))
    y, state = layer(*sequence)
    for head in range(2):
        theirs = nn.LSTM(3, 3, batch_first=True).double()
        with torch.no_grad():
            theirs.weight_ih_l0.copy_(layer.into[head].T)
            theirs.weight_hh_l0.copy_(layer.again[head].T)
            theirs.bias_ih_l0.copy_(layer.offset[head])
            theirs.bias_hh_l0.zero_()
        want, (hidden, cell) = theirs(sequence[2][:, :, head])
        torch.testing.assert_close(y[:, :, head], want, rtol=0, atol=1e-12)
        torch.testing.assert_close(state.hidden[:, head], hidden[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(state.cell[:, head], cell[0], rtol=0, atol=1e-12)
        seed = draw(*want.shape, seed=9)
        (got,) = torch.autograd.grad(y[:, :, head], layer.again, seed, retain_graph=True)
        (expected,) = torch.autograd.grad(want, theirs.weight_hh_l0, seed)
        torch.testing.assert_close(got[head].T, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", [LinearRecurrentUnit, LSTM])
@pytest.mark.parametrize("sizes", [[1] * TOKENS, [5, 62], [33, 1, 33]])
def test_pieces_with_the_state_equal_the_whole(kind: type[nn.Module], sizes: list[int]) -> None:
    layer, sequence = initialise(kind(DIMS)), inputs()
    whole, _ = layer(*sequence)
    state, read = None, []
    for piece in zip(*(torch.split(part, sizes, dim=1) for part in sequence), strict=True):
        y, state = layer(*piece, state)
        read.append(y)
    torch.testing.assert_close(torch.cat(read, dim=1), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [LinearRecurrentUnit, LSTM])
def test_a_short_type_comes_back_and_no_later_token_is_felt(kind: type[nn.Module]) -> None:
    layer, sequence = initialise(kind(DIMS)).float(), tuple(p.float() for p in inputs(40))
    whole, _ = layer(*sequence)
    assert layer(*(part.bfloat16() for part in sequence))[0].dtype == torch.bfloat16
    changed = [part.clone() for part in sequence]
    changed[2][0, 9] += 1
    y, _ = layer(*changed)
    torch.testing.assert_close(y[0, :9], whole[0, :9], rtol=0, atol=1e-6)
    assert (y[0, 9:12] != whole[0, 9:12]).any(-1).all()
    torch.testing.assert_close(y[1], whole[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"width": 0}, "width=0: must be None or >= 1"),
        ({"least": 0.9, "most": 0.5}, "must be 0 <= least < most < 1"),
        ({"phase": 0.0}, "phase=0.0: must be > 0"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        LinearRecurrentUnit(DIMS, **options)
