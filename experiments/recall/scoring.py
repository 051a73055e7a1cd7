"""How answers are counted, and completion of prompts of any lengths to get them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from ablate.experiments.answers import Predictor
from ablate.experiments.greedy import Prompt, say_greedily
from ablate.experiments.recall.words import Tokenizer

NEW_TOKENS = 48
"""Tokens that a model may say."""
STOPS = "\n\0"
"""End of a line, and of a document as tokenizers here decode it."""
SPREAD = 32
"""Prompts read together differ by no more tokens."""


def contains(said: str, golds: Sequence[str]) -> bool:
    """Whether any of `golds` stands in `said`, as it is but for case (Arora et al. 2024).

    Inside a word counts, too: "no" is in "know".

    Raises:
        ValueError: no answer to look for.
    """
    if not golds:
        raise ValueError("a question needs at least one answer")
    return any(re.search(re.escape(gold), said, re.IGNORECASE) for gold in golds)


def first_line(said: str) -> str:
    """What is said before the line ends, or the document."""
    return re.split(f"[{STOPS}]", said, maxsplit=1)[0]


def complete(
    model: Predictor,
    prompts: Sequence[Prompt],
    tokenizer: Tokenizer,
    *,
    batch: int,
    limit: int = NEW_TOKENS,
) -> list[str]:
    """What the model says after each prompt, its likeliest token each time, to the line's end.

    Prompts of like length are read together, by `say_greedily`.

    Args:
        model: ``(tokens, state)`` to ``(logits, state)``.
        prompts: tokens of each, at least one.
        tokenizer: of the model.
        batch: prompts of one call, at most.
        limit: tokens said at most.
    """
    stops = _stops(tokenizer)
    said = [""] * len(prompts)
    for rows in _groups(prompts, batch):
        tokens = say_greedily(model, [prompts[row] for row in rows], limit=limit, stops=stops)
        for row, some in zip(rows, tokens, strict=True):
            said[row] = first_line(tokenizer.decode(some))
    return said


def _stops(tokenizer: Tokenizer) -> Callable[[int], bool]:
    known: dict[int, bool] = {}

    def stops(token: int) -> bool:
        if token not in known:
            known[token] = not set(STOPS).isdisjoint(tokenizer.decode([token]))
        return known[token]

    return stops


def _groups(prompts: Sequence[Prompt], batch: int) -> Iterator[list[int]]:
    """Indices of prompts that are read together, the shortest first."""
    group: list[int] = []
    for row in sorted(range(len(prompts)), key=lambda row: len(prompts[row])):
        if group and (len(group) == batch or len(prompts[row]) - len(prompts[group[0]]) > SPREAD):
            yield group
            group = []
        group.append(row)
    if group:
        yield group
