from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.errors import UserError
from ablate.experiments.niah.generator import (
    ADJECTIVES,
    DEPTHS,
    FILLER,
    NOUNS,
    Sample,
    Variant,
    draw_needle,
    fill,
    hide,
    shortest,
)
from ablate.experiments.prose import load_prose

PROSE = load_prose("pydoc")
VARIANTS: tuple[Variant, ...] = ("single_1", "single_2", "single_3")


def sample(seed: int, variant: Variant, length: int, value_length: int) -> Sample:
    stream = np.random.default_rng(seed)
    needle = draw_needle(stream, variant, value_length, 32)
    return hide(stream, variant, needle, PROSE, length)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    variant=st.sampled_from(VARIANTS),
    length=st.integers(260, 3_000),
    value_length=st.integers(3, 7),
)
def test_the_answer_is_there_once_and_the_length_is_exact(
    seed: int, variant: Variant, length: int, value_length: int
) -> None:
    made = sample(seed, variant, length, value_length)
    assert len(made.text.encode("ascii")) == length + 1
    assert made.prompt.count(made.needle.value) == 1
    statement = f" of {made.needle.key} is {made.needle.value}."
    assert made.prompt.count(statement) == 1
    assert made.prompt.endswith(f" of {made.needle.key} is ")
    assert made == sample(seed, variant, length, value_length)


def test_names_and_values_have_their_form() -> None:
    stream = np.random.default_rng(0)
    assert len(set(ADJECTIVES)) == len(set(NOUNS)) == 32
    for _ in range(200):
        needle = draw_needle(stream, "single_1", 7, 4)
        assert re.fullmatch(r"[1-9]\d{6}", needle.value)
        adjective, noun = needle.key.split("-")
        assert adjective in ADJECTIVES[:4]
        assert noun in NOUNS[:4]
    uuids = [draw_needle(stream, "single_3", 36, 32).value for _ in range(200)]
    assert all(re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", one) for one in uuids)
    assert all(one[14] == "4" and one[19] in "89ab" for one in uuids)
    assert len(set(uuids)) == 200


def test_the_first_variant_repeats_one_line_around_a_line_of_its_own() -> None:
    made = sample(3, "single_1", 1_000, 7)
    lines = made.prompt.splitlines()[1:-1]
    needle = f"The number of {made.needle.key} is {made.needle.value}."
    others = [line for line in lines if line != needle]
    assert len(others) == len(lines) - 1
    assert set(others[:-1]) == {FILLER}
    assert FILLER.startswith(others[-1])
    assert lines.index(needle) == round(made.depth * len(others))


@pytest.mark.parametrize("variant", VARIANTS)
def test_depths_are_flat(variant: Variant) -> None:
    depths = np.array([sample(seed, variant, 4_000, 7).depth for seed in range(1_500)])
    share = np.histogram(depths, bins=4, range=(0, 1))[0] / len(depths)
    np.testing.assert_allclose(share, 0.25, atol=0.05)


def test_the_depths_are_forty_even_percentages() -> None:
    assert len(DEPTHS) == len(set(DEPTHS)) == 40
    assert (DEPTHS[0], DEPTHS[-1]) == (0, 100)


@settings(max_examples=50, deadline=None)
@given(room=st.integers(1, 500), size=st.integers(1, 40))
def test_units_fill_the_room_exactly(room: int, size: int) -> None:
    units = fill(iter(lambda: "x" * size, None), room)
    assert sum(len(unit) + 1 for unit in units) == room
    assert {len(unit) for unit in units[:-1]} <= {size}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_shortest_length_holds_any_needle_and_less_is_refused(variant: Variant) -> None:
    least = shortest(variant, 7, 32)
    for seed in range(200):
        assert len(sample(seed, variant, least, 7).text) == least + 1
    with pytest.raises(UserError, match="bytes short"):
        sample(0, variant, 100, 7)
