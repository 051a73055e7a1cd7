"""Claims written down before a study runs, and what its intervals say of them afterwards.

    effect(window: 16 -> 1) on val/loss > 0.01

says that changing `window` from 16 to 1 raises `val/loss` by more than 0.01.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from ablate.errors import UserError, unknown

Relation = Literal[">", ">=", "<", "<="]
Verdict = Literal["supported", "refuted", "undecided"]

FORM = "effect(window: 16 -> 1) on val/loss > 0.01"

_LEVEL = r"""(?:"[^"]*"|'[^']*'|[^"'(),<>=]+?)"""
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_CLAIM = re.compile(
    rf"effect\(\s*(?P<factor>[\w./@-]+)\s*:\s*(?P<before>{_LEVEL})\s*->\s*(?P<after>{_LEVEL})\s*\)"
    rf"\s+on\s+(?P<metric>\S+)\s*(?P<relation>>=|<=|>|<)\s*(?P<threshold>{_NUMBER})"
)
# What people write instead: other arrows and brackets, "=" for ":", "in" for "on", words left out.
_NEAR = re.compile(
    rf"(?:the\s+)?\w*\s*[(\[{{]?\s*(?P<factor>[\w./@-]+?)\s*[:=,\s]\s*(?P<before>{_LEVEL})\s*"
    rf"(?:->|-->|=>|→|>|\bto\b|,)\s*(?P<after>{_LEVEL})\s*[)\]}}]?\s*(?:\b(?:on|in|of|for)\b|:)?\s+"
    rf"(?P<metric>[\w./@-]+)\s*(?P<relation>>=|=>|<=|=<|≥|≤|>|<)\s*(?P<threshold>{_NUMBER})\s*",
    re.IGNORECASE,
)
_RELATIONS = {"=>": ">=", "≥": ">=", "=<": "<=", "≤": "<="}


@dataclass(frozen=True)
class Claim:
    """The mean of `metric` at `after` minus that at `before` stands in `relation` to `threshold`.

    Levels are text as the user wrote them, without quotes.
    """

    text: str
    factor: str
    before: str
    after: str
    metric: str
    relation: Relation
    threshold: float


def parse_claim(text: str, *, where: str = "") -> Claim:
    """Read one line of a study's `claims`.

    Raises:
        UserError: with the nearest valid form, if the line has another one.
    """
    found = _CLAIM.fullmatch(text.strip())
    place = f"{where}: " if where else ""
    if found is None:
        raise UserError(f"{place}'{text}' is no claim. Did you mean '{nearest(text)}'?")
    part = found.groupdict()
    before, after = _plain(part["before"]), _plain(part["after"])
    if before == after:
        raise UserError(f"{place}'{text}' changes nothing: both levels are {before}.")
    relation = cast(Relation, part["relation"])
    return Claim(
        text.strip(), part["factor"], before, after, part["metric"], relation,
        float(part["threshold"]),
    )  # fmt: skip


def nearest(text: str) -> str:
    """Return the valid claim that is nearest to `text`, or an example of the form."""
    found = _NEAR.fullmatch(text.strip())
    if found is None:
        return FORM
    part = found.groupdict()
    relation = _RELATIONS.get(part["relation"], part["relation"])
    candidate = (
        f"effect({part['factor']}: {part['before'].strip()} -> {part['after'].strip()}) "
        f"on {part['metric']} {relation} {part['threshold']}"
    )
    return candidate if _CLAIM.fullmatch(candidate) else FORM


def check_claim(
    claim: Claim,
    factors: Mapping[str, Collection[object]],
    metrics: Collection[str] | None = None,
    *,
    where: str = "",
) -> None:
    """Check that a claim speaks of the study's factors, their levels and its metrics.

    Raises:
        UserError: with the nearest valid name.
    """
    if claim.factor not in factors:
        raise unknown("factor of the study", claim.factor, factors, where=where)
    levels = factors[claim.factor]
    for text in (claim.before, claim.after):
        if not any(same_level(text, level) for level in levels):
            raise unknown(f"level of '{claim.factor}'", text, levels, where=where)
    if metrics is not None and claim.metric not in metrics:
        raise unknown("metric of the study", claim.metric, metrics, where=where)


def same_level(text: str, level: object) -> bool:
    """Return whether `text` in a claim means `level`: equal as text, as number, or null."""
    if level is None:
        return text in ("null", "None", "~")
    if isinstance(level, bool):
        return text in (str(level), str(level).lower())
    if isinstance(level, int | float):
        return re.fullmatch(_NUMBER, text) is not None and float(text) == level
    return text == str(level)


def judge(claim: Claim, low: float | None, high: float | None) -> Verdict:
    """Return what the interval of the effect says: all of it, none of it, or neither.

    With a 95 % interval a claim that is false is "supported" in at most 2.5 % of studies. No
    interval (one seed, or an end that is not a number) leaves every claim undecided.
    """
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return "undecided"
    ends = [_holds(claim, low), _holds(claim, high)]
    if all(ends):
        return "supported"
    return "undecided" if any(ends) else "refuted"


def exit_code(verdicts: Iterable[Verdict], *, allow_undecided: bool = False) -> int:
    """Return 0 if every claim is supported (or undecided, where that is allowed), else 1."""
    passing = {"supported", "undecided"} if allow_undecided else {"supported"}
    return int(any(verdict not in passing for verdict in verdicts))


def _holds(claim: Claim, effect: float) -> bool:
    if claim.relation == ">":
        return effect > claim.threshold
    if claim.relation == ">=":
        return effect >= claim.threshold
    return effect < claim.threshold if claim.relation == "<" else effect <= claim.threshold


def _plain(level: str) -> str:
    level = level.strip()
    quoted = len(level) >= 2 and level[0] == level[-1] and level[0] in "\"'"
    return level[1:-1] if quoted else level
