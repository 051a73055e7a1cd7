"""Widths that every component is built from."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Dims:
    """Widths of one mixer: model width, number of heads, key and value width of one head.

    Raises:
        ValueError: a width is not a positive whole number.
    """

    model: int
    heads: int
    key: int
    value: int

    def __post_init__(self) -> None:
        for field in fields(self):
            given = getattr(self, field.name)
            if not isinstance(given, int) or isinstance(given, bool) or given < 1:
                raise ValueError(f"Dims.{field.name}={given!r}: must be a whole number >= 1")
