"""Limit identities: settings at which one choice computes what another does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Limit:
    """With `options`, and with `held` parameters, a choice computes what `equals` makes of it.

    A fact of the equations, declared on the class as ``limits`` and tested by the models' outputs.

    Args:
        says: the identity in words.
        options: of this choice.
        equals: settings of a model (an axis, ``axis.option``, ``chunk``) that lead to the other.
        given: settings that both sides have.
        held: parameters of both sides, by the ends of their names, and the number they hold.
    """

    says: str
    options: Mapping[str, Any]
    equals: Mapping[str, Any]
    given: Mapping[str, Any] = field(default_factory=dict)
    held: Mapping[str, float] = field(default_factory=dict)
