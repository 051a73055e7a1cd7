from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ablate.components.dims import Dims
from ablate.components.newton_schulz import NewtonSchulz
from ablate.errors import UserError
from ablate.experiments.language.corpus import load_corpus
from ablate.experiments.language.task import LanguageTask
from ablate.experiments.task import SequenceTask


class Constant(nn.Module):
    """Says the same distribution everywhere; remembers what it was shown."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)
        self.shown: list[Tensor] = []
        self.modes: list[tuple[bool, bool]] = []

    def forward(self, tokens: Tensor) -> tuple[Tensor, None]:
        self.shown.append(tokens)
        self.modes.append((self.training, torch.is_grad_enabled()))
        return self.logits.expand(*tokens.shape, 256), None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    draws = np.random.default_rng(0)
    for i in range(40):
        text = draws.integers(97, 123, size=150, dtype=np.uint8)
        (tmp_path / f"{i}.txt").write_bytes(text.tobytes())
    return tmp_path


def make(folder: Path, **args: Any) -> LanguageTask:
    return LanguageTask(**{"corpus": str(folder), "context": 16, "batch": 3, **args})


def test_it_is_a_sequence_task_with_bytes_as_tokens(folder: Path) -> None:
    task = make(folder)
    assert isinstance(task, SequenceTask)
    assert (task.name, task.vocab) == ("language", 256)


def orthogonal(steps: int) -> nn.Module:
    """A model that says what its Newton-Schulz makes of a matrix."""

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            dims = Dims(model=1, heads=1, key=1, value=1)
            self.ns = NewtonSchulz(dims, steps=steps, coefficients="cubic")

        def forward(self, tokens: Tensor) -> tuple[Tensor, None]:
            made = self.ns(torch.diag(torch.arange(1.0, 257.0)))
            return made.diagonal().expand(*tokens.shape, 256), None

    return Steps()


def test_a_model_is_also_scored_with_other_newton_schulz_steps(folder: Path) -> None:
    task = make(folder, scored_steps=(1, 5))
    model = orthogonal(steps=3)
    scores = task.score(model)
    assert tuple(scores) == task.metrics
    for steps in (1, 5):
        trained = make(folder).score(orthogonal(steps=steps))["val/bits_per_byte"]
        assert scores[f"val/bits_per_byte@{steps}_steps"] == trained
        assert trained != scores["val/bits_per_byte"]
    assert make(folder).score(model)["val/bits_per_byte"] == scores["val/bits_per_byte"]
    with pytest.raises(UserError, match="no Newton-Schulz steps"):
        task.score(Constant(torch.zeros(256)))
    with pytest.raises(UserError, match="scored_steps"):
        make(folder, scored_steps=(-1,))


def test_targets_are_the_next_bytes_of_the_training_split(folder: Path) -> None:
    task = make(folder)
    train = load_corpus(str(folder)).train.tobytes()
    batches = task.batches(np.random.default_rng(0))
    for _ in range(20):
        inputs, targets = next(batches)
        assert inputs.shape == targets.shape == (3, 16)
        assert inputs.dtype == targets.dtype == torch.int64
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        for row, last in zip(inputs, targets[:, -1], strict=True):
            assert bytes([*row.tolist(), int(last)]) in train


def test_no_training_row_shows_a_held_out_document(folder: Path) -> None:
    task = make(folder)
    held_out = load_corpus(str(folder)).validation.tobytes()
    batches = task.batches(np.random.default_rng(0))
    rows = [bytes(row.tolist()) for _ in range(50) for row in next(batches).inputs]
    assert not any(row in held_out for row in rows)


def test_batches_follow_from_the_generator(folder: Path) -> None:
    task = make(folder)

    def first(seed: int) -> list[int]:
        return next(task.batches(np.random.default_rng(seed))).inputs.flatten().tolist()

    assert first(1) == first(1)
    assert first(1) != first(2)


def test_every_start_up_to_the_last_row_can_be_drawn(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(bytes(range(1, 101)))
    task = LanguageTask(corpus=str(tmp_path / "text"), context=8, batch=64, validation_bytes=8)
    batches = task.batches(np.random.default_rng(0))
    seen = {int(start) for _ in range(40) for start in next(batches).inputs[:, 0]}
    assert seen == set(range(1, 91 - 8))


def test_the_score_is_the_cross_entropy_of_the_held_out_bytes(folder: Path) -> None:
    task = make(folder, validation_bytes=80)
    logits = torch.randn(256, generator=torch.Generator().manual_seed(0))
    model = Constant(logits).train()
    scores = task.score(model)
    shown = torch.cat(model.shown).flatten().tolist()
    assert len(shown) == 80
    text = load_corpus(str(folder)).validation.tobytes()
    starts = [text.index(bytes(row.tolist())) for row in torch.cat(model.shown)]
    assert [start % 16 for start in starts] == [0] * 5
    assert starts[0] == 0
    assert starts[-1] == (len(text) - 1) // 16 * 16 - 16
    p = logits.double().softmax(0)
    nats = [[-math.log(p[text[start + i + 1]]) for i in range(16)] for start in starts]
    assert scores["val/loss"] == pytest.approx(np.mean(nats), rel=1e-6)
    bits = np.array(nats) / math.log(2)
    assert scores["val/bits_per_byte"] == pytest.approx(bits.mean(), rel=1e-6)
    assert scores["val/bits_per_byte_first_quarter"] == pytest.approx(bits[:, :4].mean(), rel=1e-6)
    assert scores["val/bits_per_byte_last_quarter"] == pytest.approx(bits[:, 12:].mean(), rel=1e-6)


def test_scoring_is_repeatable_and_leaves_the_model_in_its_mode(folder: Path) -> None:
    task, model = make(folder), Constant(torch.zeros(256)).train()
    first = task.score(model)
    assert task.score(model) == first
    assert first["val/bits_per_byte"] == pytest.approx(8.0)
    assert model.training
    assert set(model.modes) == {(False, False)}


def test_the_unigram_predictor_scores_what_the_facts_say(folder: Path) -> None:
    task = make(folder)
    counts = np.bincount(load_corpus(str(folder)).train, minlength=256) + 1
    model = Constant(torch.from_numpy(np.log(counts / counts.sum())))
    facts = task.info()
    assert facts["unigram_bits_per_byte"] == pytest.approx(task.score(model)["val/bits_per_byte"])


def test_stdlib_models_have_a_bigram_to_beat() -> None:
    facts = LanguageTask().info()
    unigram, bigram = facts["unigram_bits_per_byte"], facts["bigram_bits_per_byte"]
    assert isinstance(unigram, float)
    assert isinstance(bigram, float)
    assert 3.2 < bigram < 3.8 < 4.2 < unigram < 4.8
    assert facts["scored_bytes"] == 32_768


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"context": 4}, r"context=4: must be at least 8"),
        ({"batch": 0}, r"batch=0: must be at least 1"),
        ({"context": 64, "validation_bytes": 63}, "validation_bytes=63: must be at least 64"),
        ({"context": 5000, "validation_bytes": 5000}, "validation split has .* at least 5001"),
    ],
)
def test_impossible_arguments_are_refused(folder: Path, args: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        make(folder, **args)
