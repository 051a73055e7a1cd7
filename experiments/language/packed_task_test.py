from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ablate.errors import UserError
from ablate.experiments.language.task import LanguageTask
from ablate.experiments.language.tokenizer import BYTES, train_bpe


class Constant(nn.Module):
    """Says the same distribution everywhere."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, tokens: Tensor) -> tuple[Tensor, None]:
        return self.logits.expand(*tokens.shape, len(self.logits)), None


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ABLATE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ABLATE_CORPORA", raising=False)
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Documents as a table."""
    draws = np.random.default_rng(0)
    words = ["salt", "water", "stone", "bread", "rope", "signal", "é"]
    texts = [" ".join(draws.choice(words, size=draws.integers(5, 30))) for _ in range(80)]
    table = tmp_path / "texts"
    table.mkdir()
    (table / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return table


def make(folder: Path | str, tokenizer: str = BYTES, **args: Any) -> LanguageTask:
    task = LanguageTask(
        **{"corpus": str(folder), "tokenizer": tokenizer, "context": 16, "batch": 3, **args}
    )
    task.prepare()
    return task


@pytest.fixture
def identity(tmp_path: Path) -> str:
    """A published tokenizer whose tokens are bytes: no merges, only its own numbers for them."""
    made = tmp_path / "identity"
    made.mkdir()
    (made / "tokenizer.json").write_text(train_bpe(257, ["text"]).to_json())
    return f"hf:{made}"


def test_bits_per_byte_do_not_depend_on_the_tokenizer(folder: Path, identity: str) -> None:
    raw, same = make(folder), make(folder, identity)
    assert same.vocab == 257
    logits = torch.randn(256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    table = same.text_tokenizer()
    other = torch.full((257,), -torch.inf, dtype=torch.float64)
    decode = table.decoder()
    for token in range(257):  # the end is byte 0
        said = decode(token)
        if len(said) == 1:
            other[token] = logits[said[0]]
    pairs = zip(table.encode(["é"])[0].tolist(), "é".encode(), strict=True)
    for token, byte in pairs:
        other[token] = logits[byte]
    logits = torch.where(torch.isin(logits, other), logits, -torch.inf)
    bits = [task.score(Constant(x)) for task, x in ((raw, logits), (same, other))]
    assert bits[0]["val/bits_per_byte"] == pytest.approx(bits[1]["val/bits_per_byte"], rel=1e-12)
    assert bits[1]["val/perplexity"] == pytest.approx(math.exp(bits[0]["val/loss"]), rel=1e-9)


def test_the_score_is_nats_of_all_tokens_over_bytes_of_the_text(folder: Path) -> None:
    task = make(folder, "bpe:280")
    logits = torch.randn(280, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores = task.score(Constant(logits))
    assert tuple(scores) == task.metrics
    packed = task.packed()
    tokens = packed.validation.read(0, len(packed.validation))
    nats = -logits.log_softmax(0)[torch.from_numpy(tokens)].sum().item()
    size = packed.facts["validation_bytes"]
    assert size < task.validation_bytes
    assert scores["val/bits_per_byte"] == pytest.approx(nats / size / math.log(2), rel=1e-9)
    assert scores["val/loss"] == pytest.approx(nats / len(tokens), rel=1e-9)
    assert scores["val/perplexity"] == pytest.approx(math.exp(nats / len(tokens)), rel=1e-9)


def test_whatever_the_tokenizer_the_same_documents_are_scored(folder: Path) -> None:
    limited = [make(folder, name, validation_bytes=400) for name in (BYTES, "bpe:280")]
    sizes = [task.info()["scored_bytes"] for task in limited]
    assert sizes[0] == sizes[1] <= 400
    said = []
    for task in limited:
        decode = task.text_tokenizer().decoder()
        targets = task._held_out.targets
        said.append(b"".join(map(decode, targets[targets >= 0].tolist())))
    assert said[0] == said[1]
    assert len(said[0]) == sizes[0]


def test_each_training_row_comes_once_in_a_pass(folder: Path) -> None:
    task = make(folder, "bpe:280")
    train = task.packed().train
    rows = (len(train) - 1) // 16
    batches = task.batches(np.random.default_rng(0))
    steps = rows // 3
    drawn = [next(batches) for _ in range(steps)]
    seen = Counter(tuple(row.tolist()) for batch in drawn for row in batch.inputs)
    there = Counter(tuple(train.read(i * 16, 16).tolist()) for i in range(rows))
    assert seen <= there
    assert seen.total() == steps * 3
    assert all(torch.equal(one.inputs[:, 1:], one.targets[:, :-1]) for one in drawn)
    again = task.batches(np.random.default_rng(0))
    assert torch.equal(next(again).inputs, drawn[0].inputs)
    assert not torch.equal(next(batches).inputs, drawn[0].inputs)


def test_facts_name_source_tokenizer_and_split(folder: Path) -> None:
    task = make(folder, "bpe:280")
    facts = task.info()
    assert facts["data_source"] == f"folder {folder}"
    assert facts["data_is_sample"] == "no"
    assert facts["tokenizer"] == f"bpe:280 ({task.text_tokenizer().digest})"
    assert facts["split"] == "0.1 of the documents, by the SHA-256 of their text"
    counts = np.bincount(task.packed().train.read(0, int(facts["train_tokens"])), minlength=280) + 1
    model = Constant(torch.from_numpy(np.log(counts / counts.sum())))
    bits = task.score(model)["val/bits_per_byte"]
    assert facts["unigram_bits_per_byte"] == pytest.approx(bits)


def test_it_is_prepared_when_its_data_are_first_needed(folder: Path) -> None:
    task = LanguageTask(corpus=str(folder), tokenizer="bpe:280", context=16)
    assert not task.is_prepared
    assert task.vocab == 280
    before = task.data_identity()
    assert before.startswith("unprepared-")
    assert task.scored_tokens() == task.validation_bytes // 4
    assert not task.is_prepared
    assert task.info()["data_is_sample"] == "no"
    assert task.is_prepared
    assert task.data_identity() == task.packed().digest
    assert task.scored_tokens() == task._held_out.targets.size


def test_a_published_corpus_can_be_planned_without_its_text() -> None:
    task = LanguageTask(corpus="fineweb_edu", tokenizer="bpe:32000", context=4096,
                        validation_bytes=8192)  # fmt: skip
    assert (task.vocab, task.is_prepared) == (32_000, False)
    other = LanguageTask(corpus="fineweb_edu", tokenizer="bpe:16000")
    assert task.data_identity() != other.data_identity()
    with pytest.raises(UserError, match="not available"):
        task.prepare()


def test_a_file_that_changes_is_prepared_again(folder: Path) -> None:
    before = make(folder).data_identity()
    with open(folder / "a.jsonl", "a") as file:
        file.write(json.dumps({"text": "one more"}) + "\n")
    task = LanguageTask(corpus=str(folder), context=16)
    assert not task.is_prepared
    task.prepare()
    assert task.data_identity() != before


def test_packed_text_can_be_kept_on_a_shared_disk(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ABLATE_CORPORA", str(tmp_path / "shared"))
    task = make(folder)
    assert task.folder is not None
    assert task.folder.parent == tmp_path / "shared"
    monkeypatch.setenv("ABLATE_HOME", str(tmp_path / "elsewhere"))
    assert LanguageTask(corpus=str(folder), context=16).is_prepared


def test_the_sample_is_said_to_be_one() -> None:
    task = make("sample", "bpe:300")
    assert task.info()["data_is_sample"] == "yes"
    assert task.info()["data_source"] == "packaged sample"
    assert task.info()["corpus"] == "sample"


def test_plain_text_with_another_tokenizer_is_split_as_in_bytes(tmp_path: Path) -> None:
    texts = tmp_path / "plain"
    texts.mkdir()
    for i in range(30):
        (texts / f"{i}.txt").write_text(f"file {i} says salt and water " * 3)
    raw, packed = LanguageTask(corpus=str(texts), context=16), make(texts, "bpe:280")
    decode = packed.text_tokenizer().decoder()
    stream = packed.packed().validation
    said = b"".join(map(decode, stream.read(0, len(stream)).tolist()))
    from ablate.experiments.language.corpus import load_corpus

    assert said == load_corpus(str(texts)).validation.tobytes()
    assert raw.is_prepared


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"tokenizer": "byte"}, "'byte' is no tokenizer. Did you mean 'bytes'"),
        ({"tokenizer": "bpe:99"}, "bpe:SIZE takes a number of tokens of at least 257"),
        ({"tokenizer": "hf:"}, "hf:NAME takes a name or a folder"),
        ({"tokenizer": "hf:nobody/nothing"}, "no file or folder nobody/nothing"),
        (
            {"corpus_bytes": 10, "corpus": "stdlib", "tokenizer": "bytes"},
            "corpus_bytes is for a corpus that is prepared",
        ),
        (
            {"context": 200, "validation_bytes": 200},
            "validation_bytes=200: that scores .* tokens, fewer than the 200 of one row",
        ),
        ({"corpus": ""}, "task_args.corpus='': give a name or a path"),
        ({"tokenizer": "bytes:3"}, "'bytes:3' is no tokenizer. Did you mean 'bytes'"),
        ({"tokenizer": "bpe:99999999999"}, "at most 1048576"),
        ({"batch": 10_000}, "fewer than task_args.batch=10000"),
    ],
)
def test_impossible_arguments_are_refused(folder: Path, args: dict[str, Any], said: str) -> None:
    def use(**given: Any) -> None:
        task = LanguageTask(
            **{"corpus": str(folder), "tokenizer": "bpe:280", "context": 16, **given}
        )
        task.prepare()
        next(task.batches(np.random.default_rng(0)))

    with pytest.raises(UserError, match=said):
        use(**args)
