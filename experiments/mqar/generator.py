"""Rows of multi-query associative recall (Arora et al. 2023, Zoology, section 3 and App. B).

A row says n pairs ``k1 v1 k2 v2 ...`` and later each key once more, at a place drawn by a power
law; the model must then say the key's value. Same law as the authors' generator, vectorised.
"""

from __future__ import annotations

import numpy as np

from ablate.errors import UserError
from ablate.experiments.rows import Tokens, distinct
from ablate.experiments.task import UNSCORED

BLANK = 0
PIECE = 4_000_000
"""Random numbers held at once; changing it changes which rows a seed gives."""


def mqar_rows(
    generator: np.random.Generator,
    rows: int,
    *,
    vocab: int,
    length: int,
    pairs: int,
    power_a: float = 0.01,
    random_non_queries: bool = True,
) -> tuple[Tokens, Tokens]:
    """Draw `rows` rows.

    Keys are drawn without replacement from [1, vocab/2), values from [vocab/2, vocab). After the
    pairs come slots of two tokens; the slot i = 1, 2, ... has weight a i^(a-1), and one slot is
    drawn for each key, without replacement. The key stands first in its slot.

    Args:
        generator: everything is drawn from it.
        rows: number of rows.
        vocab: number of tokens; 0 is blank.
        length: tokens of a row, even.
        pairs: pairs of a row, at most length / 4.
        power_a: exponent a; 0.01 asks most keys soon after the pairs, 1 anywhere.
        random_non_queries: fill blanks with uniform tokens, keys and values included.

    Returns:
        Inputs and targets, int64 ``[rows length]``; the target of a query is its value, and of
        every other position -100.

    Raises:
        UserError: sizes that do not fit together.
    """
    check_sizes(vocab=vocab, length=length, pairs=pairs, power_a=power_a)
    step = max(1, PIECE // vocab)
    parts = [
        _piece(generator, min(step, rows - start), vocab, length, pairs, power_a)
        for start in range(0, rows, step)
    ]
    inputs = np.concatenate([part[0] for part in parts])
    targets = np.concatenate([part[1] for part in parts])
    if random_non_queries:
        blank = inputs == BLANK
        inputs[blank] = generator.integers(vocab, size=int(blank.sum()))
    return inputs, targets


def check_sizes(*, vocab: int, length: int, pairs: int, power_a: float) -> None:
    """Refuse sizes that no row can have.

    Raises:
        UserError: says the size given, and the rule.
    """
    if pairs < 1 or length % 2 or length < 4 * pairs:
        raise UserError(
            f"task_args.length={length} with task_args.pairs={pairs}: a row needs an even length "
            f"of at least 4 x pairs = {4 * pairs} tokens, and at least one pair."
        )
    if vocab <= length or vocab // 2 - 1 < pairs:
        raise UserError(
            f"task_args.vocab={vocab} with task_args.length={length}, task_args.pairs={pairs}: the "
            f"vocabulary must be larger than the length, and vocab / 2 - 1 at least pairs."
        )
    if not power_a > 0:
        raise UserError(f"task_args.power_a={power_a}: must be above 0.")


def _piece(
    generator: np.random.Generator, rows: int, vocab: int, length: int, pairs: int, power_a: float
) -> tuple[Tokens, Tokens]:
    half, context = vocab // 2, 2 * pairs
    keys = 1 + distinct(generator.random((rows, half - 1)), pairs)
    values = half + distinct(generator.random((rows, vocab - half)), pairs)
    slots = np.arange(1, (length - context) // 2 + 1)
    weight = (power_a - 1) * np.log(slots)
    # The largest of log-weight + Gumbel noise, in order, are draws without replacement.
    noisy = weight + generator.gumbel(size=(rows, len(slots)))
    places = context + 2 * distinct(-noisy, pairs)

    inputs = np.full((rows, length), BLANK, dtype=np.int64)
    inputs[:, 0:context:2] = keys
    inputs[:, 1:context:2] = values
    np.put_along_axis(inputs, places, keys, axis=1)
    targets = np.full((rows, length), UNSCORED, dtype=np.int64)
    np.put_along_axis(targets, places, values, axis=1)
    return inputs, targets
