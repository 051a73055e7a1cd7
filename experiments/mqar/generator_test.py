from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.errors import UserError
from ablate.experiments.mqar.generator import mqar_rows
from ablate.experiments.rows import Tokens


@settings(max_examples=30, deadline=None)
@given(
    pairs=st.integers(1, 8),
    spare=st.integers(0, 10),
    vocab=st.integers(60, 130),
    filled=st.booleans(),
    power_a=st.sampled_from([0.01, 0.5, 1.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_rows_bind_keys_and_ask_each_once(
    pairs: int, spare: int, vocab: int, filled: bool, power_a: float, seed: int
) -> None:
    length = 4 * pairs + 2 * spare
    inputs, targets = mqar_rows(
        np.random.default_rng(seed),
        5,
        vocab=vocab,
        length=length,
        pairs=pairs,
        power_a=power_a,
        random_non_queries=filled,
    )
    assert inputs.shape == targets.shape == (5, length)
    assert inputs.min() >= 0
    assert inputs.max() < vocab
    for row, answers in zip(inputs, targets, strict=True):
        keys, values = row[: 2 * pairs : 2], row[1 : 2 * pairs : 2]
        assert len(set(keys)) == len(set(values)) == pairs
        assert keys.min() >= 1
        assert keys.max() < vocab // 2 <= values.min()
        asked = np.flatnonzero(answers != -100)
        assert len(asked) == pairs
        assert (asked >= 2 * pairs).all()
        assert (asked % 2 == 0).all()
        bound = dict(zip(keys, values, strict=True))
        assert {row[place]: answers[place] for place in asked} == bound
        if not filled:
            rest = np.ones(length, dtype=bool)
            rest[: 2 * pairs] = rest[asked] = False
            assert (row[rest] == 0).all()


def drawn(rows: int, **changed: Any) -> tuple[Tokens, Tokens]:
    sizes = {"vocab": 64, "length": 32, "pairs": 4, **changed}
    return mqar_rows(np.random.default_rng(1), rows, **sizes)


@pytest.mark.parametrize("power_a", [0.01, 1.0])
def test_the_first_pair_is_asked_by_the_power_law(power_a: float) -> None:
    rows = 40_000
    inputs, targets = drawn(rows, power_a=power_a, random_non_queries=False)
    slots = (inputs[:, 8::2] == inputs[:, :1]).argmax(axis=1)
    weight = power_a * np.arange(1, 13) ** (power_a - 1)
    expected = weight / weight.sum()
    share = np.bincount(slots, minlength=12) / rows
    assert np.abs(share - expected).max() < 4 * np.sqrt(0.25 / rows)


def test_later_pairs_are_drawn_without_replacement() -> None:
    # After the first slot s is taken, the second is drawn by the weights of the others.
    rows = 40_000
    inputs, _ = drawn(rows, length=14, pairs=2, power_a=0.3, random_non_queries=False)
    first, second = ((inputs[:, 4::2] == inputs[:, key : key + 1]).argmax(axis=1) for key in (0, 2))
    weight = np.arange(1, 6) ** -0.7
    p = weight / weight.sum()
    expected = p[:, None] * p[None] / (1 - p[:, None])
    np.fill_diagonal(expected, 0)
    share = np.bincount(first * 5 + second, minlength=25).reshape(5, 5) / rows
    assert np.abs(share - expected).max() < 4 * np.sqrt(0.25 / rows)


def test_fillers_are_uniform_over_the_whole_vocabulary_and_answers_are_not_shown() -> None:
    inputs, targets = drawn(20_000)
    after = np.flatnonzero(targets[:, :-1].ravel() != -100)
    following = inputs[:, 1:].ravel()[after]
    counts = np.bincount(following, minlength=64)
    assert counts.min() > 0
    shown = (following == targets[:, :-1].ravel()[after]).mean()
    assert shown < 3 / 64


def test_rows_come_from_the_generator_alone() -> None:
    for one, two in zip(drawn(100), drawn(100), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"length": 31}, "length=31"),
        ({"pairs": 9}, "4 x pairs = 36"),
        ({"vocab": 32}, "vocab=32"),
        ({"power_a": 0.0}, "power_a=0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changed: dict[str, float], named: str) -> None:
    with pytest.raises(UserError, match=named):
        drawn(1, **changed)
