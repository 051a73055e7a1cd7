"""Spelling of numbers."""

from __future__ import annotations

import math

import pytest

from ablate.analysis.comparisons import compare
from ablate.analysis.example_study import example_study
from ablate.analysis.formatting import (
    about,
    count,
    decimals_for,
    duration,
    equals,
    interval,
    level,
    listed,
    number,
    probability,
    signed,
    size,
)


def test_numbers_and_signs() -> None:
    assert number(-0.0123, 3) == "−0.012"
    assert number(-0.0001, 3) == "0.000"
    assert signed(0.0123, 3) == "+0.012"
    assert signed(0.0001, 3) == "0.000"
    assert number(None, 3) == number(math.nan, 3) == number(math.inf, 3) == "–"
    assert interval(-1.0, 2.0, 1) == "[−1.0, 2.0]"
    assert interval(None, None, 1) == "–"


@pytest.mark.parametrize(
    ("p", "text"),
    [
        *((1, "1.00"), (0.5, "0.50"), (0.25, "0.25"), (0.125, "0.125"), (0.34375, "0.344")),
        *((0.0625, "0.0625"), (0.00390625, "0.0039"), (0.0001, "< 0.001")),
    ],
)
def test_probabilities(p: float, text: str) -> None:
    assert probability(p) == text


def test_a_small_probability_is_not_said_to_equal_a_bound() -> None:
    assert [equals(0.25), equals(0.0001), equals(None)] == ["= 0.25", "< 0.001", "= –"]


def test_scaled_numbers() -> None:
    assert [count(v) for v in (0, 950, 12_345, 167_616, 4.56e9)] == [
        "0",
        "950",
        "12.3 k",
        "168 k",
        "4.56 G",
    ]
    assert count(999_999) == "1.00 M"
    assert [size(v) for v in (512, 65_536, 3 * 2**19)] == ["512 B", "64.0 KiB", "1.50 MiB"]
    assert [duration(v) for v in (3.21, 75, 600, 9000)] == ["3.2 s", "75 s", "10 min", "2.5 h"]
    sources = ("estimate", "gpu_rate", "runs", "probe", None)
    assert [about(source) for source in sources] == ["~", "~", "", "", ""]


def test_levels_and_lists() -> None:
    assert [level(v) for v in (None, True, False, 4, 0.5, "muon")] == [
        "n/a",
        "on",
        "off",
        "4",
        "0.5",
        "muon",
    ]
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"


def test_decimals_follow_the_width_of_the_intervals() -> None:
    assert decimals_for(compare(example_study(seeds=3, noise=0.006))) == 3
    assert decimals_for(compare(example_study(seeds=3, noise=0.6))) == 1
    assert decimals_for(compare(example_study(seeds=1))) == 3
