"""How numbers are written: the same rounding in sentences, tables and figures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ablate.analysis.comparisons import Comparisons
    from ablate.analysis.effects import Summary
    from ablate.analysis.frame import Scalar

MINUS = "\N{MINUS SIGN}"
DASH = "\N{EN DASH}"
NOT_APPLICABLE = "n/a"
ROUGH = ("estimate", "gpu_rate")
"""Sources of a time that nobody has measured; the first also stands for a plan of both."""


def number(value: float | None, decimals: int) -> str:
    """Write `value` with a true minus sign, or a dash where there is no number."""
    if value is None or not math.isfinite(value):
        return DASH
    text = f"{value:.{decimals}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("-", MINUS)


def signed(value: float | None, decimals: int) -> str:
    """Write `value` with its sign, plus included; zero has none."""
    text = number(value, decimals)
    positive = value is not None and math.isfinite(value) and float(f"{value:.{decimals}f}") > 0
    return f"+{text}" if positive else text


def interval(low: float | None, high: float | None, decimals: int) -> str:
    """Write an interval in brackets, or a dash where there is none."""
    if low is None or high is None:
        return DASH
    return f"[{number(low, decimals)}, {number(high, decimals)}]"


def with_half_width(summary: Summary, decimals: int) -> str:
    """Write a mean with half the width of its 95 % interval, where it has one."""
    mean = number(summary.mean, decimals)
    if summary.high is None or summary.mean is None:
        return mean
    return f"{mean} \N{PLUS-MINUS SIGN} {number(summary.high - summary.mean, decimals)}"


def probability(p: float | None) -> str:
    """Write a p-value with up to three digits, never as zero."""
    if p is None:
        return DASH
    if p < 0.001:
        return "< 0.001"
    if p >= 0.1:
        return f"{p:.3f}".removesuffix("0")
    return f"{p:.3g}" if p >= 0.01 else f"{p:.2g}"


def equals(p: float | None) -> str:
    """Write what a p-value is in a sentence: "= 0.031", or "< 0.001"."""
    text = probability(p)
    return text if text.startswith("<") else f"= {text}"


def count(value: float | None) -> str:
    """Write a count with three digits and a suffix: 950, 12.3 k, 4.56 M, 1.20 G."""
    return _scaled(value, 1000.0, ("", " k", " M", " G", " T", " P"))


def size(value: float | None) -> str:
    """Write a number of bytes in binary units: 512 B, 64.0 KiB, 1.50 MiB."""
    return _scaled(value, 1024.0, (" B", " KiB", " MiB", " GiB", " TiB", " PiB"))


def duration(value: float | None) -> str:
    """Write seconds as seconds, minutes or hours."""
    if value is None or not math.isfinite(value):
        return DASH
    if value < 120:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def about(source: str | None) -> str:
    """Return the ``~`` that stands before a time which nobody has measured."""
    return "~" if source in ROUGH else ""


def level(value: Scalar) -> str:
    """Write the level of a factor; n/a where the factor does not apply."""
    if value is None:
        return NOT_APPLICABLE
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def measure_words(name: str) -> str:
    """Turn a metric's name into words: ``val/bits_per_byte`` is "bits per byte"."""
    return name.rsplit("/", 1)[-1].replace("_", " ")


def decimals_for(comparisons: Comparisons) -> int:
    """Return the decimals that suit all numbers of a study's tables."""
    rows = comparisons.rows
    return decimals_for_values([row.effect for row in rows], [row.summary for row in rows])


def decimals_for_values(differences: Iterable[object], summaries: Iterable[Summary]) -> int:
    """Return the decimals that show two digits of a typical interval's half width.

    The intervals are those of `differences`, or where none has one those of `summaries`. Without
    any interval, four digits of the typical mean.
    """
    summaries = list(summaries)
    widths = [width for one in differences if (width := _half_width(one)) > 0]
    widths = widths or [width for one in summaries if (width := _half_width(one)) > 0]
    if widths:
        return _decimals(median(widths), 2)
    means = [abs(one.mean) for one in summaries if one.mean]
    return _decimals(median(means), 4) if means else 3


def several(amount: int, noun: str, plural: str | None = None) -> str:
    """Write an amount with its noun: "1 seed", "3 seeds"."""
    return f"{amount} {noun if amount == 1 else plural or noun + 's'}"


def listed(items: Iterable[str]) -> str:
    """Join words as prose does: "a", "a and b", "a, b and c"."""
    words = list(items)
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def some_of(labels: Sequence[str]) -> str:
    """List at most six of `labels`, and say how many more there are."""
    rest = len(labels) - 6
    return listed([*labels[:6], f"{rest} more"] if rest > 0 else labels)


def _half_width(estimate: object) -> float:
    low, high = getattr(estimate, "low", None), getattr(estimate, "high", None)
    return 0.0 if low is None or high is None else (high - low) / 2


def _decimals(value: float, digits: int) -> int:
    return max(0, min(6, digits - 1 - math.floor(math.log10(value))))


def _scaled(value: float | None, base: float, suffixes: tuple[str, ...]) -> str:
    if value is None or not math.isfinite(value):
        return DASH
    scaled, index = float(value), 0
    while abs(scaled) >= base * 0.9995 and index < len(suffixes) - 1:
        scaled, index = scaled / base, index + 1
    if index == 0:
        return f"{scaled:.0f}{suffixes[0]}"
    digits = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
    return f"{scaled:.{digits}f}{suffixes[index]}"
