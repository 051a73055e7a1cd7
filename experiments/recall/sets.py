"""The six sets of in-context recall: their fields, and the prompt made of each row.

Prompts, windows and the score are those of Arora et al. 2024 ("Just read twice", arXiv:2407.05483),
who run the sets of "Based" (arXiv:2402.18668) without examples. Atlas Table 5 cites that protocol.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Row: TypeAlias = Mapping[str, Any]
"""A row in the columns of the hub's set."""

SUMMARY = "Summary of information above..."
"""What SWDE's texts end with, before the key; the protocol leaves it out."""
_MARKS = re.compile(r"\[(?:PAR|DOC|TLE)\]")


@dataclass(frozen=True)
class RecallSet:
    """One of the six sets.

    Args:
        name: as in the papers' tables, in lower case.
        hub: its name on the hub.
        document: the column that is cut to the window.
        sought: columns whose first place in the document the window lies around; with none it is
            the document's beginning.
        columns: what every row must have.
        golds: column of the answer, or of the list of answers any of which will do.
        before: what is done to the document before it is cut.
        prompt: text of a row, whose document has been cut, up to the answer.
        largest: the window is never larger.
    """

    name: str
    hub: str
    document: Literal["text", "context"]
    sought: tuple[str, ...]
    columns: tuple[str, ...]
    golds: str
    before: Callable[[str], str]
    prompt: Callable[[Row], str]
    largest: int | None = None

    def answers(self, row: Row) -> tuple[str, ...]:
        """The strings any of which counts as the answer."""
        found = row[self.golds]
        return (found,) if isinstance(found, str) else tuple(found)


def _without_summary(text: str) -> str:
    return text.partition(SUMMARY)[0]


def _as_it_is(text: str) -> str:
    return text


def _without_tail(text: str, tail: str) -> str:
    """`text` without any copies of `tail` at its end, whatever their case."""
    while tail and text.lower().endswith(tail.lower()):
        text = text[: -len(tail)]
    return text


def _key(row: Row) -> str:
    key: str = row["key"]
    return key[:1].upper() + key[1:] + ":"


def _swde(row: Row) -> str:
    page = _without_tail(row["text"], f"{row['key']}:")
    return f"{page.strip().strip('.')}. {_key(row)}"


def _fda(row: Row) -> str:
    report = _without_tail(row["text"], f"{row['key']}:")
    return report.strip("\n").strip(".") + f". {_key(row)}"


def _squad(row: Row) -> str:
    text: str = row["text"]
    return text.strip()


def _nq(row: Row) -> str:
    """Unlike the other two with questions: one copy is taken off, in the same case only."""
    question = row["question"].strip()
    context = row["context"].strip().removesuffix(question)
    return f"{context.strip().strip('.')}. {question}"


def _cloze(row: Row) -> str:
    question = row["question"].strip()
    context = _without_tail(row["context"].strip(), question)
    return f"{context.strip().strip('.')}. {question}"


def _trivia(row: Row) -> str:
    return _cloze({**row, "context": _MARKS.sub("", row["context"].strip())})


_PAIR = ("text", "key", "value")
_ASKED = ("context", "question", "answers")
SETS = {
    one.name: one
    for one in (
        RecallSet(
            "swde", "hazyresearch/based-swde-v2", "text", ("key", "value"), _PAIR, "value",
            _without_summary, _swde,
        ),
        RecallSet(
            "nq", "hazyresearch/based_nq_2048", "context", ("answers",), _ASKED, "answers",
            _as_it_is, _nq, largest=2000,
        ),
        RecallSet(
            "drop", "hazyresearch/based_drop", "context", (), _ASKED, "answers",
            _as_it_is, _cloze,
        ),
        RecallSet(
            "fda", "hazyresearch/based-fda", "text", ("key", "value"), _PAIR, "value",
            _as_it_is, _fda,
        ),
        RecallSet(
            "squad", "hazyresearch/based-squad", "text", ("value",), ("text", "value"), "value",
            _as_it_is, _squad,
        ),
        RecallSet(
            "triviaqa", "hazyresearch/based_triviaqa", "context", (), _ASKED, "answers",
            _as_it_is, _trivia,
        ),
    )
}  # fmt: skip
"""By name, in the order of Atlas Table 5."""
