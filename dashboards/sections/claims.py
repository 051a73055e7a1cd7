"""Claims that were written down before the study ran, and what became of them."""

from __future__ import annotations

from ablate.analysis.claim_results import JudgedClaim, judge_claims
from ablate.analysis.formatting import interval, listed, signed
from ablate.analysis.frame import StudyResults
from ablate.dashboards.section import Section
from ablate.dashboards.text_table import TextTable

VERDICTS = ("supported", "refuted", "undecided")


def claims_section(results: StudyResults, decimals: int) -> Section | None:
    """Return every claim with its verdict and the effect behind it; None if there is no claim."""
    judged = judge_claims(results)
    if not judged:
        return None
    counts = {name: sum(one.verdict == name for one in judged) for name in VERDICTS}
    said = listed(f"{count} {name}" for name, count in counts.items() if count)
    table = TextTable(
        caption="Claims made before the study ran, with the effect that was measured.",
        alignment="llrr",
        heading=("Claim", "Verdict", "Effect [95 % interval]", "Seeds"),
        rows=tuple(
            (one.claim.text, _verdict(one), _effect(one, decimals), str(one.n)) for one in judged
        ),
    )
    return Section(
        name="claims",
        title="Claims",
        lead=(f"Written down before the study ran: {said}.",),
        tables=(table,),
        notes=(
            "Supported: the whole interval of the effect fulfils the claim. Refuted: none of it "
            "does. Undecided: it reaches to both sides, or there is none. Each claim is judged by "
            "itself, from all pairs of cells that differ in its factor alone.",
        ),
    )


def _verdict(one: JudgedClaim) -> str:
    return f"{one.verdict}: {one.reason}" if one.reason else one.verdict


def _effect(one: JudgedClaim, decimals: int) -> str:
    if one.low is None:
        return signed(one.difference, decimals)
    return f"{signed(one.difference, decimals)} {interval(one.low, one.high, decimals)}"
