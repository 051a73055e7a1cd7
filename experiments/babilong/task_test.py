from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ablate.errors import UserError
from ablate.experiments.babilong.babi import emit
from ablate.experiments.babilong.oracle import Reader, solve
from ablate.experiments.babilong.task import BABILongTask
from ablate.experiments.babilong.words import ANSWER, GIVERS, PEOPLE, Words
from ablate.experiments.babilong.world import tell
from ablate.experiments.catalogue import make_task
from ablate.experiments.task import SequenceTask

MIXED = BABILongTask(qa=("qa1", "qa2", "qa3", "qa4", "qa5"), test_rows=20, segment=100)


class Oracle:
    """Reads sentences as they come, keeps those of the world, and answers when asked."""

    def __init__(self, words: Words) -> None:
        self.words = words
        self.names = {name.lower(): name for name in (*PEOPLE, *GIVERS)}

    def text(self, tokens: list[int]) -> str:
        words = [self.words.decode(token) for token in tokens]
        said = " ".join(self.names.get(word, word) for word in words)
        said = said.replace(" .", ".").replace(" ?", "?")
        return said[:1].upper() + said[1:]

    def __call__(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        state = state or [([], []) for _ in tokens]
        said = torch.zeros_like(tokens)
        for row, line in enumerate(tokens.tolist()):
            facts, open_sentence = state[row]
            for place, token in enumerate(line):
                if token == ANSWER:
                    answer = solve(facts, facts.pop())
                    said[row, place] = self.words.encode(answer or "?")[0]
                    continue
                open_sentence.append(token)
                if self.words.decode(token) in (".", "?"):
                    # Noise that was cut has no full stop, so a fact can follow it in the sentence.
                    tail = open_sentence[-8:]
                    starts = [self.text(tail[start:]) for start in range(len(tail))]
                    facts.append(next((one for one in starts if known(one)), ""))
                    open_sentence.clear()
        return one_hot(said, self.words.vocab).float() * 30, state


def known(sentence: str) -> bool:
    return (
        sentence.endswith("?")
        and sentence.split()[0] in ("Where", "What", "Who")
        or (Reader().read(sentence))
    )


def always(word: str, words: Words) -> Any:
    (token,) = words.encode(word)

    def say(tokens: Tensor, state: object = None) -> tuple[Tensor, object]:
        return one_hot(torch.full_like(tokens, token), words.vocab).float(), state

    return say


def test_who_runs_the_world_scores_one_at_every_length() -> None:
    metrics = MIXED.score(Oracle(MIXED.words))
    accuracies = {name: value for name, value in metrics.items() if "accuracy" in name}
    assert set(accuracies.values()) == {1.0}
    assert len(accuracies) == 1 + 4 * 6
    assert metrics["val/loss"] < 1e-6


def test_who_always_says_one_label_scores_chance() -> None:
    task = BABILongTask(test_rows=300, test_lengths=(0, 128))
    info = task.info()
    blind = task.score(always("garden", task.words))
    assert info["chance_accuracy"] == pytest.approx(1 / 6)
    assert blind["val/accuracy@0"] == blind["val/accuracy@128"]
    assert blind["val/accuracy"] == pytest.approx(1 / 6, abs=0.06)
    assert blind["val/accuracy"] <= float(info["majority_accuracy"])
    assert task.score(always("the", task.words))["val/accuracy"] == 0


def test_batches_have_the_exact_length_and_one_answer() -> None:
    task = make_task("babilong", {"qa": ["qa1", "qa4"], "batch": 6})
    assert isinstance(task, BABILongTask)
    assert isinstance(task, SequenceTask)
    one, two = (list(islice(task.batches(np.random.default_rng(0)), 2)) for _ in range(2))
    for first, second in zip(one, two, strict=True):
        assert torch.equal(first.inputs, second.inputs)
        assert torch.equal(first.targets, second.targets)
        assert first.inputs.shape == first.targets.shape == (6, 128)
        assert (first.targets[:, :-1] == -100).all()
        assert (first.inputs[:, -1] == ANSWER).all()
        assert first.inputs.max() < task.vocab
        said = Oracle(task.words)(first.inputs)[0].argmax(dim=-1)[:, -1]
        assert torch.equal(said, first.targets[:, -1])


def test_no_scored_question_is_trained_on() -> None:
    # With two facts of qa4 few stories exist, so a draw would often meet a scored one.
    task = BABILongTask(qa=("qa4",), test_rows=800)
    scored = {(sample.facts, sample.question) for sample in task.test}
    assert len(scored) == 800
    trained = list(islice(task.training_samples(np.random.default_rng(0)), 2_000))
    assert not scored & {(sample.facts, sample.question) for sample in trained}


def test_train_and_test_noise_share_no_sentence() -> None:
    train, test = (
        {tuple(one.tolist()) for document in noise.documents for one in document}
        for noise in MIXED._noise
    )
    assert not train & test


def write_babi(folder: Path, seed: int = 0) -> None:
    for split, offset in (("train", 0), ("test", 1)):
        stream = np.random.default_rng([seed, offset])
        stories = [tell(stream, "qa1", 2, 3) for _ in range(20)]
        (folder / f"qa1_single-supporting-fact_{split}.txt").write_text(emit(stories))


def test_real_files_go_the_same_way(tmp_path: Path) -> None:
    write_babi(tmp_path)
    task = BABILongTask(babi=str(tmp_path), test_rows=30)
    assert len(task.test) == 30
    assert task.score(Oracle(task.words))["val/accuracy"] == 1
    assert task.info()["facts"] == str(tmp_path)
    next(task.batches(np.random.default_rng(0)))
    identity = task.data_identity()
    write_babi(tmp_path, seed=1)
    assert BABILongTask(babi=str(tmp_path), test_rows=30).data_identity() != identity


def test_identities_follow_the_data() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"qa": ("qa2",)},
        {"data_seed": 1},
        {"length": 160},
        {"test_lengths": (0,)},
        {"noise_words": 64},
    ]
    identities = [BABILongTask(**change).data_identity() for change in changes]
    assert len(set(identities)) == len(changes)
    assert BABILongTask(tokens=1, segment=9).data_identity() == identities[0]


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ({"qa": ()}, "give each kind of question once"),
        ({"qa": ("qa3",), "max_facts": 3}, "qa3 needs 4 facts"),
        ({"batch": 0}, "batch=0"),
        ({"test_lengths": (-1,)}, "test_lengths"),
        ({"band": (0.5, 0.2)}, "band"),
        ({"prose": "nowhere"}, "no such file"),
    ],
)
def test_settings_that_cannot_be_are_refused(args: dict[str, Any], named: str) -> None:
    with pytest.raises(UserError, match=named):
        BABILongTask(**args)


def test_a_length_that_no_sample_fits_is_refused() -> None:
    task = BABILongTask(length=8, test_lengths=(0,))
    with pytest.raises(UserError, match="at most 8 tokens"):
        next(task.batches(np.random.default_rng(0)))


def test_it_says_how_many_tokens_are_read() -> None:
    task = BABILongTask(test_rows=5, batch=2, test_lengths=(0, 100), length=100, segment=30)
    read = 0

    def counting(tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        nonlocal read
        read += tokens.numel()
        return torch.zeros(*tokens.shape, task.vocab), state

    task.score(counting)
    assert 0 <= read - task.scored_tokens() < 5 * 30  # rows of a batch are filled up
    assert task.scored_tokens() > 5 * 100
