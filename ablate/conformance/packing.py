"""Checks of a model on rows that hold several documents, or padding."""

from __future__ import annotations

import torch
from torch import Tensor

from ablate.components.language_model import LanguageModel
from ablate.conformance.subject import VOCAB, Subject, check, gap

TOLERANCE = 1e-9  # on logits of order 1 in float64
PAD = VOCAB - 1  # a token that stands nowhere else
# Lengths of the documents in each row: equal ones, which share a call, and one of a single token.
PACKED = ((5, 6), (1, 4, 6))
PADDED = (
    (0, 1, 2, 3, 4, 5, 6, -1, -1, -1, -1),
    (-1, -1, 0, 1, 2, 3, 4, -1, 5, 6, -1),
)


@check(
    "documents packed into one row give the logits and gradients of each document alone",
    "A document is read with the memory of another one. Usual causes: a state=None that is not a "
    "fresh start (a cache on self), state tensors whose first dimension is not the batch row.",
)
def check_packed(subject: Subject) -> tuple[bool, str]:
    """Two and three documents a row, against a call for each of them."""
    model, tokens = subject.copy(), subject.tokens
    positions = torch.tensor([[n for size in row for n in range(size)] for row in PACKED])
    packed = model(tokens, positions=positions)[0]
    alone = torch.stack(
        [
            torch.cat([model(part[None])[0][0] for part in torch.split(row, list(sizes))])
            for row, sizes in zip(tokens, PACKED, strict=True)
        ]
    )
    found = gap(packed, alone)
    gradient = gap(_gradient(model, packed), _gradient(model, alone))
    return max(found, gradient) <= TOLERANCE, (
        f"largest difference of logits {found:.2g}, of gradients {gradient:.2g}"
    )


def _gradient(model: LanguageModel, logits: Tensor) -> Tensor:
    return torch.autograd.grad(logits.sin().sum(), model.embedding.weight)[0]


@check(
    "padding before, inside or after a row changes nothing: no logits, no gradient, no state",
    "Prompts of different lengths in one batch would be answered differently. Usual causes: state "
    "tensors whose first dimension is not the batch row, one position or count for all rows held "
    "in a tensor, a cache on self.",
)
def check_padded(subject: Subject) -> tuple[bool, str]:
    """Rows of seven tokens padded to eleven; both then go on from the state for two tokens."""
    model = subject.copy()
    rows = subject.tokens[:, :9] % PAD
    positions = torch.tensor(PADDED)
    real = positions >= 0
    tokens = torch.full_like(positions, PAD)
    tokens[real] = rows[:, :7].flatten()
    said, state = model(tokens, positions=positions)
    with torch.no_grad():
        plain = model(rows)[0]
        after = model(rows[:, 7:], state)[0]
    inside = gap(said[real].view(2, 7, VOCAB), plain[:, :7])
    later = gap(after, plain[:, 7:])
    pads = _gradient(model, said)[PAD].abs().max().item()
    return max(inside, later, pads) <= TOLERANCE, (
        f"largest difference beside padding {inside:.2g}, after it {later:.2g}; gradient of "
        f"padding {pads:.2g}"
    )
