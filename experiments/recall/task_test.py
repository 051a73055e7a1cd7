from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ablate.errors import UserError
from ablate.experiments.prepared import PreparedTask
from ablate.experiments.recall.documents import NAMES, NUMBERS, Sizes, draw, toy_words
from ablate.experiments.recall.sets import SETS
from ablate.experiments.recall.task import RecallTask
from ablate.experiments.recall.words import TextTokenizer, Tokenizer
from ablate.experiments.task import SequenceTask


class Oracle:
    """Knows every prompt, and says its last answer after it, in capitals."""

    def __init__(self, task: RecallTask) -> None:
        self.tokenizer: Tokenizer = task._tokenizer
        questions = [one for asked in task.asked.values() for one in asked]
        self.answers = {tuple(one.tokens): f" {one.golds[-1].upper()}\n" for one in questions}
        self.lengths = {len(one.tokens) for one in questions}

    def __call__(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        known = state or [([], None)] * len(tokens)
        rows = [self._go_on(*one, new) for one, new in zip(known, tokens.tolist(), strict=True)]
        said = torch.tensor([row for row, _ in rows])
        return one_hot(said, self.tokenizer.vocab).float() * 30, [after for _, after in rows]

    def _go_on(self, read: list[int], due: list[int] | None, new: list[int]) -> Any:
        said = []
        for token in new:
            read = [*read, token]
            if due is None and len(read) in self.lengths and tuple(read) in self.answers:
                due = self.tokenizer.encode(self.answers[tuple(read)])
            said.append(due[0] if due else 0)
            due = due[1:] if due else due
        return said, (read, due)


def constant(text: str, tokenizer: Tokenizer) -> Any:
    """Says the same word at every place."""
    tokens = tokenizer.encode(text)

    def model(read: Tensor, state: int | None = None) -> tuple[Tensor, int]:
        begun = state or 0
        places = torch.arange(begun, begun + read.shape[1]) % len(tokens)
        said = torch.tensor(tokens)[places].expand(read.shape)
        return one_hot(said, tokenizer.vocab).float(), begun + read.shape[1]

    return model


TOY: dict[str, Any] = {"rows": "toy", "test_rows": 6}


@pytest.mark.parametrize("args", [{"data": "sample"}, TOY, {**TOY, "tokenizer": "words"}])
def test_who_knows_the_answers_scores_all_of_every_set(args: dict[str, Any]) -> None:
    task = RecallTask(**args)
    metrics = task.score(Oracle(task))
    assert sorted(metrics) == sorted(task.metrics)
    kind = "toy" if args.get("rows") == "toy" else "sample"
    assert metrics[f"val/{kind}_contains"] == 100
    assert [metrics[f"val/contains@{kind}_{name}"] for name in SETS] == [100] * 6


@pytest.mark.parametrize("tokenizer", ["words", "bytes"])
def test_who_says_one_answer_scores_what_info_says(tokenizer: Any) -> None:
    task = RecallTask(rows="toy", tokenizer=tokenizer, sets=("swde", "fda"), test_rows=60)
    metrics, info = task.score(constant("\n", task._tokenizer)), task.info()
    assert metrics["val/toy_contains"] == 0
    for name in ("swde", "fda"):
        golds = [one.golds[0] for one in task.asked[name]]
        often = max(set(golds), key=golds.count)
        found = task.score(constant(often + " ", task._tokenizer))[f"val/contains@toy_{name}"]
        assert (
            found == info[f"{name}_best_constant"] == pytest.approx(100 * golds.count(often) / 60)
        )
        assert found < 15  # of 32 answers
    assert info["guess_in_document"] == 25


def test_a_sample_never_passes_for_the_set(tmp_path: Path) -> None:
    task = RecallTask(sets=("nq", "drop"))  # nothing is cached, and tests are offline
    assert set(task.metrics) == {
        "val/contains@sample_nq", "val/contains@sample_drop", "val/sample_contains"
    }  # fmt: skip
    said = task.info()["nq_source"]
    assert isinstance(said, str)
    assert said.startswith("packaged sample")
    assert "NOT the published set" in said
    # Nor from a folder of the user's, whose own rows are taken for what the user says they are.
    (tmp_path / "nq").mkdir()
    (tmp_path / "nq" / "validation.jsonl").write_text(_sample("nq"))
    with pytest.raises(UserError, match="rows that come with Ablate"):
        RecallTask(sets=("nq",), data=str(tmp_path)).info()
    (tmp_path / "nq" / "validation.jsonl").write_text("\n".join(_real("nq").splitlines()[:4]))
    real = RecallTask(sets=("nq",), data=str(tmp_path))
    assert real.metrics == ("val/contains@nq", "val/contains")
    assert real.info()["nq_questions"] == 4
    assert str(real.info()["nq_source"]).startswith("folder ")
    assert real.data_identity() != RecallTask(sets=("nq",)).data_identity()
    assert RecallTask(sets=("nq",), data="sample", test_rows=3).info()["nq_questions"] == 3


def _sample(name: str) -> str:
    return (Path(__file__).parent / "sample" / f"{name}.jsonl").read_text()


def _real(name: str) -> str:
    """The same rows, without the mark that they are ours."""
    return _sample(name).replace(', "sample": true', "")


def test_what_is_dropped_and_what_cannot_be_reached_is_said(tmp_path: Path) -> None:
    rows = [
        {
            "text": "x" * 400 + " the key. " + "y" * 400 + " late value",
            "key": "key",
            "value": "late",
        },
        {"text": "The key is near.", "key": "key", "value": "near"},
        {"text": "The key is 7.", "key": "key", "value": "7"},
    ]
    (tmp_path / "fda.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = RecallTask(sets=("fda",), data=str(tmp_path), window=250)
    info = task.info()
    assert (info["fda_questions"], info["fda_dropped"], info["fda_reachable"]) == (2, 1, 50)
    # Both count: who could only say what stands there gets half.
    assert task.score(Oracle(task))["val/contains@fda"] == 100
    assert task.score(constant("near ", TextTokenizer()))["val/contains@fda"] == 50


def test_a_prompt_that_is_too_long_loses_its_beginning() -> None:
    whole, short = (
        RecallTask(data="sample", sets=("squad",), model_length=size).asked["squad"][0]
        for size in (2048, 148)
    )
    assert short.tokens == whole.tokens[-100:]


def test_rows_that_lack_a_column_are_named(tmp_path: Path) -> None:
    (tmp_path / "swde.jsonl").write_text('{"text": "a", "key": "b"}\n')
    with pytest.raises(UserError, match="set swde, folder .*: row 1 has no 'value'; a row needs"):
        RecallTask(sets=("swde",), data=str(tmp_path)).metrics  # noqa: B018 - reads the rows


@pytest.mark.parametrize("name", SETS)
def test_a_toy_document_says_each_answer_once_and_words_keep_it_whole(name: str) -> None:
    stream = np.random.default_rng(3)
    for _ in range(30):
        document = draw(stream, name, Sizes(facts=5, fillers=3, keys=16, values=64))
        assert len(set(document.golds)) == len(document.rows) == len(document.asked) == 5
        for row, gold in zip(document.rows, document.golds, strict=True):
            text = row.get("context") or row["text"]
            assert text.count(gold) == 1
            assert gold in (NUMBERS if name == "drop" else NAMES)
            assert len(toy_words().encode(gold)) == 1
            again = toy_words().decode(toy_words().encode(text))
            assert again.lower() == text.lower()
            assert re.findall(r"\[\w+\]", again) == re.findall(r"\[\w+\]", text)
            assert set(SETS[name].columns) <= set(row)


def test_training_asks_for_all_facts_and_scores_answers_only() -> None:
    task = RecallTask(rows="toy", tokenizer="words", length=64, batch=64)
    inputs, targets = next(task.batches(np.random.default_rng(0)))
    assert inputs.shape == targets.shape == (64, 64)
    names = set()
    for read, due in zip(inputs.tolist(), targets.tolist(), strict=True):
        scored = task._tokenizer.decode([token for token in due if token != -100])
        answers = scored.split("\n")[:-1]
        assert len(set(answers)) == 4
        assert set(answers) <= {*NAMES, *NUMBERS}
        names.add(answers[0] in NUMBERS)
        for place, token in enumerate(due[:-1]):
            assert token in (-100, read[place + 1])
        whole = task._tokenizer.decode(read)
        assert [whole.count(answer) for answer in answers] == [2] * 4
    assert names == {True, False}


def test_scored_documents_are_not_trained_on() -> None:
    task = RecallTask(rows="toy", tokenizer="words", sets=("drop",), facts=1, keys=2, values=4,
                      test_rows=20, length=64)  # fmt: skip
    scored = {one.identity.lower() for one, _ in task._scored["drop"]}
    assert len(scored) > 10  # of the 64 that exist
    for inputs, _ in islice(task.batches(np.random.default_rng(0)), 4):
        texts = map(task._tokenizer.decode, inputs.tolist())
        assert not any(text.startswith(tuple(scored)) for text in texts)


def test_batches_repeat_and_identities_follow_the_data() -> None:
    task = RecallTask(rows="toy", tokenizer="words", length=64, batch=4)
    assert isinstance(task, SequenceTask)
    one, two = (next(task.batches(np.random.default_rng(1))) for _ in range(2))
    assert torch.equal(one.inputs, two.inputs)
    changes: list[dict[str, Any]] = [
        {}, {"rows": "toy"}, {"rows": "toy", "data_seed": 1}, {"rows": "toy", "fillers": 1},
        {"sets": ("nq",)}, {"window": 1024},
    ]  # fmt: skip
    assert len({RecallTask(**change).data_identity() for change in changes}) == len(changes)
    assert RecallTask(tokens=1, batch=1).data_identity() == RecallTask().data_identity()


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ({"sets": ("nqq",)}, "Did you mean 'nq'"),
        ({"sets": ()}, "at least one set"),
        ({"tokenizer": "words"}, "rows=toy"),
        ({"window": 50}, "window=50: must be at least 51"),
        ({"facts": 13}, r"facts=13: must be in \[1, 12\]"),
        ({"keys": 17}, "keys=17"),
        ({"rows": "toy", "length": 40}, "length=40: documents of swde"),
        ({"tokens": 0}, "tokens=0"),
        ({"corpus_bytes": 9}, "corpus_bytes is for a task_args.corpus"),
    ],
)
def test_settings_that_cannot_be_are_refused(args: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        RecallTask(**args)


def test_a_model_of_other_tokens_reads_the_same_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ABLATE_HOME", str(tmp_path / "home"))
    text = tmp_path / "text.txt"
    text.write_text("\n".join(json.loads(line)["context"] for line in _sample("nq").splitlines()))
    args: dict[str, Any] = {"data": "sample", "sets": ("nq",), "corpus": str(text), "length": 64}
    task = RecallTask(tokenizer="bpe:300", **args)
    assert isinstance(task, PreparedTask)
    assert (task.vocab, task.is_prepared) == (300, False)
    assert RecallTask(tokenizer="bpe:300", corpus_bytes=999, **args).folder != task.folder
    before = task.data_identity()
    task.prepare()
    assert task.is_prepared
    assert task.data_identity() != before
    asked, in_bytes = task.asked["nq"], RecallTask(**args).asked["nq"]
    assert [one.text for one in asked] == [one.text for one in in_bytes]
    assert all(
        len(one.tokens) < len(same.tokens) for one, same in zip(asked, in_bytes, strict=True)
    )
    assert task.score(Oracle(task))["val/sample_contains"] == 100
    # What is trained on is the text, in the model's tokens.
    inputs, targets = next(task.batches(np.random.default_rng(0)))
    assert inputs.shape == (32, 64)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert task.scored_tokens() == sum(len(one.tokens) + 48 for one in asked)
    # A saved tokenizer is known by its folder.
    assert task.folder is not None
    again = RecallTask(data="sample", sets=("nq",), tokenizer=f"hf:{task.folder}")
    assert again.asked["nq"][0].tokens == asked[0].tokens


def test_real_sets_that_are_not_here_are_missed_when_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ABLATE_DATASETS", str(tmp_path / "nothing"))
    task = RecallTask(data="real", sets=("swde",), corpus="stdlib")
    assert task.metrics == ("val/contains@swde", "val/contains")
    assert not task.is_prepared
    before = task.data_identity()
    assert before != RecallTask(sets=("swde",), corpus="stdlib").data_identity()
    with pytest.raises(
        UserError,
        match=r"^recall, set swde: hazyresearch/based-swde-v2 .* is not "
        r"available: .* hf download hazyresearch/based-swde-v2 .*=sample",
    ):
        task.prepare()  # fmt: skip
    with pytest.raises(UserError, match="is not available"):
        task.score(constant("x", TextTokenizer()))
    # Put where the cache is, they are found.
    folder = tmp_path / "hazyresearch--based-swde-v2"
    folder.mkdir()
    (folder / "validation.jsonl").write_text(_real("swde"))
    monkeypatch.setenv("ABLATE_DATASETS", str(tmp_path))
    assert task.is_prepared
    assert task.data_identity() != before
    task.prepare()
    assert task.info()["swde_source"] == "cache hazyresearch/based-swde-v2"
    assert set(task.score(constant("x", TextTokenizer()))) == set(task.metrics)
