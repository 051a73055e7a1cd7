from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor

from ablate.errors import UserError
from ablate.experiments.catalogue import make_task
from ablate.experiments.commonsense import sets
from ablate.experiments.commonsense.sets import FOLDER, SETS, open_set
from ablate.experiments.commonsense.standard_errors import RULES, of_average
from ablate.experiments.commonsense.task import CommonsenseTask
from ablate.experiments.hub import Rows
from ablate.experiments.language.task import LanguageTask
from ablate.experiments.prepared import PreparedTask
from ablate.experiments.task import SequenceTask
from ablate.trial.build import build_model
from ablate.trial.build_test import tiny

Item = dict[str, Any]


def choices_of(item: Item, name: str) -> list[tuple[str, str]]:
    """What must be read, and what is scored after it, for each choice: the right one first."""
    if name == "winogrande":
        before, _, after = item["sentence"].partition("_")
        options = [item["option1"], item["option2"]]
        right = int(item["answer"]) - 1
        pairs = [(before + option, f" {after.strip()}") for option in options]
    else:
        context, answers, right = question(item, name)
        pairs = [(context, f" {answer}") for answer in answers]
    return [pairs[right], *(pair for number, pair in enumerate(pairs) if number != right)]


def question(item: Item, name: str) -> tuple[str, list[str], int]:
    if name == "piqa":
        answers = [item["sol1"], item["sol2"]]
        return f"Question: {item['goal']}\nAnswer:", answers, item["label"]
    if name == "hellaswag":
        start = f"{item['activity_label']}: {item['ctx_a']} {item['ctx_b'].capitalize()}"
        return start, item["endings"], int(item["label"])
    if name == "social_iqa":
        answers = [item[f"answer{letter}"] for letter in "ABC"]
        text = f"Q: {item['context']} {item['question']}\nA:"
        return text, answers, int(item["label"]) - 1
    if name == "boolq":
        text = f"{item['passage']}\nQuestion: {item['question']}?\nAnswer:"
        return text, ["no", "yes"], item["label"]
    choices = item["choices"]
    right = choices["label"].index(item["answerKey"])
    return f"Question: {item['question']}\nAnswer:", choices["text"], right


CHOICES = tuple(name for name in SETS if name not in ("wikitext", "lambada_openai"))


def sample(name: str) -> list[Item]:
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]


def gold() -> Iterator[str]:
    for name in CHOICES:
        for item in sample(name):
            yield "".join(choices_of(item, name)[0])
    for item in sample("lambada_openai"):
        yield item["text"]


class Oracle:
    """Has read every right answer after its question, worded as above, and nothing else."""

    def __init__(self) -> None:
        self.next = {}
        for text in map(str.encode, gold()):
            self.next |= {text[:size]: text[size] for size in range(1, len(text))}

    def __call__(self, tokens: Tensor, state: object = None) -> tuple[Tensor, object]:
        logits = torch.zeros(*tokens.shape, 256)
        for row, text in enumerate(map(bytes, tokens.tolist())):
            for size in range(1, len(text) + 1):
                if (known := self.next.get(text[:size])) is not None:
                    logits[row, size - 1, known] = 40
        return logits, state


def test_who_knows_the_answers_gets_all_of_them() -> None:
    found = CommonsenseTask(data="sample").score(Oracle())
    for name in (*CHOICES, "lambada_openai"):
        assert found[f"val/acc@sample_{name}"] == 1
        assert found[f"val/acc_stderr@sample_{name}"] == 0
    assert found["val/sample_average_accuracy"] == 1
    assert found["val/perplexity@sample_lambada_openai"] == pytest.approx(1)
    assert tuple(found) == CommonsenseTask(data="sample").metrics


def uniform(tokens: Tensor, state: object = None) -> tuple[Tensor, object]:
    return torch.zeros(*tokens.shape, 256), state


def test_who_knows_nothing_takes_the_shortest_answer() -> None:
    found = CommonsenseTask(data="sample").score(uniform)
    for name in CHOICES:
        right = []
        for item in sample(name):
            first, *others = (len(answer) for _, answer in choices_of(item, name))
            # One of equal length counts if it comes first, which winogrande's two always do.
            if name != "winogrande" and first != min(others):
                right.append(first < min(others))
        value = found[f"val/acc@sample_{name}"]
        assert sum(right) / 8 <= value <= (sum(right) + 8 - len(right)) / 8
    assert found["val/acc@sample_winogrande"] == 0.5, "the texts that are scored are the same"
    assert found["val/acc@sample_lambada_openai"] == 0
    words = [len(" " + item["text"].split(" ")[-1]) for item in sample("lambada_openai")]
    per_word = math.log(256) * sum(words) / len(words)
    assert found["val/perplexity@sample_lambada_openai"] == pytest.approx(math.exp(per_word))


def written(folder: Path, **sets: list[Item]) -> str:
    for name, rows in sets.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text)
    return str(folder)


def test_documents_are_scored_by_their_words_and_bytes(tmp_path: Path) -> None:
    pages = ["A page of seven words without marks", "Another page that is a little longer than it"]
    place = written(tmp_path, wikitext=[{"page": page} for page in pages])
    found = CommonsenseTask(data=place, sets=("wikitext",), max_length=9).score(uniform)
    assert found["val/bits_per_byte@wikitext"] == pytest.approx(8)
    assert found["val/byte_perplexity@wikitext"] == pytest.approx(256)
    letters, words = (sum(map(count, pages)) for count in (len, lambda page: len(page.split())))
    per_word = math.log(256) * letters / words
    assert found["val/word_perplexity@wikitext"] == pytest.approx(math.exp(per_word))
    assert found["val/bits_per_byte_stderr@wikitext"] == pytest.approx(0, abs=1e-12)


def drawn(seed: int, rows: int, choices: int) -> list[Item]:
    """Letters without sense; the right choice is drawn, and independent of them."""
    draws = np.random.default_rng(seed)

    def text() -> str:
        return "".join(draws.choice(list("abcdefghij"), 5))

    found = []
    for _ in range(rows):
        answers, right = [text() for _ in range(choices)], int(draws.integers(choices))
        if choices == 2:
            found.append({"goal": text(), "sol1": answers[0], "sol2": answers[1], "label": right})
        else:
            start = {"activity_label": text(), "ctx_a": text(), "ctx_b": text()}
            found.append({**start, "endings": answers, "label": str(right)})
    return found


def test_an_untrained_model_guesses(tmp_path: Path) -> None:
    rows = 200
    place = written(tmp_path, piqa=drawn(0, rows, 2), hellaswag=drawn(1, rows, 4))
    task = CommonsenseTask(data=place, sets=("piqa", "hellaswag"), pass_tokens=4096)
    model = build_model(tiny("titans_lmm"), 256, seed=0).eval()
    found, facts = task.score(model), task.info()
    assert facts["questions@piqa"] == f"folder {place}/piqa.jsonl"
    for name, chance in (("piqa", 0.5), ("hellaswag", 0.25)):
        assert facts[f"chance@{name}"] == chance
        assert facts[f"items@{name}"] == rows
        for metric in ("acc", "acc_norm"):
            value = found[f"val/{metric}@{name}"]
            assert binomtest(round(value * rows), rows, chance).pvalue > 0.001
            error = math.sqrt(value * (1 - value) / (rows - 1))
            assert found[f"val/{metric}_stderr@{name}"] == pytest.approx(error)
    assert "val/average_accuracy" not in found
    few = CommonsenseTask(data=place, sets=("piqa",), limit=2).score(model)
    assert few["val/acc@piqa"] in (0, 0.5, 1)


def test_standard_errors_are_those_of_a_bootstrap() -> None:
    draws = np.random.default_rng(0)
    sizes = draws.integers(20, 60, 300)
    nats = -sizes * draws.uniform(0.5, 1.5, 300)
    again = draws.integers(0, 300, (4000, 300))
    means = np.exp(-(nats / 40)[again].mean(axis=1))
    assert RULES["perplexity"]((nats / 40).tolist()) == pytest.approx(means.std(), rel=0.06)
    ratios = nats[again].sum(axis=1) / sizes[again].sum(axis=1)
    parts = list(zip(nats.tolist(), sizes.tolist(), strict=True))
    assert RULES["word_perplexity"](parts) == pytest.approx(np.exp(-ratios).std(), rel=0.06)
    assert RULES["bits_per_byte"](parts) == pytest.approx((ratios / math.log(2)).std(), rel=0.06)
    assert RULES["acc"]([True, False, False, True]) == pytest.approx(math.sqrt(0.25 / 3))
    assert of_average([3.0, 4.0]) == 2.5


def test_it_trains_on_text_as_the_language_task_does() -> None:
    task = make_task("commonsense_sample", {"context": 32, "batch": 2, "tokens": 640})
    assert isinstance(task, CommonsenseTask)
    assert isinstance(task, SequenceTask)
    assert (task.name, task.vocab, task.data) == ("commonsense_sample", 256, "sample")
    text = LanguageTask(context=32, batch=2)
    pairs = zip(
        *(islice(one.batches(np.random.default_rng(0)), 2) for one in (task, text)), strict=True
    )
    assert all(torch.equal(a.inputs, b.inputs) for a, b in pairs)
    facts = task.info()
    assert facts["text_corpus"] == "stdlib"
    assert "NOT the published sets" in str(facts["questions"])
    assert (facts["items@sample_piqa"], facts["items@sample_wikitext"]) == (8, 4)
    assert facts["chance@sample_social_iqa"] == pytest.approx(1 / 3)
    assert {facts[f"majority@sample_{name}"] for name in CHOICES} <= {0.25, 0.375, 0.5}


def test_its_text_is_made_ready_ahead_and_a_plan_needs_no_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ABLATE_HOME", str(tmp_path / "home"))
    task = CommonsenseTask(tokenizer="bpe:300", corpus="sample")
    assert isinstance(task, PreparedTask)
    assert task.scored_tokens() == 9 * 3000 * 1000 // 4  # a guess: neither is here
    assert not task.is_prepared
    task.prepare()
    assert CommonsenseTask(tokenizer="bpe:300", corpus="sample", limit=2).is_prepared
    assert float(task.prepared_info()["train_tokens"]) > 0
    ours = CommonsenseTask(data=written(tmp_path, piqa=drawn(0, 4, 2)), sets=("piqa",))
    read = 0

    def counting(tokens: Tensor, state: object = None) -> tuple[Tensor, object]:
        nonlocal read
        read += tokens.numel()
        return uniform(tokens, state)

    ours.score(counting)
    assert ours.scored_tokens() == read
    few = CommonsenseTask(data=ours.data, sets=("piqa",), limit=3, tokenizer="bpe:301",
                          corpus="sample")  # fmt: skip
    assert few.scored_tokens() == 3 * 1000 // 4


def test_a_set_of_the_hub_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABLATE_HOME", str(tmp_path))
    rows, piqa = drawn(0, 4, 2), SETS["piqa"].data
    with monkeypatch.context() as patch:
        there = Rows(piqa, "hub baber/piqa@abc", False, "key", lambda: iter(rows))
        patch.setattr(sets, "open_rows", lambda dataset, **_: there)
        assert list(open_set("piqa", "auto")) == rows
    again = open_set("piqa", "auto")
    assert again.source == "cache baber/piqa@abc"
    assert list(again) == rows


def test_identities_follow_what_is_asked(tmp_path: Path) -> None:
    place = written(tmp_path, piqa=drawn(0, 4, 2))
    given: list[dict[str, Any]] = [
        {},
        {"data": "sample"},
        {"sets": ("piqa",)},
        {"sets": ("piqa",), "data": place},
        {"sets": ("piqa",), "limit": 2},
        {"max_length": 100},
    ]
    found = [CommonsenseTask(**args).data_identity() for args in given]
    assert len(set(found)) == len(found)
    assert CommonsenseTask(data="hub").data_identity() == found[0]
    assert CommonsenseTask(pass_tokens=1).data_identity() == found[0]


def test_what_is_not_there_is_said_before_training(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"baber/piqa .* --tasks commonsense_sample") as error:
        CommonsenseTask(sets=("piqa",)).info()
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=r"has no piqa \(a folder piqa, or piqa\.jsonl"):
        CommonsenseTask(sets=("piqa",), data=str(tmp_path)).info()
    with pytest.raises(UserError, match="rows that come with Ablate"):
        CommonsenseTask(data=str(FOLDER)).info()
    place = written(tmp_path, piqa=[{"question": "of another set"}], boolq=[])
    with pytest.raises(UserError, match="has not the columns of baber/piqa"):
        CommonsenseTask(sets=("piqa",), data=place).info()
    with pytest.raises(UserError, match="boolq: no rows"):
        CommonsenseTask(sets=("boolq",), data=place).info()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"sets": ("piqua",)}, "Did you mean 'piqa'"),
        ({"sets": ("piqa", "piqa")}, "each once"),
        ({"limit": 1}, "a standard error needs 2 items"),
        ({"max_length": 0}, "max_length=0: must be at least 1"),
        ({"context": 1}, "context"),
    ],
)
def test_arguments_that_cannot_be_are_refused(args: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        CommonsenseTask(**args)


def test_without_the_harness_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ablate.experiments.commonsense.task.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'ablate\[eval\]'"):
        CommonsenseTask(data="sample")
