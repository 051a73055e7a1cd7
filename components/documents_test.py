"""Packed documents, padding and ragged rows, on models of every kind of state."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from ablate.components.documents import RowStates, find_spans, pick_row
from ablate.components.language_model import LanguageModel
from ablate.components.language_model_test import KINDS, VOCAB, make_model, make_tokens
from ablate.components.state_size import state_bytes

PAD = -1
# Two rows: documents of 4, 6 and 3 tokens; padding, a document of 1, one of 4, padding, 6 tokens.
POSITIONS = torch.tensor(
    [
        [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0, 1, 2],
        [PAD, 0, 0, 1, PAD, 2, 3, 0, 1, 2, 3, 4, 5],
    ]
)
DOCUMENTS = [
    (0, range(4)),
    (0, range(4, 10)),
    (0, range(10, 13)),
    (1, [1]),
    (1, [2, 3, 5, 6]),
    (1, range(7, 13)),
]


def alone(model: LanguageModel, tokens: Tensor) -> Tensor:
    """Logits of every document in a call of its own, 0 elsewhere."""
    out = torch.zeros(*tokens.shape, VOCAB, dtype=model.head.weight.dtype)
    for row, columns in DOCUMENTS:
        out[row, list(columns)] = model(tokens[row, list(columns)][None])[0][0]
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_packed_documents_equal_each_alone_and_so_do_gradients(kind: str) -> None:
    model, tokens = make_model(kind).double(), make_tokens(2)
    packed, separate = model(tokens, positions=POSITIONS)[0], alone(model, tokens)
    assert packed.shape == (2, 13, VOCAB)
    torch.testing.assert_close(packed, separate, rtol=0, atol=1e-12)
    parameters = [p for p in model.parameters() if p.requires_grad]
    found, expected = (
        torch.autograd.grad(logits.sin().sum(), parameters) for logits in (packed, separate)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)
    assert max(one.abs().max() for one in found) > 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_without_positions_documents_see_each_other(kind: str) -> None:
    model, tokens = make_model(kind).double(), make_tokens(2)
    plain, packed = model(tokens)[0], model(tokens, positions=POSITIONS)[0]
    torch.testing.assert_close(plain[0, :4], packed[0, :4], rtol=0, atol=1e-12)
    assert (plain[0, 4:] - packed[0, 4:]).abs().amax(dim=1).min() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [1, 4, 8])
def test_a_packed_batch_may_be_cut_anywhere(kind: str, place: int) -> None:
    model, tokens = make_model(kind).double(), make_tokens(2)
    with torch.no_grad():
        whole, end = model(tokens, positions=POSITIONS)
        first, state = model(tokens[:, :place], positions=POSITIONS[:, :place])
        rest, after = model(tokens[:, place:], state, positions=POSITIONS[:, place:])
    torch.testing.assert_close(torch.cat((first, rest), dim=1), whole, rtol=0, atol=1e-12)
    assert state_bytes(after) == state_bytes(end)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_padded_to_one_length_go_on_as_if_alone(kind: str, side: str) -> None:
    """Prompts of 3 and 7 tokens, padded by what no row holds, then five more tokens each."""
    model, tokens = make_model(kind).double(), make_tokens(2)
    positions = torch.arange(7).repeat(2, 1)
    if side == "right":
        positions[0] = torch.tensor([0, 1, 2, PAD, PAD, PAD, PAD])
    else:
        positions[0] = torch.tensor([PAD, PAD, PAD, PAD, 0, 1, 2])
    prompt = positions >= 0
    with torch.no_grad():
        said, state = model(tokens[:, :7], positions=positions)
        padded = torch.where(prompt, tokens[:, :7], (tokens[:, :7] + 3) % VOCAB)
        again = model(padded, positions=positions)[0]
        more = [model(tokens[:, 7:10], state)]
        more.append(model(tokens[:, 10:12], more[0][1]))
    torch.testing.assert_close(said, again, rtol=0, atol=0)
    assert not said[~prompt].any()
    assert isinstance(state, RowStates)
    for row in range(2):
        sequence = torch.cat((tokens[row, :7][prompt[row]], tokens[row, 7:12]))
        expected = model(sequence[None])[0][0]
        found = torch.cat((said[row][prompt[row]], more[0][0][row], more[1][0][row]))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_row_of_padding_keeps_its_state() -> None:
    model, tokens = make_model("atlas").double(), make_tokens(2)
    positions = torch.tensor([[0, 1, 2, 3], [PAD] * 4])
    with torch.no_grad():
        _, state = model(tokens[:, :4], positions=positions)
        assert state.rows[1] is None
        _, after = model(tokens[:, :4], state, positions=positions.flip(0))
        said, _ = model(tokens[:, 4:6], after)
        expected = [model(tokens[:1, :6])[0][0, 4:], model(tokens[1:, :6])[0][0, 4:]]
    assert after.rows[0] is state.rows[0]
    torch.testing.assert_close(said, torch.stack(expected), rtol=0, atol=1e-12)


def test_one_call_for_each_length_and_none_for_padding() -> None:
    model, shapes = make_model("window"), []
    model.blocks[0].register_forward_pre_hook(lambda _, given: shapes.append(given[0].shape[:2]))
    with torch.no_grad():
        model(make_tokens(2), positions=POSITIONS)
    assert sorted(shapes) == [(1, 1), (1, 3), (2, 4), (2, 6)]


def test_spans_are_documents_without_their_padding() -> None:
    spans = find_spans(make_tokens(2), POSITIONS)
    assert [(span.row, list(span.columns)) for span in spans] == [
        (row, list(columns)) for row, columns in DOCUMENTS
    ]
    assert not any(span.goes_on for span in spans)


class Pair(NamedTuple):
    left: Tensor
    count: int


def test_a_row_is_picked_from_every_container() -> None:
    base = torch.arange(6.0).view(3, 2)
    state = {"pair": Pair(base, 4), "list": [base, None], "rows": RowStates((base, "name"))}
    picked = pick_row(state, 1, 3)
    expected = torch.tensor([[2.0, 3.0]])
    assert isinstance(picked["pair"], Pair)
    assert picked["pair"].count == 4
    assert isinstance(picked["rows"], RowStates)
    for part in (picked["pair"].left, picked["list"][0], picked["rows"].rows[0]):
        torch.testing.assert_close(part, expected, rtol=0, atol=0)
    with pytest.raises(ValueError, match="the first dimension of every tensor"):
        pick_row(state, 1, 2)


@pytest.mark.parametrize(
    ("positions", "said"),
    [
        ([[0, 1, 3, 4]], "row 0: 3 comes after 1; in a document it must be 2"),
        ([[0, 1, 1, 2]], "row 0: 1 comes after 1"),
        ([[2, 3, 4, 5]], "row 0: the row begins inside a document"),
        ([[PAD, PAD, PAD, PAD]], "every token is padding"),
        ([[0, 1, 2]], r"positions is torch.int64 \[1, 3\]: must be torch.int64 \[1, 4\]"),
    ],
)
def test_positions_that_are_none_are_refused(positions: list[list[int]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_model()(make_tokens(1, 4), positions=torch.tensor(positions))


def test_a_state_of_another_batch_is_refused() -> None:
    model = make_model()
    _, state = model(make_tokens(2, 3), positions=torch.tensor([[0, 1, 2], [0, 1, PAD]]))
    with pytest.raises(ValueError, match="state has 2 batch rows, but tokens has 3"):
        model(make_tokens(3, 2), state)
