"""Prompts of the six sets, letter by letter, and the packaged rows."""

from __future__ import annotations

from typing import Any

import pytest

from ablate.experiments.hub import SAMPLE
from ablate.experiments.recall.questions import Reader, published, reachable
from ablate.experiments.recall.sets import SETS
from ablate.experiments.recall.words import TextTokenizer


@pytest.mark.parametrize(
    ("name", "row", "prompt"),
    [
        ("swde", {"text": "A page\nColor: red..\n", "key": "color"}, "A page\nColor: red. Color:"),
        ("swde", {"text": "A page. color:COLOR:", "key": "color"}, "A page. Color:"),
        ("swde", {"text": "A page", "key": "running time"}, "A page. Running time:"),
        # A report keeps the spaces at its ends, a page does not.
        ("fda", {"text": "\n A report. \n", "key": "type"}, " A report. . Type:"),
        ("fda", {"text": "A report.Type:type:", "key": "type"}, "A report. Type:"),
        ("squad", {"text": " It was red. It was "}, "It was red. It was"),
        ("nq", {"context": " It was red. It was", "question": "It was "}, "It was red. It was"),
        # Another case stays, and so does a second copy.
        ("nq", {"context": "Red. it was", "question": "It was"}, "Red. it was. It was"),
        ("nq", {"context": "Red. It wasIt was", "question": "It was"}, "Red. It was. It was"),
        ("drop", {"context": "Red. it wasIt was", "question": "It was"}, "Red. It was"),
        ("drop", {"context": "Red..", "question": "It was"}, "Red. It was"),
        (
            "triviaqa",
            {"context": "[DOC] [TLE] A [PAR] Red. it was", "question": "It was"},
            "A  Red. It was",
        ),
        ("triviaqa", {"context": "[doc] Red", "question": "It was"}, "[doc] Red. It was"),
    ],
)
def test_prompts(name: str, row: dict[str, Any], prompt: str) -> None:
    assert SETS[name].prompt(row) == prompt


def test_the_sets_are_those_of_the_table_in_its_order() -> None:
    assert list(SETS) == ["swde", "nq", "drop", "fda", "squad", "triviaqa"]


READER = Reader(TextTokenizer(), 2048, 2048)


@pytest.mark.parametrize("name", SETS)
def test_ten_made_up_rows_stand_in_for_each_set(name: str) -> None:
    found = published(SETS[name], SAMPLE, 0)
    questions = READER.questions(found.rows, SETS[name])
    assert (found.kind, found.name) == ("sample_", "packaged sample")
    assert len(found.rows) == len(questions) == 10
    assert all(row["synthetic"] for row in found.rows)
    assert len({question.text for question in questions}) == 10
    for question in questions:
        assert bytes(question.tokens).decode() == question.text
        assert not question.text.endswith(" ")
    # One answer of DROP has to be reckoned; all others can be found.
    assert reachable(questions) == (90 if name == "drop" else 100)
    # One report is longer than the window.
    longest = max(len(question.tokens) for question in questions)
    assert (longest == 2048 - 48) == (name == "fda")
