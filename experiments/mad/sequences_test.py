from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.errors import UserError
from ablate.experiments.mad.sequences import (
    compression,
    memorization,
    memorized_map,
    selective_copying,
)

SEEDS = st.integers(0, 2**32 - 1)
AUTHORS_MAP = {0: 239, 1: 241, 2: 146, 3: 166, 4: 182, 5: 213}


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, copies=st.integers(1, 20), spare=st.integers(0, 30), vocab=st.integers(3, 20))
def test_copying_rows_hold_their_content_in_order(
    seed: int, copies: int, spare: int, vocab: int
) -> None:
    length = 2 * copies + 2 + spare
    inputs, targets = selective_copying(
        np.random.default_rng(seed), 4, vocab=vocab, length=length, copies=copies
    )
    assert inputs.shape == targets.shape == (4, length)
    for row, scored in zip(inputs, targets, strict=True):
        head, ask, room = row[: -copies - 1], row[-copies - 1], row[-copies:]
        np.testing.assert_array_equal(head[head < vocab - 2], scored[-copies:])
        assert ask == vocab - 1
        assert (head != vocab - 1).all()
        assert (room == vocab - 2).all()
        assert head[-1] < vocab - 2  # blanks only stand before content
        assert (scored[:-copies] == -100).all()


def test_each_blank_goes_before_a_uniform_content_token() -> None:
    inputs, _ = selective_copying(np.random.default_rng(0), 5_000, vocab=16, length=25, copies=4)
    before_first = (inputs[:, :20] < 14).argmax(axis=1)
    assert before_first.mean() == pytest.approx(16 / 4, abs=0.1)
    assert before_first.var() == pytest.approx(16 * 0.25 * 0.75, abs=0.2)


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, length=st.integers(2, 40), vocab=st.integers(2, 20))
def test_compression_asks_for_the_whole_row(seed: int, length: int, vocab: int) -> None:
    inputs, targets = compression(np.random.default_rng(seed), 3, vocab=vocab, length=length)
    assert inputs.shape == (3, length)
    np.testing.assert_array_equal(inputs, targets)
    assert (inputs[:, -1] == vocab - 1).all()
    assert (inputs[:, :-1] < vocab - 1).all()


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, half=st.integers(1, 20), vocab=st.integers(3, 300))
def test_memorization_asks_one_fixed_map(seed: int, half: int, vocab: int) -> None:
    inputs, targets = memorization(np.random.default_rng(seed), 3, vocab=vocab, length=2 * half)
    assert inputs.shape == (3, 2 * half)
    known = dict(zip(*memorized_map(vocab), strict=True))
    assert len(known) == len(set(known.values())) == (vocab - 1) // 2
    assert (inputs[:, 1::2] == vocab - 1).all()
    assert (targets[:, ::2] == -100).all()
    for key, value in zip(inputs[:, ::2].ravel(), targets[:, 1::2].ravel(), strict=True):
        assert known[key] == value


def test_the_map_is_the_authors() -> None:
    # From the authors' code: vocabulary 256, one token per motif, seed 12345.
    known = dict(zip(*memorized_map(256), strict=True))
    assert {key: known[key] for key in range(6)} == AUTHORS_MAP


def test_sizes_that_do_not_fit_are_refused() -> None:
    stream = np.random.default_rng(0)
    with pytest.raises(UserError, match="2 x copies"):
        selective_copying(stream, 1, vocab=16, length=17, copies=8)
    with pytest.raises(UserError, match="even length"):
        memorization(stream, 1, vocab=16, length=17)
    with pytest.raises(UserError, match="at least 2"):
        compression(stream, 1, vocab=16, length=1)
