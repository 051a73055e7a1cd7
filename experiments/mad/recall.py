"""MAD's three in-context recall tasks: plain, noisy and fuzzy (Poli et al. 2024, section 3.1).

Rows are sequences of key-value pairs; a key that has been seen before must be followed by its
value. All keys that recur are questions (the authors' ``multi_query``).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ablate.errors import UserError
from ablate.experiments.rows import Tokens, distinct
from ablate.experiments.task import UNSCORED

MOTIF = 3
"""Most tokens of a key or value of the fuzzy task."""
PIECE = 1_000
"""Rows of the fuzzy task drawn at once; changing it changes which rows a seed gives."""

Motif: TypeAlias = tuple[int, ...]


def in_context_recall(
    generator: np.random.Generator,
    rows: int,
    *,
    vocab: int,
    length: int,
    train: bool,
    noise: float = 0.0,
    noise_vocab: int = 0,
) -> tuple[Tokens, Tokens]:
    """Draw rows of length / 2 pairs, of which a share `noise` is two noise tokens instead.

    Of the vocab - noise_vocab first tokens the lower half are keys and the upper half values. Keys
    are drawn with replacement; each key has one value in a row. One pair before the last is always
    real, and the last pair repeats a key that came before, drawn from the different ones.

    Returns:
        Inputs and targets, int64 ``[rows length - 1]``: shifted by one. Targets are all next
        tokens for training; else only values of keys seen before, and -100 elsewhere.

    Raises:
        UserError: sizes that do not fit together.
    """
    content = vocab - noise_vocab
    if length % 2 or length < 4 or content < 2:
        raise UserError(
            f"task_args.length={length}, task_args.vocab={vocab}: needs an even length of at least "
            f"4, and two tokens beside the {noise_vocab} of noise."
        )
    if not 0 <= noise < 1 or (noise > 0 and noise_vocab < 1):
        raise UserError(
            f"task_args.noise={noise}: must be in [0, 1), with noise_vocab of at least 1."
        )
    keys, pairs = content // 2, length // 2
    asked = generator.integers(keys, size=(rows, pairs))
    value_of = generator.integers(keys, content, size=(rows, keys))
    noisy = generator.random((rows, pairs)) < noise
    noisy[np.arange(rows), generator.integers(pairs - 1, size=rows)] = False
    noisy[:, -1] = False
    asked[:, -1], repeated = _close(generator, asked, noisy, keys)

    values = np.take_along_axis(value_of, asked, axis=1)
    tokens = np.stack((asked, values), axis=2)  # rows, pairs, 2
    fill = generator.integers(content, vocab, size=tokens.shape) if noise else tokens
    tokens = np.where(noisy[:, :, None], fill, tokens).reshape(rows, length)
    answers = np.full((rows, length), UNSCORED, dtype=np.int64)
    answers[:, 1::2] = np.where(repeated, values, UNSCORED)
    return tokens[:, :-1], (tokens if train else answers)[:, 1:]


def _close(
    generator: np.random.Generator, asked: Tokens, noisy: NDArray[np.bool_], keys: int
) -> tuple[Tokens, NDArray[np.bool_]]:
    """The key that each row repeats at its end, and where a real pair's key came before."""
    rows, pairs = asked.shape
    seen = np.zeros((rows, keys), dtype=bool)
    repeated = np.zeros((rows, pairs), dtype=bool)
    here = np.arange(rows)
    for pair in range(pairs - 1):
        repeated[:, pair] = seen[here, asked[:, pair]] & ~noisy[:, pair]
        seen[here, asked[:, pair]] |= ~noisy[:, pair]
    repeated[:, -1] = True
    return np.where(seen, generator.random(seen.shape), -1.0).argmax(axis=1), repeated


def fuzzy_recall(
    generator: np.random.Generator, rows: int, *, vocab: int, length: int, train: bool
) -> tuple[Tokens, Tokens]:
    """Draw rows whose keys and values are motifs of one to three different tokens.

    The last token of the vocabulary pads on the left; of the others the lower half make keys, the
    upper half values. The length of a motif is uniform, but keys outside training always have three
    tokens. One pair is put into the row at a random place, and repeated at its end.

    Returns:
        Inputs and targets, int64 ``[rows length]``: shifted by one. Targets are all next tokens for
        training; else only the value tokens of keys seen before, and -100 elsewhere.

    Raises:
        UserError: sizes that do not fit together.
    """
    if length <= 4 * MOTIF or (vocab - 1) // 2 < MOTIF:
        raise UserError(
            f"task_args.length={length}, task_args.vocab={vocab}: fuzzy_recall needs a length "
            f"above {4 * MOTIF} and at least {2 * MOTIF + 1} tokens."
        )
    tokens = np.full((rows, length + 1), vocab - 1, dtype=np.int64)
    answers = np.full((rows, length + 1), UNSCORED, dtype=np.int64)
    for start in range(0, rows, PIECE):
        count = min(PIECE, rows - start)
        keys, values = _motifs(generator, count, vocab - 1, length // 2 + 1, train)
        places = generator.random(count)
        for row in range(count):
            said, scored = _fuzzy_row(keys[row], values[row], float(places[row]), length)
            tokens[start + row, -len(said) :] = said
            answers[start + row, -len(said) :] = scored
    return tokens[:, :-1], (tokens if train else answers)[:, 1:]


def _motifs(
    generator: np.random.Generator, rows: int, content: int, count: int, train: bool
) -> tuple[list[list[Motif]], list[list[Motif]]]:
    """`count` keys and values for each row."""
    drawn = []
    for (low, high), shortest in zip(
        pairwise((0, content // 2, content)), (1 if train else MOTIF, 1), strict=True
    ):
        tokens = low + distinct(generator.random((rows * count, high - low)), MOTIF)
        sizes = generator.integers(shortest, MOTIF + 1, size=rows * count).tolist()
        motifs = [tuple(motif[:size]) for motif, size in zip(tokens.tolist(), sizes, strict=True)]
        drawn.append([motifs[row * count : (row + 1) * count] for row in range(rows)])
    return drawn[0], drawn[1]


def _fuzzy_row(
    keys: list[Motif], values: list[Motif], place: float, length: int
) -> tuple[list[int], list[int]]:
    """One row without its padding; the first key and value are those asked at the end."""
    probe = len(keys[0]) + len(values[0])
    limit = length - probe - 2 * MOTIF
    # The authors' place can lie behind the last pair, so that the row asks what it never said.
    start = min(int(place * (length - 2 * probe)), max(0, limit - 2 * MOTIF))
    said: list[int] = []
    scored: list[int] = []
    known: dict[Motif, Motif] = {}
    for key, value in zip(keys[1:], values[1:], strict=True):
        if len(said) >= limit:
            break
        if (keys[0] not in known and len(said) >= start) or key == keys[0]:
            key, value = keys[0], values[0]
        value = known.get(key, value)
        said += key + value
        scored += [UNSCORED] * len(key)
        scored += value if key in known else [UNSCORED] * len(value)
        known[key] = value
    said += keys[0] + values[0]
    scored += [UNSCORED] * len(keys[0])
    scored += values[0]
    return said, scored
