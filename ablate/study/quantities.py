"""Times and sizes as people write them: ``30min``, ``8h``, ``2GB``."""

from __future__ import annotations

import re

TIMES = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
SIZES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


def seconds_of(text: object) -> float:
    """Seconds of ``90s``, ``30min``, ``8h`` or ``2d``; 0 needs no unit.

    Raises:
        ValueError: no number with a unit.
    """
    return _value(text, TIMES, "5min, 90s, 8h or 2d")


def bytes_of(text: object) -> float:
    """Bytes of ``500MB``, ``2GB`` or ``1TB``; 0 needs no unit.

    Raises:
        ValueError: no number with a unit.
    """
    return _value(text, SIZES, "500MB, 2GB or 1TB")


def _value(text: object, units: dict[str, float], examples: str) -> float:
    if text == 0 and not isinstance(text, bool):
        return 0.0
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([A-Za-z]+)\s*", str(text))
    known = {unit.lower(): value for unit, value in units.items()}
    if not found or found[2].lower() not in known:
        raise ValueError(f"must be a number and a unit: {examples}")
    return float(found[1]) * known[found[2].lower()]
