"""MAD's other three tasks: selective copying, compression, memorization (Poli et al. 2024)."""

from __future__ import annotations

import numpy as np

from ablate.errors import UserError
from ablate.experiments.rows import Tokens
from ablate.experiments.task import UNSCORED

MAP_SEED = 12345
"""Seed of the map to memorise, as in the authors' code."""


def selective_copying(
    generator: np.random.Generator, rows: int, *, vocab: int, length: int, copies: int
) -> tuple[Tokens, Tokens]:
    """Draw rows of `copies` tokens among blanks, a copy token, and room for the answer.

    Content tokens are [0, vocab - 2); vocab - 2 is blank and vocab - 1 says "copy now". Every blank
    is put before a content token drawn uniformly, so the last content token stands right before
    the copy token.

    Returns:
        Inputs and targets, int64 ``[rows length]``; targets are the content tokens on the last
        `copies` positions, whose inputs are blank, and -100 elsewhere.

    Raises:
        UserError: sizes that do not fit together.
    """
    if copies < 1 or length <= 2 * copies + 1 or vocab < 3:
        raise UserError(
            f"task_args.length={length} with task_args.copies={copies}, task_args.vocab={vocab}: "
            f"needs a length above 2 x copies + 1 = {2 * copies + 1}, and at least 3 tokens."
        )
    content = generator.integers(vocab - 2, size=(rows, copies))
    blanks = length - 2 * copies - 1
    before = generator.integers(copies, size=(rows, blanks)) + copies * np.arange(rows)[:, None]
    counts = np.bincount(before.ravel(), minlength=rows * copies).reshape(rows, copies)
    places = np.arange(copies) + counts.cumsum(axis=1)
    inputs = np.full((rows, length), vocab - 2, dtype=np.int64)
    np.put_along_axis(inputs, places, content, axis=1)
    inputs[:, copies + blanks] = vocab - 1
    targets = np.full((rows, length), UNSCORED, dtype=np.int64)
    targets[:, -copies:] = content
    return inputs, targets


def compression(
    generator: np.random.Generator, rows: int, *, vocab: int, length: int
) -> tuple[Tokens, Tokens]:
    """Draw rows of length - 1 uniform tokens and the compress token, vocab - 1.

    Returns:
        Inputs and targets, int64 ``[rows length]``, both the same: the model must say the whole row
        again, from its hidden state at the last position alone.

    Raises:
        UserError: no room for one token.
    """
    if length < 2 or vocab < 2:
        raise UserError(
            f"task_args.length={length}, task_args.vocab={vocab}: both must be at least 2."
        )
    inputs = generator.integers(vocab - 1, size=(rows, length))
    inputs[:, -1] = vocab - 1
    return inputs, inputs.copy()


def memorization(
    generator: np.random.Generator, rows: int, *, vocab: int, length: int
) -> tuple[Tokens, Tokens]:
    """Draw rows of ``key insert key insert ...``; the value of the key is due at each insert.

    The map from keys to values is one for all rows, train and test: it has to be learned by the
    weights. Keys are drawn with replacement.

    Returns:
        Inputs and targets, int64 ``[rows length]``; targets at the inserts, -100 elsewhere.

    Raises:
        UserError: sizes that do not fit together.
    """
    if length % 2 or length < 2 or vocab < 3:
        raise UserError(
            f"task_args.length={length}, task_args.vocab={vocab}: memorization needs an even "
            "length and at least 3 tokens."
        )
    keys, values = memorized_map(vocab)
    drawn = generator.integers(len(keys), size=(rows, length // 2))
    inputs = np.full((rows, length), vocab - 1, dtype=np.int64)
    inputs[:, ::2] = keys[drawn]
    targets = np.full((rows, length), UNSCORED, dtype=np.int64)
    targets[:, 1::2] = values[drawn]
    return inputs, targets


def memorized_map(vocab: int) -> tuple[Tokens, Tokens]:
    """Keys and their values: lower and upper half of the vocabulary without its last token."""
    stream = np.random.default_rng(MAP_SEED)
    half = (vocab - 1) // 2
    # Lists, not arrays: NumPy shuffles the two differently, and the authors shuffle lists.
    keys, values = list(range(half)), list(range(half, vocab - 1))
    stream.shuffle(keys)
    stream.shuffle(values)
    return np.array(keys), np.array(values[:half])
