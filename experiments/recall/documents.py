"""Made-up documents in the six formats, to train toy models on: a few facts about one thing each.

They have the columns of the hub's sets, so that prompts, windows and scores are made by the same
code. Nothing of the real sets is in them: every answer is one invented word or a number, stands in
the document once, and no answer can be guessed from another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from ablate.experiments.recall.sets import SUMMARY, Row
from ablate.experiments.recall.words import WordTokenizer, split

_KEYS = "bird cargo color flag guild harbor lamp metal month owner river sail spice stone tool wood"
_BEGINNINGS, _ENDS = "bdfgklmn", "avo ero ilo uno ade ori ume esk"
KEYS = tuple(_KEYS.split())
NAMES = tuple(first + rest for first in _BEGINNINGS for rest in _ENDS.split())
"""Answers, all of one length: none stands inside another."""
NUMBERS = tuple(str(number) for number in range(10, 10 + len(NAMES)))
"""Answers in the form of DROP."""
SUBJECTS = ("Arbel", "Corvin", "Dorset", "Halmar", "Isolt", "Pentar", "Tavira", "Welkin")
FILLERS = (
    "Nothing more was found.",
    "Old lists say the same.",
    "The rest is not known.",
    "Others wrote of it later.",
)


@dataclass(frozen=True)
class Sizes:
    """How large documents are.

    Args:
        facts: facts of a document, with different keys and answers.
        fillers: sentences without a fact, at random places.
        keys: different keys.
        values: different answers.
    """

    facts: int
    fillers: int
    keys: int
    values: int


class Document(NamedTuple):
    """One document: a row of its set for each fact, and the words that ask for that fact."""

    rows: tuple[Row, ...]
    asked: tuple[str, ...]

    @property
    def golds(self) -> tuple[str, ...]:
        """The answer of each row."""
        return tuple(row["value"] if "value" in row else row["answers"][0] for row in self.rows)

    @property
    def identity(self) -> str:
        """All that it says."""
        row = self.rows[0]
        text: str = row.get("context") or row["text"]
        return text


def draw(generator: np.random.Generator, name: str, sizes: Sizes) -> Document:
    """Draw a document in the format of the set `name`."""
    values = NUMBERS if name == "drop" else NAMES
    keys = [KEYS[i] for i in generator.permutation(sizes.keys)[: sizes.facts]]
    answers = [values[i] for i in generator.permutation(sizes.values)[: sizes.facts]]
    facts = list(zip(keys, answers, strict=True))
    subject = SUBJECTS[generator.integers(len(SUBJECTS))]
    statement, form = _FORMS[name]
    parts = [statement.format(key=key, value=value) for key, value in facts]
    for _ in range(sizes.fillers):
        filler = FILLERS[generator.integers(len(FILLERS))]
        parts.insert(int(generator.integers(len(parts) + 1)), filler)
    return form(subject, parts, facts)


_Facts = Sequence[tuple[str, str]]
_CLOZE = "Its {key} is"


def _page(subject: str, parts: Sequence[str], facts: _Facts) -> Document:
    text = "\n".join([subject, *parts])
    return _by_key([f"{text}\n{SUMMARY} {key}:" for key, _ in facts], facts)


def _report(subject: str, parts: Sequence[str], facts: _Facts) -> Document:
    return _by_key([" ".join([f"Report on {subject}.", *parts])] * len(facts), facts)


def _by_key(texts: Sequence[str], facts: _Facts) -> Document:
    rows = [
        {"text": text, "key": key, "value": value}
        for text, (key, value) in zip(texts, facts, strict=True)
    ]
    return Document(tuple(rows), tuple(f"{key.capitalize()}:" for key, _ in facts))


def _passage(subject: str, parts: Sequence[str], facts: _Facts) -> Document:
    context = " ".join([f"This is {subject}.", *parts])
    asked = [_CLOZE.format(key=key) for key, _ in facts]
    rows = [
        {
            "text": f"{context} {cloze}",
            "context": context,
            "question": f"What is its {key}?",
            "value": value,
        }
        for cloze, (key, value) in zip(asked, facts, strict=True)
    ]
    return Document(tuple(rows), tuple(asked))


def _asking(beginning: str, between: str) -> Callable[..., Document]:
    def form(subject: str, parts: Sequence[str], facts: _Facts) -> Document:
        context = between.join([beginning.format(subject=subject), *parts])
        asked = tuple(_CLOZE.format(key=key) for key, _ in facts)
        rows = tuple(
            {"context": context, "question": cloze, "answers": [value]}
            for cloze, (_, value) in zip(asked, facts, strict=True)
        )
        return Document(rows, asked)

    return form


_KEYED, _SAID = "{key}: {value}", "Its {key} is {value}."
_FORMS: dict[str, tuple[str, Callable[..., Document]]] = {
    "swde": (_KEYED, _page),
    "nq": (_SAID, _asking("Here is {subject}.", " ")),
    "drop": (_SAID, _asking("A count of {subject}.", " ")),
    "fda": (f"{_KEYED}.", _report),
    "squad": (_SAID, _passage),
    "triviaqa": (_SAID, _asking("[DOC] [TLE] {subject}", " [PAR] ")),
}
"""How a set says a fact, and what makes a document of such statements."""


@cache
def toy_words() -> WordTokenizer:
    """All words and marks of all documents that `draw` can make, whatever their sizes."""
    said = [*KEYS, *NAMES, *NUMBERS, *SUBJECTS, *FILLERS, SUMMARY, "\n"]
    for name, (statement, _) in _FORMS.items():
        said.append(statement.format(key="", value=""))
        document = draw(np.random.default_rng(0), name, Sizes(1, 0, 1, 1))
        said += [document.identity, *document.asked]
    return WordTokenizer([word for text in said for word in split(text)])
