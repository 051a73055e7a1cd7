"""What a study found about each claim that it made before it ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ablate.analysis.claims import Claim, Verdict, judge, parse_claim, same_level
from ablate.analysis.effects import paired_effect
from ablate.analysis.frame import Cell, StudyResults


@dataclass(frozen=True)
class JudgedClaim:
    """A claim beside the effect that was measured.

    `difference` is the mean over `n` common seeds of the metric at the claim's second level minus
    that at its first, `low` and `high` bound its 95 % t-interval, and `pairs` counts the pairs of
    cells that differ in nothing else; of several pairs each seed's mean is taken. `reason` says
    why there is no number.
    """

    claim: Claim
    pairs: int
    n: int
    difference: float | None
    low: float | None
    high: float | None
    verdict: Verdict
    reason: str = ""


def judge_claims(results: StudyResults) -> tuple[JudgedClaim, ...]:
    """Return every claim of the study with its effect and verdict, in the order of the file.

    Raises:
        UserError: if a claim cannot be read; the plan refuses such a study before it runs.
    """
    return tuple(_judged(results, parse_claim(text)) for text in results.claims)


def matched_pairs(results: StudyResults, claim: Claim) -> Iterator[tuple[Cell, Cell]]:
    """Yield the pairs of cells that have the claim's two levels and are equal in all else.

    Where a level takes another factor out of use, the other cell of the pair has that factor at
    the baseline's level.
    """
    baseline = results.cell(results.baseline)
    home = dict(baseline.axes) if baseline is not None else {}
    for before in results.cells:
        if not _has(before, claim.factor, claim.before):
            continue
        for after in results.cells:
            if _has(after, claim.factor, claim.after) and _alike(before, after, claim.factor, home):
                yield before, after


def _has(cell: Cell, factor: str, text: str) -> bool:
    return factor in cell.axes and same_level(text, cell.axes[factor])


def _alike(before: Cell, after: Cell, factor: str, home: Mapping[str, object]) -> bool:
    for axis in before.axes:
        one, other = before.axes[axis], after.axes.get(axis)
        if axis == factor or one == other:
            continue
        if None not in (one, other) or home.get(axis) not in (one, other):
            return False
    return True


def _judged(results: StudyResults, claim: Claim) -> JudgedClaim:
    pairs = list(matched_pairs(results, claim))
    if not pairs:
        reason = f"no two cells differ in {claim.factor} alone"
        return JudgedClaim(claim, 0, 0, None, None, None, "undecided", reason)
    values = [
        (results.metric(before.id, claim.metric), results.metric(after.id, claim.metric))
        for before, after in pairs
    ]
    seeds = [
        seed
        for seed in results.seeds
        if all(seed in before and seed in after for before, after in values)
    ]
    means = [
        tuple(sum(found[seed] for found in side) / len(pairs) for side in zip(*values, strict=True))
        for seed in seeds
    ]
    effect = paired_effect([after for _, after in means], [before for before, _ in means])
    verdict = judge(claim, effect.low, effect.high)
    reason = ""
    if effect.n == 0:
        reason = f"no seed finished in all of its cells with a value of {claim.metric}"
    elif effect.n == 1:
        reason = "one seed has no interval"
    return JudgedClaim(
        claim, len(pairs), effect.n, effect.difference, effect.low, effect.high, verdict, reason
    )
