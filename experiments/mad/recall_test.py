from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.errors import UserError
from ablate.experiments.mad.recall import fuzzy_recall, in_context_recall

SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=30, deadline=None)
@given(
    seed=SEEDS,
    half=st.integers(2, 40),
    vocab=st.integers(2, 40),
    noise=st.sampled_from([0.0, 0.2, 0.8]),
)
def test_recall_rows_repeat_their_values(seed: int, half: int, vocab: int, noise: float) -> None:
    extra = 5 if noise else 0
    sizes: dict[str, Any] = {
        "vocab": vocab + extra,
        "length": 2 * half,
        "noise": noise,
        "noise_vocab": extra,
    }
    inputs, targets = in_context_recall(np.random.default_rng(seed), 4, train=False, **sizes)
    same, following = in_context_recall(np.random.default_rng(seed), 4, train=True, **sizes)
    np.testing.assert_array_equal(same, inputs)
    np.testing.assert_array_equal(following[:, :-1], inputs[:, 1:])
    assert inputs.shape == targets.shape == (4, 2 * half - 1)
    for row, scored, last in zip(inputs, targets, following[:, -1], strict=True):
        tokens = [*row.tolist(), int(last)]
        known: dict[int, int] = {}
        for place in range(0, 2 * half, 2):
            key, value = tokens[place], tokens[place + 1]
            expected = -100
            if key < vocab // 2:
                assert vocab // 2 <= value < vocab
                expected = known.get(key, -100)
                assert expected in (-100, value)
                known[key] = value
            else:
                assert noise > 0
                assert vocab <= key < vocab + extra
                assert vocab <= value < vocab + extra
            assert scored[place] == expected
        assert scored[-1] == last  # the last pair asks a key that came before
        assert (scored[1::2] == -100).all()


def test_noise_has_the_share_asked_for() -> None:
    inputs, _ = in_context_recall(
        np.random.default_rng(0), 2_000, vocab=32, length=128, train=True, noise=0.2, noise_vocab=16
    )
    body = inputs[:, :126:2] >= 16
    # One of the 63 pairs is real in any case.
    assert body.mean() == pytest.approx(0.2 * 62 / 63, abs=0.005)
    assert np.bincount(inputs[inputs >= 16] - 16).min() > 0


def test_keys_are_uniform_and_the_last_is_uniform_over_those_seen() -> None:
    inputs, _ = in_context_recall(np.random.default_rng(0), 20_000, vocab=6, length=8, train=True)
    share = np.bincount(inputs[:, 0], minlength=3) / 20_000
    np.testing.assert_allclose(share, 1 / 3, atol=0.02)
    two_and_one = inputs[(inputs[:, 0] == 0) & (inputs[:, 2] == 0) & (inputs[:, 4] == 1)]
    # Key 0 was said twice and key 1 once, but each is asked half of the time.
    assert (two_and_one[:, 6] == 0).mean() == pytest.approx(0.5, abs=0.05)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, length=st.integers(13, 80), vocab=st.integers(7, 30), train=st.booleans())
def test_fuzzy_rows_repeat_their_motifs(seed: int, length: int, vocab: int, train: bool) -> None:
    inputs, targets = fuzzy_recall(
        np.random.default_rng(seed), 4, vocab=vocab, length=length, train=train
    )
    assert inputs.shape == targets.shape == (4, length)
    if train:
        np.testing.assert_array_equal(targets[:, :-1], inputs[:, 1:])
    half, pad = (vocab - 1) // 2, vocab - 1
    for row, scored in zip(inputs.tolist(), targets.tolist(), strict=True):
        tokens = [*row, scored[-1]]
        body = tokens[tokens.count(pad) :]
        assert pad not in body
        expected = [-100] * (len(tokens) - len(body))
        known: dict[tuple[int, ...], tuple[int, ...]] = {}
        while body:
            key = run(body, lambda token: token < half)
            value = run(body, lambda token: token >= half)
            assert len(set(key)) == len(key) in ((1, 2, 3) if train else (3,))
            assert len(set(value)) == len(value) in (1, 2, 3)
            assert known.get(key, value) == value
            expected += [-100] * len(key)
            expected += value if key in known else [-100] * len(value)
            asked, known[key] = key in known, value
        assert asked  # the last pair came before, always
        if not train:
            assert scored == expected[1:]


def run(tokens: list[int], belongs: Callable[[int], bool]) -> tuple[int, ...]:
    """Take the leading tokens that belong, away from `tokens`."""
    taken = []
    while tokens and belongs(tokens[0]):
        taken.append(tokens.pop(0))
    return tuple(taken)


def test_motifs_are_uniform_over_lengths_and_tokens() -> None:
    inputs, _ = fuzzy_recall(np.random.default_rng(0), 3_000, vocab=16, length=64, train=True)
    first = [
        run([token for token in row.tolist() if token != 15], lambda t: t < 7) for row in inputs
    ]
    lengths = np.bincount([len(key) for key in first], minlength=4)[1:] / 3_000
    np.testing.assert_allclose(lengths, 1 / 3, atol=0.04)
    tokens = np.bincount([token for key in first for token in key], minlength=7)
    np.testing.assert_allclose(tokens / tokens.sum(), 1 / 7, atol=0.02)


def test_sizes_that_do_not_fit_are_refused() -> None:
    stream = np.random.default_rng(0)
    with pytest.raises(UserError, match="length=7"):
        in_context_recall(stream, 1, vocab=8, length=7, train=True)
    with pytest.raises(UserError, match="noise=1"):
        in_context_recall(stream, 1, vocab=8, length=8, train=True, noise=1.0, noise_vocab=2)
    with pytest.raises(UserError, match="above 12"):
        fuzzy_recall(stream, 1, vocab=8, length=12, train=True)
