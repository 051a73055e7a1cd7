"""Prompts of the six sets, letter by letter, and the packaged rows."""

from __future__ import annotations

from typing import Any

import pytest

from ablate.experiments.hub import SAMPLE
from ablate.experiments.recall.questions import Reader, published
from ablate.experiments.recall.sets import SETS
from ablate.experiments.recall.words import ByteTokenizer


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


@pytest.mark.parametrize("name", SETS)
def test_ten_made_up_rows_stand_in_for_each_set(name: str) -> None:
    one = SETS[name]
    found = published(one, Reader(ByteTokenizer(), 2048, 2048), SAMPLE, 0)
    assert (found.kind, found.source) == ("_sample", "packaged sample")
    assert found.rows == len(found.questions) == 10
    assert len({question.text for question in found.questions}) == 10
    for question in found.questions:
        assert 1 < len(question.tokens) <= 2000
        assert bytes(question.tokens).decode() == question.text
        assert not question.text.endswith(" ")


def test_an_answer_stands_in_the_prompts_of_the_sample_unless_it_has_to_be_reasoned_out() -> None:
    reader = Reader(ByteTokenizer(), 2048, 2048)
    found = {name: published(one, reader, SAMPLE, 0) for name, one in SETS.items()}
    shares = {name: asked.reachable for name, asked in found.items()}
    assert shares == {**dict.fromkeys(SETS, 100), "drop": 90}


def test_one_report_of_the_sample_is_longer_than_the_window() -> None:
    reader = Reader(ByteTokenizer(), 2048, 2048)
    lengths = [len(one.tokens) for one in published(SETS["fda"], reader, SAMPLE, 0).questions]
    assert max(lengths) == 2048 - 48
