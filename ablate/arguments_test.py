from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from ablate.arguments import bind, options
from ablate.errors import UserError


class Widget:
    """Takes one positional thing and three options."""

    def __init__(
        self, dims: int, *, length: int, rate: float = 0.1, mode: Literal["a", "b"] = "a",
        sizes: tuple[int, ...] = (1, 2), width: int | None = None
    ) -> None:  # fmt: skip
        pass


@dataclass(frozen=True)
class Section:
    """Two plain options."""

    lr: float = 1.0
    steps: int = 3


def check(**values: Any) -> dict[str, Any]:
    return bind(Widget, values, kind="key of widget", prefix="widget.", where="s.yaml")


def test_options_are_what_the_user_may_set() -> None:
    assert list(options(Widget)) == ["length", "rate", "mode", "sizes", "width"]
    assert list(options(Section)) == ["lr", "steps"]


def test_defaults_are_filled_in_and_spellings_of_one_number_agree() -> None:
    full = {"length": 4, "rate": 0.1, "mode": "a", "sizes": [1, 2], "width": None}
    assert check(length=4) == full
    assert check(width=None, sizes=[1, 2], mode="a", rate=1e-1, length=4.0) == full
    assert type(check(length=4.0)["length"]) is int
    assert type(check(length=4, rate=1)["rate"]) is float


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lenght": 4}, "s.yaml: 'lenght' is no key of widget. Did you mean 'length'?"),
        ({}, "s.yaml: widget.length is missing; Widget needs it."),
        ({"length": "4"}, "s.yaml: widget.length is '4': must be a whole number."),
        ({"length": 4.5}, "s.yaml: widget.length is 4.5: must be a whole number."),
        ({"length": True}, "s.yaml: widget.length is true: must be a whole number."),
        ({"length": 4, "rate": "fast"}, "s.yaml: widget.rate is 'fast': must be a number."),
        ({"length": 4, "rate": math.inf}, "s.yaml: widget.rate is inf: must be a finite number."),
        ({"length": 4, "rate": math.nan}, "s.yaml: widget.rate is nan: must be a finite number."),
        ({"length": 4, "mode": "c"}, "s.yaml: widget.mode is 'c': must be 'a' or 'b'."),
        ({"length": 4, "dims": 3}, "s.yaml: 'dims' is no key of widget."),
    ],
)
def test_what_does_not_fit_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        check(**values)
    assert str(caught.value).startswith(message)
