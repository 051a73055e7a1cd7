"""Documents packed side by side in one row, and rows padded to one length.

A position says for every token where it stands in its document: 0 begins one, n + 1 follows n, and
anything negative is padding. Packed documents are cut out of their rows and run each from a fresh
state, so that a packed document equals the document alone for every mixer, convolution and cache,
without one of them knowing of documents.

The price: no padded token is computed, but documents of one length make one call of the model, so
a call costs as many passes as there are different lengths, and one for each row that goes on from
an earlier call. Positions are read on the CPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeAlias, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ablate.components.state_size import tensors

Run: TypeAlias = Callable[[Tensor, Any], tuple[Tensor, Any]]
T = TypeVar("T")


@dataclass(frozen=True)
class RowStates:
    """States of rows that are not equally far: one for each, None where nothing was read yet."""

    rows: tuple[Any, ...]


@dataclass(frozen=True)
class Span:
    """Tokens of one document in one row; `goes_on` if an earlier call read its start."""

    row: int
    columns: tuple[int, ...]
    goes_on: bool


def run_documents(
    run: Run,
    tokens: Int[Tensor, "b t"],
    positions: Tensor | None,
    state: Any = None,
) -> tuple[Float[Tensor, "b t vocab"], RowStates]:
    """Run every document as if it were alone.

    Args:
        run: from tokens and a state (None: fresh) to logits and the state after them.
        tokens: what the rows hold; those of padding may be anything in the vocabulary.
        positions: int64 ``[b t]``, of the tokens in their documents; None: every row goes on.
        state: after the tokens before, for rows whose first token is not at 0.

    Returns:
        The logits, 0 at padding, and the state of each row after its last document.

    Raises:
        ValueError: positions that are of another shape or type, skip or repeat one, go on from
            nothing or are all padding; or a state of another number of rows, or one with a tensor
            whose first dimension is not the rows.
    """
    rows = tokens.shape[0]
    before = _row_states(state, rows)
    spans = _whole_rows(before, tokens) if positions is None else find_spans(tokens, positions)
    if not spans:
        raise ValueError("positions: every token is padding; leave such a call out")
    last = {span.row: span for span in spans}
    after = list(before)
    indices, parts = [], []
    for start, group in _groups(spans, before):
        index = _flat_index(group, tokens)
        logits, end = run(tokens.flatten()[index], start)
        indices.append(index.flatten())
        parts.append(logits.flatten(0, 1))
        for place, span in enumerate(group):
            if last[span.row] is span:
                after[span.row] = pick_row(end, place, len(group))
    said = torch.cat(parts)
    out = said.new_zeros(tokens.numel(), said.shape[1]).index_copy(0, torch.cat(indices), said)
    return out.view(*tokens.shape, -1), RowStates(tuple(after))


def find_spans(tokens: Int[Tensor, "b t"], positions: Tensor) -> list[Span]:
    """Cut rows at the starts of documents; a row's spans are in order.

    Raises:
        ValueError: positions of another shape or type, or that skip or repeat one.
    """
    if positions.shape != tokens.shape or positions.dtype != torch.int64:
        raise ValueError(
            f"positions is {positions.dtype} {list(positions.shape)}: must be torch.int64 "
            f"{list(tokens.shape)}, as tokens"
        )
    spans = []
    for row, places in enumerate(positions.tolist()):
        real = [(column, place) for column, place in enumerate(places) if place >= 0]
        cuts = [n for n, (_, place) in enumerate(real) if n == 0 or place == 0]
        for first, end in zip(cuts, [*cuts, len(real)][1:], strict=True):
            columns, inside = zip(*real[first:end], strict=True)
            _check_places(row, inside)
            spans.append(Span(row, columns, goes_on=inside[0] > 0))
    return spans


def _check_places(row: int, places: tuple[int, ...]) -> None:
    for earlier, later in zip(places, places[1:], strict=False):
        if later != earlier + 1:
            raise ValueError(
                f"positions, row {row}: {later} comes after {earlier}; in a document it must be "
                f"{earlier + 1}, 0 begins the next document, and a negative number is padding"
            )


def _whole_rows(before: list[Any], tokens: Tensor) -> list[Span]:
    columns = tuple(range(tokens.shape[1]))
    return [Span(row, columns, goes_on=start is not None) for row, start in enumerate(before)]


def _groups(spans: list[Span], before: list[Any]) -> list[tuple[Any, list[Span]]]:
    """What runs in one call: each span that goes on, then fresh ones of equal length."""
    groups: list[tuple[Any, list[Span]]] = []
    fresh = defaultdict(list)
    for span in spans:
        if not span.goes_on:
            fresh[len(span.columns)].append(span)
        elif before[span.row] is None:
            raise ValueError(
                f"positions, row {span.row}: the row begins inside a document, but there is no "
                "state of its beginning; give the state, or begin at position 0"
            )
        else:
            groups.append((before[span.row], [span]))
    return [*groups, *((None, group) for group in fresh.values())]


def _flat_index(group: list[Span], tokens: Tensor) -> Int[Tensor, "n l"]:
    """Where the spans' tokens lie in the flattened batch."""
    width = tokens.shape[1]
    index = [[span.row * width + column for column in span.columns] for span in group]
    return torch.tensor(index, device=tokens.device)


def _row_states(state: Any, rows: int) -> list[Any]:
    if state is None:
        return [None] * rows
    if not isinstance(state, RowStates):
        return [pick_row(state, row, rows) for row in range(rows)]
    if len(state.rows) != rows:
        raise ValueError(f"state has {len(state.rows)} batch rows, but tokens has {rows}")
    return list(state.rows)


def pick_row(state: T, row: int, rows: int) -> T:
    """State of one row, as a state of one row.

    Raises:
        ValueError: a tensor whose first dimension is not the rows.
    """
    for part in tensors(state):
        if part.ndim == 0 or part.shape[0] != rows:
            raise ValueError(
                f"state has a tensor of shape {list(part.shape)} for {rows} batch rows: the first "
                "dimension of every tensor of a state must be the rows"
            )
    picked: T = _picked(state, row)
    return picked


def _picked(state: Any, row: int) -> Any:
    if isinstance(state, Tensor):
        return state[row : row + 1]
    if isinstance(state, dict):
        return {name: _picked(part, row) for name, part in state.items()}
    if isinstance(state, tuple | list):
        parts = [_picked(part, row) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)
    if is_dataclass(state) and not isinstance(state, type):
        parted = {one.name: _picked(getattr(state, one.name), row) for one in fields(state)}
        return replace(state, **parted)
    return state
