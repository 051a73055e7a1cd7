from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from ablate.components.state_size import state_bytes


class Pair(NamedTuple):
    left: Tensor
    steps: int


@dataclass
class Memory:
    weight: Tensor
    ring: tuple[Tensor, ...]
    inner: Pair | None = None


def test_every_nesting_is_counted_once() -> None:
    single, double, half = torch.zeros(3, 5), torch.zeros(2, dtype=torch.float64), torch.zeros(7)
    state = (Memory(single, (double, half.half()), Pair(half, 9)), [None, {"a": double}], 4, "x")
    assert state_bytes(state) == 60 + 16 + 14 + 28 + 16


def test_meta_tensors_and_views_count_their_logical_size() -> None:
    assert state_bytes(torch.empty(4, 4, device="meta")) == 64
    assert state_bytes((torch.zeros(1, 4).expand(8, 4),)) == 128


def test_empty_states_are_zero_bytes() -> None:
    assert state_bytes(None) == state_bytes(()) == state_bytes(torch.zeros(3, 0)) == 0


def test_unknown_things_are_refused_instead_of_missed() -> None:
    with pytest.raises(TypeError, match="set"):
        state_bytes(({torch.zeros(1)},))
