from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ablate.errors import UserError
from ablate.experiments.babilong.babi import Sample
from ablate.experiments.babilong.stream import noise_of, pieces, read_last, segments
from ablate.experiments.babilong.words import ANSWER, QA, Words
from ablate.experiments.babilong.world import draw_sample
from ablate.experiments.prose import Prose, load_prose
from ablate.experiments.rows import Tokens

WORDS = Words(64)
NOISE = noise_of(load_prose("pydoc"), WORDS)
SHORT = Sample(
    "qa1",
    ("Mary moved to the garden.", "John went to the office.", "Mary went to the kitchen."),
    "Where is Mary?",
    "kitchen",
    (2,),
)


def tokens_of(sentences: Iterator[Tokens]) -> list[int]:
    return [token for sentence in sentences for token in sentence.tolist()]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**63 - 1), length=st.integers(120, 900), qa=st.sampled_from(QA))
def test_lengths_are_exact_and_facts_keep_their_order(seed: int, length: int, qa: str) -> None:
    sample = draw_sample(np.random.default_rng(seed), qa, 12)
    said = [part.tolist() for part in pieces(sample, WORDS, NOISE, length=length, seed=seed)]
    assert sum(map(len, said)) == length
    assert said[-1] == [*WORDS.encode(sample.question), ANSWER]
    facts = [WORDS.encode(fact) for fact in sample.facts]
    assert [part for part in said[:-1] if part in facts] == facts
    again = [part.tolist() for part in pieces(sample, WORDS, NOISE, length=length, seed=seed)]
    assert said == again


def test_without_noise_only_the_facts_are_left() -> None:
    said = tokens_of(pieces(SHORT, WORDS, NOISE, length=0, seed=0))
    assert said == [*WORDS.encode(" ".join((*SHORT.facts, SHORT.question))), ANSWER]
    with pytest.raises(ValueError, match="more than 20"):
        tokens_of(pieces(SHORT, WORDS, NOISE, length=20, seed=0))


def test_facts_are_uniform_over_the_gaps_of_their_band() -> None:
    shares: dict[tuple[float, float], list[float]] = {(0.0, 1.0): [], (0.5, 0.75): []}
    fact = WORDS.encode(SHORT.facts[0])
    one = Sample("qa1", SHORT.facts[:1], SHORT.question, "garden", (0,))
    for band, places in shares.items():
        for seed in range(400):
            said = [
                part.tolist()
                for part in pieces(one, WORDS, NOISE, length=900, seed=seed, band=band)
            ]
            places.append(said.index(fact) / (len(said) - 2))
    spread = np.histogram(shares[0.0, 1.0], bins=4, range=(0, 1))[0] / 400
    np.testing.assert_allclose(spread, 0.25, atol=0.08)
    assert min(shares[0.5, 0.75]) > 0.45
    assert max(shares[0.5, 0.75]) < 0.8


def test_noise_sentences_are_long_enough_and_only_the_last_is_cut() -> None:
    whole = {tuple(sentence.tolist()) for doc in NOISE.documents for sentence in doc}
    said = [tuple(part.tolist()) for part in NOISE.sentences((3, 1), 5_000)]
    assert sum(map(len, said)) == 5_000
    assert set(said[:-1]) <= whole
    assert min(map(len, whole)) >= 10


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 30), max_size=20), size=st.integers(1, 25))
def test_segments_hold_the_same_tokens(sizes: list[int], size: int) -> None:
    stops = np.cumsum([0, *sizes])
    parts = [np.arange(a, b) for a, b in zip(stops[:-1], stops[1:], strict=True)]
    cut = list(segments(parts, size))
    assert tokens_of(iter(cut)) == list(range(sum(sizes)))
    assert {len(part) for part in cut[:-1]} <= {size}


def running_sum(tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Says the sum of all tokens so far, as the first of its two logits."""
    before = torch.zeros(len(tokens), 1) if state is None else state
    total = before + tokens.cumsum(dim=1)
    return torch.stack((total, -total), dim=-1), total[:, -1:]


@pytest.mark.parametrize("size", [1, 7, 64])
def test_streams_of_different_lengths_are_each_read_to_their_own_end(size: int) -> None:
    rows = [np.arange(1, 6), np.arange(1, 20), np.arange(3, 4)]
    logits = read_last(running_sum, [segments([row], size) for row in rows])
    assert logits[:, 0].tolist() == [float(row.sum()) for row in rows]


def test_a_million_tokens_are_streamed_in_little_memory() -> None:
    sample = draw_sample(np.random.default_rng(0), "qa1", 10)
    tracemalloc.start()
    try:
        parts = pieces(sample, WORDS, NOISE, length=1_000_000, seed=1)
        logits = read_last(running_sum, [segments(parts, 2_048)])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # NumPy's part alone would be 8 MB if the sample were held.
    assert peak < 1_000_000
    assert logits[0, 0] > 1_000_000


def test_prose_of_short_sentences_is_no_noise() -> None:
    assert sum(map(len, NOISE.documents)) > 1_000
    short = Prose("mine", (("This sentence is a short one.",),))
    with pytest.raises(UserError, match="no sentence has 10 tokens"):
        noise_of(short, WORDS)
