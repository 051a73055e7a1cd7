"""Cut a document to the model's window, as "Just read twice" does it (arXiv:2407.05483).

The document gets the window less the room for an answer. Where the answer stands is found in the
text, and half of that is kept before it. Nothing makes sure that the answer is kept: one that
stands far behind the key of its row, or is not in the document, is a question that nobody can
answer, and counts as one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ablate.experiments.recall.sets import RecallSet, Row
from ablate.experiments.recall.words import Tokenizer

ROOM = 50
"""Tokens of the window that are kept for the answer."""


def window(tokens: Sequence[int], place: int, budget: int) -> Sequence[int]:
    """Up to `budget` tokens: half of them before `place`, or fewer at the document's beginning.

    Fewer than `budget` where the document ends: nothing is taken from before in their place.
    """
    start = max(0, place - budget // 2)
    return tokens[start : start + budget]


def first_place(document: str, sought: Sequence[str]) -> int | None:
    """The first character at which any of `sought` stands, in any case; None if none does."""
    found = [re.search(re.escape(text), document, re.IGNORECASE) for text in sought]
    return min((one.start() for one in found if one), default=None)


def sought_in(row: Row, names: Sequence[str]) -> list[str]:
    """What is looked for: the columns' texts, of a list of answers the first."""
    values = [row[name] for name in names]
    return [value if isinstance(value, str) else value[0] if value else "" for value in values]


def cut(row: Row, one: RecallSet, tokenizer: Tokenizer, size: int) -> Row | None:
    """The row with its document cut to a window of `size`, or None if the protocol drops it.

    It drops rows in which a text that is looked for has no more than one character. Where none is
    found, other answers (``alt_answers``) are tried, then the place that the row itself gives
    (``tok_pos``) if the document is too long; else the window lies around the document's last
    character, and holds half as much.
    """
    budget = (size if one.largest is None else min(size, one.largest)) - ROOM
    document = one.before(row[one.document]).strip()
    sought = sought_in(row, one.sought)
    if any(len(text) <= 1 for text in sought):
        return None
    found = 0 if not sought else first_place(document, sought)
    for other in row.get("alt_answers") or () if found is None else ():
        if (found := first_place(document, [other])) is not None:
            break
    tokens = tokenizer.encode(document)
    place = len(tokenizer.encode(document[: -1 if found is None else found]))
    if found is None and row.get("tok_pos") is not None and place > budget:
        place = int(row["tok_pos"])
    return {**row, one.document: tokenizer.decode(window(tokens, place, budget))}
