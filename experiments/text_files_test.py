from __future__ import annotations

from pathlib import Path

import pytest

from ablate.errors import UserError
from ablate.experiments import text_files
from ablate.experiments.babilong.babi import load
from ablate.experiments.language.corpus import load_corpus
from ablate.experiments.language.sources import open_source
from ablate.experiments.prose import load_prose
from ablate.experiments.row_files import read_rows
from ablate.experiments.text_files import check_text

TEXT = "salt é 漢 𝄞\r\n\t\x1b[0m\ufeff".encode()
CASES = [
    (b"\x7fELF\x02\x01\x01\x00\x00", 7, "0x00"),
    (b"caf\xe9 au lait", 3, "0xe9"),  # Latin-1
    ("漢".encode() * 5 + b"\xff\x00", 15, "0xff"),
    ("漢".encode() * 5 + b"\x00\xff", 15, "0x00"),
    ("漢".encode() * 5 + b"\xe6\xbc", 15, "0xe6"),  # cut within a character
    ("salt".encode("utf-16-le"), 1, "0x00"),
]


@pytest.mark.parametrize("part", [1, 2, 5, 2**20])
def test_every_character_is_text_wherever_it_is_cut(
    monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(text_files, "_PART", part)
    assert check_text(TEXT * 3, "this") == TEXT * 3
    assert check_text(b"", "this") == b""
    for content, place, byte in CASES:
        with pytest.raises(UserError, match=rf"^this is no text: its byte {place} .* is {byte}; "):
            check_text(content, "this")


def test_every_reader_of_text_refuses_what_is_none(tmp_path: Path) -> None:
    file = tmp_path / "qa1_one_train.txt"
    file.write_bytes(b"1 Mary moved.\n\x00\x01")
    (tmp_path / "qa2_two_train.txt").write_bytes(TEXT)
    said = r"qa1_one_train\.txt is no text: its byte 14 "
    for read in (
        lambda: load_corpus(str(file)),
        lambda: load_corpus(str(tmp_path)),
        lambda: open_source(str(tmp_path)),
        lambda: load_prose(str(file)),
        lambda: load(str(tmp_path), "qa1", "train"),
        lambda: list(read_rows([file])),
    ):
        with pytest.raises(UserError, match=said):
            read()


def test_bytes_of_any_script_are_a_corpus(tmp_path: Path) -> None:
    file = tmp_path / "x.bin"
    file.write_bytes(TEXT * 10)
    corpus = load_corpus(str(file))
    assert corpus.train.tobytes() + corpus.validation.tobytes() == TEXT * 10
