"""The window keeps what the protocol says it keeps, and loses what it says it loses."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.experiments.recall.sets import SETS, Row
from ablate.experiments.recall.window import ROOM, cut, first_place, window
from ablate.experiments.recall.words import TextTokenizer, Tokenizer


class Pieces:
    """Words with their space before them, cut into pieces of three letters: a stand-in for BPE."""

    def __init__(self) -> None:
        self.pieces: list[str] = []

    @property
    def vocab(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        found = re.findall(r"\s*\S{1,3}|\s+", text)
        self.pieces += [piece for piece in dict.fromkeys(found) if piece not in self.pieces]
        return [self.pieces.index(piece) for piece in found]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.pieces[token] for token in tokens)


TOKENIZERS = {"bytes": TextTokenizer, "pieces": Pieces}


@pytest.mark.parametrize(
    ("place", "budget", "kept"),
    [
        (0, 6, [0, 1, 2, 3, 4, 5]),
        (2, 6, [0, 1, 2, 3, 4, 5]),
        (10, 6, [7, 8, 9, 10, 11, 12]),
        (10, 7, [7, 8, 9, 10, 11, 12, 13]),
        # Nothing from before makes up for what is missing behind.
        (19, 6, [16, 17, 18, 19]),
        (5, 40, list(range(20))),
    ],
)
def test_windows_of_twenty_tokens(place: int, budget: int, kept: list[int]) -> None:
    assert list(window(range(20), place, budget)) == kept


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 300), st.integers(0, 299), st.integers(1, 120))
def test_half_the_window_lies_before_the_place(length: int, place: int, budget: int) -> None:
    place = min(place, length - 1)
    kept = list(window(range(length), place, budget))
    assert len(kept) <= budget
    assert kept == list(range(kept[0], kept[-1] + 1))
    assert place in kept or budget == 1
    assert place - kept[0] == min(place, budget // 2)
    assert len(kept) == budget or kept[-1] == length - 1


def test_the_first_of_several_places_counts_in_any_case() -> None:
    assert first_place("one Two three two", ["two"]) == 4
    assert first_place("a.c abc", ["abc"]) == 4  # no pattern: the dot is a dot
    assert first_place("key: value", ["value", "key"]) == 0
    assert first_place("key: value", ["color"]) is None
    assert first_place("key", []) is None


@pytest.mark.parametrize("kind", TOKENIZERS)
@settings(max_examples=40, deadline=None)
@given(before=st.integers(0, 400), behind=st.integers(0, 400), size=st.integers(ROOM + 30, 300))
def test_an_answer_in_the_document_stays_in_it(
    kind: str, before: int, behind: int, size: int
) -> None:
    text = f"{'lorem ' * before}Zirkon {'ipsum ' * behind}"
    row = {"context": text, "question": "It is", "answers": ["zirkon", "other"]}
    tokenizer: Tokenizer = TOKENIZERS[kind]()
    short = cut(row, SETS["nq"], tokenizer, size)
    assert short is not None
    assert "Zirkon" in short["context"]
    assert short["context"] in text
    assert len(tokenizer.encode(short["context"])) <= size - ROOM + 1
    assert short["answers"] == row["answers"]


def document(sentences: int) -> str:
    return "".join(f"Sentence {number:03d} here. " for number in range(sentences))


def cut_bytes(row: Row, name: str, size: int) -> str:
    short = cut(row, SETS[name], TextTokenizer(), size)
    assert short is not None
    found: str = short[SETS[name].document]
    return found


@pytest.mark.parametrize("name", ["drop", "triviaqa"])
def test_sets_without_a_place_keep_the_beginning(name: str) -> None:
    row = {"context": document(50), "question": "It is", "answers": ["040"]}
    kept = cut_bytes(row, name, 250)
    assert kept == document(50)[:200]
    assert "040" not in kept  # a question that cannot be answered; it counts as a miss


def test_of_key_and_value_the_earlier_one_counts_so_that_a_late_value_is_lost() -> None:
    text = f"Color: see below. {document(50)}Color: amber."
    kept = cut_bytes({"text": text, "key": "color", "value": "amber"}, "fda", 250)
    assert kept == text[:200]
    # The passages of SQuAD have no key: the window is where the value is.
    assert "amber" in cut_bytes({"text": text, "key": "color", "value": "amber"}, "squad", 250)


def test_where_no_answer_stands_half_a_window_of_the_end_is_left() -> None:
    row = {"context": document(50), "question": "It is", "answers": ["zirkon"]}
    whole = document(50).strip()
    assert cut_bytes(row, "nq", 250) == whole[-101:]
    assert (
        cut_bytes({**row, "alt_answers": ["nowhere", "020"]}, "nq", 250)
        == (whole[whole.index("020") - 100 : whole.index("020") + 100])
    )
    assert cut_bytes({**row, "tok_pos": 300}, "nq", 250) == whole[200:400]
    # The row's own place is for documents that are too long.
    short = {**row, "context": "No answer here.", "tok_pos": 3}
    assert cut_bytes(short, "nq", 250) == "No answer here."


def test_rows_with_an_answer_of_one_character_are_dropped_where_it_is_looked_for() -> None:
    one = {"context": document(5), "question": "It is", "answers": ["7", "seven"]}
    assert cut(one, SETS["nq"], TextTokenizer(), 250) is None
    assert cut({**one, "answers": []}, SETS["nq"], TextTokenizer(), 250) is None
    assert cut(one, SETS["drop"], TextTokenizer(), 250) is not None
    pair = {"text": document(5), "key": "k", "value": "Sentence"}
    assert cut(pair, SETS["swde"], TextTokenizer(), 250) is None


def test_the_window_of_nq_ends_at_two_thousand() -> None:
    row = {"context": document(200), "question": "It is", "answers": ["Sentence 000"]}
    assert len(cut_bytes(row, "nq", 2048)) == len(cut_bytes(row, "nq", 2000)) == 2000 - ROOM
    assert len(cut_bytes(row, "drop", 2048)) == 2048 - ROOM


def test_the_summary_of_a_page_goes_before_it_is_cut() -> None:
    text = f"{document(3)}\nSummary of information above... color:"
    row = {"text": text, "key": "color", "value": "Sentence"}
    assert cut_bytes(row, "swde", 2048) == document(3).strip()
