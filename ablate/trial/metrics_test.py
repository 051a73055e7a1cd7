from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ablate.trial.metrics import MetricError, non_finite, to_float, to_floats


@pytest.mark.parametrize(
    "value",
    [1.5, np.float32(1.5), np.array(1.5), np.array([1.5]), torch.tensor(1.5, dtype=torch.bfloat16)],
    ids=["float", "numpy scalar", "0-d array", "1-element array", "bf16"],
)
def test_numbers_of_any_kind_become_floats(value: object) -> None:
    converted = to_float("val/loss", value)
    assert type(converted) is float
    assert converted == 1.5


def test_none_is_a_gap_and_infinity_stays() -> None:
    assert to_floats({"a": None, "b": math.inf, "c": 3}) == ({"b": math.inf, "c": 3.0}, ["a"])
    assert non_finite({"b": math.inf, "n": math.nan, "c": 3.0}) == ["b", "n"]


@pytest.mark.parametrize("value", ["0.3", b"1", np.str_("x"), torch.zeros(2), {"a": 1}])
def test_what_is_no_number_fails_by_name(value: object) -> None:
    with pytest.raises(MetricError, match="metric 'val/loss' .* must be a number"):
        to_float("val/loss", value)
