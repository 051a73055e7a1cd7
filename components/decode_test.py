"""What one decoded token costs: it grows neither along the open chunk nor along the sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ablate.components.attention import SoftmaxAttention
from ablate.components.backbone import unit
from ablate.components.backbone_test import draw, initialise
from ablate.components.dims import Dims
from ablate.components.neural_memory import NeuralMemory

MakeLayer = Callable[..., NeuralMemory]
CHUNK, CHUNKS = 8, 4
HEADS, WIDTH = 2, 3  # of the layers that make_layer makes


class Touched(TorchDispatchMode):
    """Counts the elements that operations read and write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs, out))
        self.elements += sum(leaf.numel() for leaf in leaves if isinstance(leaf, Tensor))
        return out


def costs(mixer: nn.Module) -> list[list[int]]:
    """Elements touched by each token, decoded one at a time; one list a chunk."""
    t = CHUNK * CHUNKS
    q, k = (unit(draw(1, t, HEADS, WIDTH, seed=seed)) for seed in (1, 2))
    v, x, state, found = draw(1, t, HEADS, WIDTH, seed=3), draw(1, t, 5, seed=4), None, []
    with torch.inference_mode():
        for i in range(t):
            token = (part[:, i : i + 1] for part in (q, k, v, x))
            with Touched() as touched:
                _, state = mixer(*token, state)
            found.append(touched.elements)
    return [found[start : start + CHUNK] for start in range(0, t, CHUNK)]


@pytest.mark.parametrize(
    ("memory", "optimizer"), [("matrix", "momentum"), ("mlp", "momentum"), ("matrix", "muon")]
)
def test_a_memory_does_no_more_work_for_later_tokens(
    make_layer: MakeLayer, memory: str, optimizer: str
) -> None:
    # In the first chunk the window is not yet full.
    _, second, *later = costs(make_layer(memory, optimizer, value=WIDTH, chunk=CHUNK))
    assert later == [second] * len(later)
    # A chunk's border costs a linear memory something, once.
    assert len(set(second[1:-1])) == 1
    assert max(second) < 1.5 * second[1]


def test_attention_does_more_work_for_each_decoded_token() -> None:
    dims = Dims(model=5, heads=HEADS, key=WIDTH, value=WIDTH)
    found = sum(costs(initialise(SoftmaxAttention(dims, rope=False))), [])
    grown = {after - before for before, after in zip(found[1:], found[2:], strict=False)}
    assert len(grown) == 1  # by one key and one value each
    assert grown.pop() >= 2 * HEADS * WIDTH
