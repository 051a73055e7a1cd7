from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ablate.components.backbone import unit
from ablate.components.backbone_test import draw, initialise
from ablate.components.dims import Dims
from ablate.components.slot_attention import SlotAttention, SlotState
from ablate.components.state_size import state_bytes

DIMS = Dims(model=5, heads=2, key=4, value=3)
TOKENS, SLOTS = 21, 6


def make() -> SlotAttention:
    made = initialise(SlotAttention(DIMS, slots=SLOTS, rank=3, temperature=2.0))
    assert isinstance(made, SlotAttention)
    return made


def inputs(t: int = TOKENS, rows: int = 2) -> tuple[Tensor, ...]:
    q, k = (unit(draw(rows, t, 2, 4, seed=seed)) for seed in (1, 2))
    return q, k, draw(rows, t, 2, 3, seed=3), draw(rows, t, 5, seed=4)


def loop(layer: SlotAttention, sequence: tuple[Tensor, ...]) -> Tensor:
    """Slots of keys and of values, token by token."""
    q, k, v, x = sequence
    keep = layer.forget(x)
    scale = layer.log_scale.exp()[:, None]
    keys, values = torch.zeros(2, 2, SLOTS, 4).double(), torch.zeros(2, 2, SLOTS, 3).double()
    read = []
    for t in range(q.shape[1]):
        a = keep[:, t].unsqueeze(-1)
        keys = a * keys + (1 - a) * k[:, t].unsqueeze(-2)
        values = a * values + (1 - a) * v[:, t].unsqueeze(-2)
        near = torch.einsum("bhsd,bhd->bhs", keys, q[:, t])
        read.append(torch.einsum("bhs,bhse->bhe", torch.softmax(scale * near, dim=-1), values))
    return torch.stack(read, dim=1)


def test_two_passes_equal_the_slots_token_by_token_with_every_gradient() -> None:
    layer = make()
    sequence = tuple(part.requires_grad_() for part in inputs())
    y, want = layer(*sequence)[0], loop(layer, sequence)
    torch.testing.assert_close(y, want, rtol=0, atol=1e-12)
    leaves = [*sequence, *layer.parameters()]
    seed = draw(*y.shape, seed=9)
    pairs = zip(
        torch.autograd.grad(y, leaves, seed), torch.autograd.grad(want, leaves, seed), strict=True
    )
    for got, expected in pairs:
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("sizes", [[1] * TOKENS, [5, 16], [17, 1, 3]])
def test_pieces_with_the_state_equal_the_whole(sizes: list[int]) -> None:
    layer, sequence = make(), inputs()
    whole, last = layer(*sequence)
    state, read = None, []
    for piece in zip(*(torch.split(part, sizes, dim=1) for part in sequence), strict=True):
        y, state = layer(*piece, state)
        read.append(y)
    torch.testing.assert_close(torch.cat(read, dim=1), whole, rtol=0, atol=1e-12)
    assert isinstance(state, SlotState)
    torch.testing.assert_close(state.keys.weights[0], last.keys.weights[0], rtol=0, atol=1e-12)
    assert state_bytes(state) == 8 * 2 * 2 * 2 * SLOTS * (4 + 3)  # with the open chunk's start


def test_retrieving_is_reading_without_a_write() -> None:
    layer = make()
    _, state = layer(*inputs())
    q = inputs(1)[0]
    want = torch.softmax(
        layer.log_scale.exp()[:, None]
        * torch.einsum("bhsd,bhd->bhs", state.keys.weights[0], q[:, 0]),
        dim=-1,
    )
    want = torch.einsum("bhs,bhes->bhe", want, state.values.weights[0])
    torch.testing.assert_close(layer.retrieve(q, layer.frozen(state, 2))[:, 0], want)
    assert (layer.retrieve(q, layer.frozen(None, 2)) == 0).all()


def test_low_precision_comes_back_in_its_type_and_bad_options_are_refused() -> None:
    layer, sequence = make().float(), tuple(part.float() for part in inputs())
    exact, _ = layer(*sequence)
    coarse, state = layer(*(part.bfloat16() for part in sequence))
    assert coarse.dtype == torch.bfloat16
    assert state.keys.weights[0].dtype == torch.float32
    torch.testing.assert_close(coarse.float(), exact, rtol=0.05, atol=0.05)
    with pytest.raises(ValueError, match="slots=0: must be a whole number >= 1"):
        SlotAttention(DIMS, slots=0)
