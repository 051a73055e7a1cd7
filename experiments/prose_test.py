from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from ablate.errors import UserError
from ablate.experiments.prose import load_prose, split_sentences


def test_the_default_prose_is_english_and_splits_without_overlap() -> None:
    prose = load_prose("pydoc")
    train, held_out = prose.split()
    said = [sentence for document in prose.documents for sentence in document]
    assert len(said) > 1_000
    assert len(set(said)) == len(said)
    assert all(sentence.isascii() and sentence.isprintable() for sentence in said)
    kept = {sentence for document in train.documents for sentence in document}
    held = {sentence for document in held_out.documents for sentence in document}
    assert not kept & held
    assert len(kept) + len(held) == len(said)
    assert len(held) > 100


def test_sentences_run_on_and_repeat_with_the_generator() -> None:
    prose = load_prose("pydoc")
    first, second = (
        list(islice(prose.sentences(np.random.default_rng(2)), 2_000)) for _ in range(2)
    )
    assert first == second
    assert len(set(first)) > 500


def test_code_and_headings_are_left_out() -> None:
    text = """Heading
*******

This sentence is kept, as it
runs over two lines.  So is this one, with an é in it.

   x = {a: 1, b: 2}; y[3] += 4.
"""
    assert split_sentences(text) == [
        "This sentence is kept, as it runs over two lines.",
        "So is this one, with an e in it.",
    ]


def test_a_file_and_a_folder_take_the_place_of_the_default(tmp_path: Path) -> None:
    sentences = [
        f"This is the sentence with the name {chr(97 + i // 26)}{chr(97 + i % 26)}."
        for i in range(400)
    ]
    file = tmp_path / "one.txt"
    file.write_text(" ".join(sentences))
    prose = load_prose(str(file))
    assert [len(document) for document in prose.documents] == [40] * 10
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(5):
        (folder / f"{i}.txt").write_text(" ".join(sentences[i * 7 : i * 7 + 7]))
    assert [len(document) for document in load_prose(str(folder)).documents] == [7] * 5
    assert prose.digest != load_prose(str(folder)).digest


def test_missing_or_too_short_prose_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file or folder"):
        load_prose(str(tmp_path / "none"))
    short = tmp_path / "short.txt"
    short.write_text("This is a sentence of prose. This is another one, and the last.")
    with pytest.raises(UserError, match="1 documents"):
        load_prose(str(short))
