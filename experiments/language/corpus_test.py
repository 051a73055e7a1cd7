from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path

import numpy as np
import pytest

from ablate.errors import UserError
from ablate.experiments.language.corpus import Corpus, load_corpus, unit_hash
from ablate.experiments.language.ngrams import bigram_bits, unigram_bits


def write_folder(folder: Path, count: int = 60) -> dict[str, bytes]:
    """Files whose every byte tells which file it is from."""
    documents = {f"part{i % 3}/{i}.txt": bytes([65 + i]) * (20 + i) for i in range(count)}
    for name, text in documents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text)
    return documents


def test_a_folder_is_split_by_file_and_no_byte_is_lost(tmp_path: Path) -> None:
    documents = write_folder(tmp_path)
    corpus = load_corpus(str(tmp_path))
    assert set(corpus.train_files).isdisjoint(corpus.validation_files)
    assert {*corpus.train_files, *corpus.validation_files} == set(documents)
    assert corpus.validation.tobytes() == b"".join(
        documents[name] + b"\x00" for name in corpus.validation_files
    )
    shared = set(corpus.train.tolist()) & set(corpus.validation.tolist())
    assert shared == {0}


def test_the_split_of_a_file_does_not_depend_on_the_others(tmp_path: Path) -> None:
    documents = write_folder(tmp_path)
    before = load_corpus(str(tmp_path))
    fresh = tmp_path / "more"
    fresh.mkdir()
    for name in [*documents][::2]:
        (fresh / name).parent.mkdir(exist_ok=True)
        (fresh / name).write_bytes(documents[name])
    after = load_corpus(str(fresh))
    assert set(after.train_files) <= set(before.train_files)
    assert all(unit_hash(name) < 0.1 for name in before.validation_files)


def test_few_files_still_give_one_to_hold_out(tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / name).write_bytes(name.encode() * 9)
    (tmp_path / ".hidden").write_bytes(b"secret")
    corpus = load_corpus(str(tmp_path))
    held_out, trained = sorted("xy", key=unit_hash)
    assert corpus.validation.tobytes() == held_out.encode() * 9 + b"\x00"
    assert corpus.train.tobytes() == trained.encode() * 9 + b"\x00"


def test_a_single_file_is_cut_at_nine_tenths(tmp_path: Path) -> None:
    (tmp_path / "book").write_bytes(bytes(range(1, 101)))
    corpus = load_corpus(str(tmp_path / "book"))
    assert corpus.train.tolist() == list(range(1, 91))
    assert corpus.validation.tolist() == list(range(91, 101))


def test_missing_and_empty_corpora_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"corpus='.*nowhere': no such file or folder"):
        load_corpus(str(tmp_path / "nowhere"))
    (tmp_path / "only.txt").write_bytes(b"text")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="gone cannot be read: No such file"):
        load_corpus(str(tmp_path))
    (tmp_path / "gone").unlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe is no file that can be read"):
        load_corpus(str(tmp_path))
    (tmp_path / "pipe").unlink()
    with pytest.raises(UserError, match="1 files with text"):
        load_corpus(str(tmp_path))


@pytest.fixture(scope="module")
def stdlib() -> Corpus:
    return load_corpus("stdlib")


def test_the_standard_library_is_large_and_free_of_tests_and_packages(stdlib: Corpus) -> None:
    files = {*stdlib.train_files, *stdlib.validation_files}
    assert len(stdlib.train) > 3_000_000
    assert len(stdlib.validation) > 200_000
    assert {"abc.py", "json/decoder.py"} <= files
    assert not any("test" in name.split("/")[:-1] or "site-packages" in name for name in files)
    assert not any(name.startswith(("_sysconfigdata", "encodings/")) for name in files)


def test_the_digest_is_of_the_bytes_used(stdlib: Corpus) -> None:
    train, validation = stdlib.train.tobytes(), stdlib.validation.tobytes()
    both = len(train).to_bytes(8, "big") + train + validation
    assert stdlib.digest == hashlib.sha256(both).hexdigest()[:12]


def test_ngram_scores_by_hand() -> None:
    train = np.frombuffer(b"aab", dtype=np.uint8)
    previous, targets = np.array([[97, 97], [98, 97]]), np.array([[97, 98], [97, 99]])
    p = {97: 3 / 259, 98: 2 / 259, 99: 1 / 259}
    unigram = -(2 * math.log2(p[97]) + math.log2(p[98]) + math.log2(p[99])) / 4
    assert unigram_bits(train, targets) == pytest.approx(unigram, rel=1e-12)
    # After a: one a and one b were seen. After b: nothing.
    answers = [(1 + p[97]) / 3, (1 + p[98]) / 3, p[97], p[99] / 3]
    bigram = -sum(map(math.log2, answers)) / 4
    assert bigram_bits(train, previous, targets) == pytest.approx(bigram, rel=1e-12)


def test_bigram_probabilities_sum_to_one() -> None:
    train = np.frombuffer(b"some text, some more text", dtype=np.uint8)
    every = np.arange(256)
    for before in (ord("e"), ord("Z")):
        total = sum(
            2 ** -bigram_bits(train, np.array([before]), np.array([byte])) for byte in every
        )
        assert total == pytest.approx(1.0, abs=1e-12)
