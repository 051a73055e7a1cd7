from __future__ import annotations

import pytest

from ablate.experiments.babilong.babi import Sample
from ablate.experiments.babilong.scoring import accuracy, contains, is_correct

ROOM = Sample("qa1", (), "Where is Mary?", "garden", ())
BEFORE = Sample("qa3", (), "Where was the apple before the kitchen?", "garden", ())
GIFT = Sample("qa5", (), "Who gave the apple to Fred?", "Mary", ())


@pytest.mark.parametrize(
    ("output", "sample", "right"),
    [
        ("garden", ROOM, True),
        ("In the GARDEN. Not the office.", ROOM, True),
        ("garden or office", ROOM, False),
        ("office", ROOM, False),
        ("nowhere", ROOM, False),
        ("", ROOM, False),
        ("garden <example> kitchen", ROOM, True),
        ("garden <context> office", ROOM, True),
        ("the garden, before the kitchen", BEFORE, True),
        ("kitchen", BEFORE, False),
        ("Mary gave the apple to Fred", GIFT, True),
        ("Fred", GIFT, False),
    ],
)
def test_babilongs_rule(output: str, sample: Sample, right: bool) -> None:
    assert is_correct(output, sample) is right


def test_containing_is_weaker_than_being_right() -> None:
    outputs, samples = ["garden or office", "GARDEN", "hall"], [ROOM] * 3
    assert accuracy(outputs, samples) == pytest.approx(1 / 3)
    assert contains(outputs, samples) == pytest.approx(2 / 3)


def test_no_samples_have_no_score() -> None:
    with pytest.raises(ValueError, match="no samples"):
        accuracy([], [])
    with pytest.raises(ValueError, match="shorter"):
        contains(["a"], [])
