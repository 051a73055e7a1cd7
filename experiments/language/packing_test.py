from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablate.errors import Failure, UserError
from ablate.experiments.language import packing, shards, sources
from ablate.experiments.language.packing import build
from ablate.experiments.language.shards import INDEX, Packed, Stream, check_folder, open_packed
from ablate.experiments.language.sources import Document, Source, open_source
from ablate.experiments.language.tokenizer import FILE, train_bpe

DOCUMENTS = [
    Document(f"document {i} says {'ab' * (i % 7)} and no more", i % 5 == 0) for i in range(60)
]


def source(documents: list[Document] = DOCUMENTS, key: str = "k") -> Source:
    return Source("mine", "folder mine", False, key, "every fifth", lambda: iter(documents))


def packed(folder: Path, tokenizer: str = "bytes", **options: Any) -> Packed:
    build(folder, source, tokenizer, **options)
    return open_packed(folder)


def text_of(documents: list[Document], *, held_out: bool) -> bytes:
    return b"".join(one.text.encode() + b"\0" for one in documents if one.held_out == held_out)


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_what_is_packed_is_the_text(tmp_path: Path, tokenizer: str) -> None:
    found = packed(tmp_path / "mine", tokenizer)
    for split, stream in ((False, found.train), (True, found.validation)):
        decode = found.tokenizer().decoder()
        text = b"".join(map(decode, stream.read(0, len(stream)).tolist()))
        assert text == text_of(DOCUMENTS, held_out=split)
    sizes = [len(one.text) + 1 for one in DOCUMENTS if one.held_out]
    assert found.sizes[:, 1].tolist() == sizes
    assert found.sizes[:, 0].sum() == len(found.validation)
    assert found.facts["train_bytes"] == len(text_of(DOCUMENTS, held_out=False))
    assert found.facts["dtype"] == "uint16"


def test_shards_read_as_one_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "SHARD_TOKENS", 200)
    monkeypatch.setattr(packing, "BATCH", 3)
    found = packed(tmp_path / "mine")
    assert sum(part["kind"] == "train" for part in found.facts["parts"]) > 4
    whole = np.frombuffer(text_of(DOCUMENTS, held_out=False), np.uint8)
    for start, count in ((0, 1), (150, 300), (len(whole) - 7, 7)):
        assert found.train.read(start, count).tolist() == whole[start : start + count].tolist()
    assert len(found.train) == len(whole)
    empty = Stream([np.arange(3), np.arange(0), np.arange(3, 5)])
    assert empty.read(1, 4).tolist() == [1, 2, 3, 4]


def test_a_build_that_was_cut_goes_on_and_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "SHARD_TOKENS", 200)
    monkeypatch.setattr(packing, "BATCH", 3)
    whole = packed(tmp_path / "whole", "bpe:280")

    def cut() -> Iterator[Document]:
        yield from DOCUMENTS[:40]
        raise KeyboardInterrupt

    ready = iter([True, False])

    def dying() -> Iterator[Document]:
        return iter(DOCUMENTS) if next(ready) else cut()

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "cut", lambda: replace(source(), documents=dying), "bpe:280")
    assert not (tmp_path / "cut").exists()
    encoded: list[str] = []
    monkeypatch.setattr(packing, "open_tokenizer", _spying(packing.open_tokenizer, encoded))
    again = packed(tmp_path / "cut", "bpe:280")
    assert again.digest == whole.digest
    assert again.facts["parts"] == whole.facts["parts"]
    assert encoded == [one.text for one in DOCUMENTS[21:]]


def test_what_is_cut_at_its_very_end_is_not_tokenized_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = packing._write
    encoded: list[str] = []

    def dying(path: Path, content: bytes) -> None:
        if path.name == INDEX:
            raise KeyboardInterrupt
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(packing, "_write", dying)
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path / "x", source, "bpe:280")
    monkeypatch.setattr(packing, "open_tokenizer", _spying(packing.open_tokenizer, encoded))
    found = packed(tmp_path / "x", "bpe:280")
    assert encoded == []
    assert found.facts["documents"] == len(DOCUMENTS)
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == sorted(
        [INDEX, FILE, *(part["file"] for part in found.facts["parts"])]
    )


def _spying(opened: Callable[..., Any], seen: list[str]) -> Callable[..., Any]:
    def spy(*args: Any) -> Any:
        tokenizer = opened(*args)
        encode = tokenizer.encode
        tokenizer.encode = lambda texts: (seen.extend(texts), encode(texts))[1]
        return tokenizer

    return spy


def test_another_text_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "SHARD_TOKENS", 200)
    monkeypatch.setattr(packing, "BATCH", 3)

    def dying() -> Iterator[Document]:
        yield from DOCUMENTS[:40]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "x", lambda: replace(source(), documents=dying), "bytes")
    build(tmp_path / "x", lambda: source(DOCUMENTS[::-1], key="other"), "bytes")
    found = open_packed(tmp_path / "x").train
    assert found.read(0, len(found)).astype(np.uint8).tobytes() == text_of(
        DOCUMENTS[::-1], held_out=False
    )


def test_it_is_built_once(tmp_path: Path) -> None:
    packed(tmp_path / "x")

    def none() -> Source:
        raise AssertionError("looked for the text again")

    build(tmp_path / "x", none, "bytes")


@pytest.mark.parametrize("full", [True, False])
def test_damage_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    monkeypatch.setattr(shards, "HASHED", 2**28 if full else 0)
    packed(tmp_path / "x")
    shards._open.cache_clear()
    shard = tmp_path / "x/train-00000.bin"
    good = shard.read_bytes()
    shard.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
    with pytest.raises(Failure, match=r"train-00000.bin is damaged, its hash.*data prepare"):
        open_packed(tmp_path / "x")
    shard.write_bytes(good[:-2])
    with pytest.raises(Failure, match=f"damaged: {len(good) - 2} bytes in place of {len(good)}"):
        open_packed(tmp_path / "x")
    shard.unlink()
    with pytest.raises(Failure, match="train-00000.bin is missing"):
        open_packed(tmp_path / "x")
    shard.write_bytes(good)
    check_folder(tmp_path / "x")
    assert len(open_packed(tmp_path / "x").train) == len(good) / 2
    shard.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
    with pytest.raises(Failure, match="its hash is another"):
        check_folder(tmp_path / "x")
    for text in ("{", "[]", '{"format": 1, "parts": []}'):
        (tmp_path / "x" / INDEX).write_text(text)
        with pytest.raises(Failure, match="index.json is damaged"):
            open_packed(tmp_path / "x")


def test_a_tokenizer_that_did_not_make_the_tokens_is_noticed(tmp_path: Path) -> None:
    file, other = (tmp_path / name / FILE for name in ("x", "y"))
    found = packed(tmp_path / "x", "bpe:280")
    assert found.tokenizer().digest == found.facts["tokenizer_digest"]
    packed(tmp_path / "y", "bpe:290")
    for damage, said in (
        (lambda: file.write_bytes(other.read_bytes()), "is not the one that made the tokens"),
        (lambda: file.write_text("{"), "is no tokenizer"),
        (file.unlink, "is no tokenizer: .*No such file"),
    ):
        damage()
        for use in (found.tokenizer, lambda: check_folder(tmp_path / "x")):
            with pytest.raises(Failure, match=f"{said}.*prepare it again"):
                use()


def test_the_digest_is_of_tokens_and_tokenizer(tmp_path: Path) -> None:
    names = ("bytes", "bpe:280", "bpe:290")
    digests = {packed(tmp_path / name, name).digest for name in names}
    assert len(digests) == 3
    build(tmp_path / "moved", lambda: replace(source(), origin="folder other"), "bytes")
    assert open_packed(tmp_path / "moved").digest in digests
    build(tmp_path / "sample", lambda: replace(source(), is_sample=True), "bytes")
    assert open_packed(tmp_path / "sample").digest not in digests


def test_a_limit_takes_the_first_documents(tmp_path: Path) -> None:
    found = packed(tmp_path / "x", limit=300)
    read = found.facts["documents"]
    assert sum(len(one.text) for one in DOCUMENTS[: read - 1]) < 300
    assert sum(len(one.text) for one in DOCUMENTS[:read]) >= 300
    assert found.train.read(0, 9).astype(np.uint8).tobytes() == b"document "


@pytest.mark.parametrize("held_out", [True, False])
def test_both_parts_need_a_document(tmp_path: Path, held_out: bool) -> None:
    few = [Document("text", held_out)]
    with pytest.raises(UserError, match=f"of 1 documents {int(held_out)} are held out"):
        build(tmp_path / "x", lambda: source(few), "bytes")


def test_tables_are_split_by_the_documents_text(tmp_path: Path) -> None:
    rows = [{"text": f"the same {i % 100}" if i % 3 else f"own {i}"} for i in range(900)]
    (tmp_path / "part.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = open_source(str(tmp_path))
    assert found.origin == f"folder {tmp_path}"
    documents = list(found.documents())
    assert [one.text for one in documents] == [row["text"] for row in rows]
    train, held_out = ({one.text for one in documents if one.held_out == x} for x in (False, True))
    assert train.isdisjoint(held_out)
    assert 0.05 < len(held_out) / len(train | held_out) < 0.15


def test_zero_bytes_never_end_a_document_early(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a\0b \ud800"}) + "\n")
    assert [one.text for one in open_source(str(tmp_path)).documents()] == ["a b ?"]


def test_a_published_corpus_that_is_nowhere_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ABLATE_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"corpus='fineweb': HuggingFaceFW/fineweb:sample-10BT "
                                        r".*HF_HUB_OFFLINE.*corpus=sample"):  # fmt: skip
        open_source("fineweb")


def test_a_hub_that_fails_leaves_the_sample_to_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: object, instead: str, **__: object) -> None:
        raise Failure(f"the hub failed: no network. {instead}")

    monkeypatch.setattr(sources, "open_rows", down)
    with pytest.raises(Failure, match=r"'fineweb': the hub.* `ablate data prepare .*corpus=sample"):
        open_source("fineweb")


def test_text_that_is_no_text_is_refused_and_none_is_left_out(tmp_path: Path) -> None:
    table = tmp_path / "a.jsonl"
    table.write_text('{"text": null}\n{"text": "salt"}\n{"text": 5}\n')
    documents = open_source(str(table)).documents()
    assert next(documents).text == "salt"
    with pytest.raises(UserError, match="a.jsonl': column 'text' has 5; must be text"):
        next(documents)


def test_a_cached_copy_of_a_published_corpus_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ABLATE_DATASETS", str(tmp_path))
    for name, text in (("en/c4-train.0.json", "yes"), ("en/c4-validation.0.json", "no")):
        path = tmp_path / "allenai--c4" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"text": text, "url": "x"}) + "\n")
    found = open_source("c4")
    assert found.origin == "cache allenai/c4:en"
    assert [one.text for one in found.documents()] == ["yes"]


def test_the_sample_says_what_it_is() -> None:
    found = open_source("sample")
    assert found.is_sample
    assert found.origin == "packaged sample"
    assert len(list(found.documents())) == 40


def test_a_trained_tokenizer_is_the_same_again_and_loses_nothing() -> None:
    texts = [one.text for one in DOCUMENTS] * 2
    made, again = (train_bpe(290, iter(texts)) for _ in range(2))
    assert made.digest == again.digest
    said = "any <|end|> text: é 漢 \t\n"
    tokens = made.encode([said])[0]
    assert made.end not in tokens
    decode = made.decoder()
    assert b"".join(map(decode, tokens.tolist())).decode() == said
    with pytest.raises(UserError, match="the training text gives only"):
        train_bpe(5000, iter(texts))
