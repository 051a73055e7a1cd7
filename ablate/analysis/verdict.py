"""The result of a study in plain sentences, each derived from the numbers beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ablate.analysis.chance import chance_limit
from ablate.analysis.comparisons import Comparisons, Row, Verdict
from ablate.analysis.effects import LEVEL, seeds_needed, smallest_p
from ablate.analysis.formatting import (
    decimals_for,
    equals,
    interval,
    listed,
    measure_words,
    number,
    probability,
    several,
    signed,
    some_of,
)
from ablate.analysis.frame import StudyResults
from ablate.analysis.searched import searched
from ablate.sweep.records import BROKEN


@dataclass(frozen=True)
class Statement:
    """One sentence about one cell, and the kind of verdict it carries."""

    verdict: Verdict
    cell: str
    text: str


@dataclass(frozen=True)
class Conclusion:
    """The answer in one sentence, the limits of the study, and a statement for each cell."""

    headline: str
    limits: tuple[str, ...]
    statements: tuple[Statement, ...]


def conclude(results: StudyResults, comparisons: Comparisons) -> Conclusion:
    """Return what the study says, what it does not say, and why."""
    decimals = decimals_for(comparisons)
    compared = [row for row in comparisons.rows if row.verdict is not Verdict.REFERENCE]
    return Conclusion(
        headline=_headline(results, comparisons),
        limits=tuple(_limits(results, comparisons)),
        statements=tuple(
            Statement(row.verdict, row.cell.id, sentence(row, results, decimals))
            for row in compared
        ),
    )


def sentence(row: Row, results: StudyResults, decimals: int) -> str:
    """Say in one sentence how `row` compares, with interval, p-value and what they allow."""
    label, effect = row.cell.label, row.effect
    against = row.reference.label if row.reference is not None else "its reference"
    if row.verdict is Verdict.REFERENCE:
        return f"{label} is what the other cells are compared with."
    if row.verdict is Verdict.NO_VALUE:
        return f"{label} has no value: {states(row)}."
    if row.verdict is Verdict.NOT_COMPARED or effect is None or effect.difference is None:
        reason = "is not in the plan" if row.reference is None else "has no finished seed in common"
        return f"{label} is not compared: {against} {reason}."
    seeds = _seeds(row)
    if row.verdict is Verdict.IDENTICAL:
        return f"{label} is identical to {against}: every value is equal, {seeds}."
    measured = _measured(effect.difference, against, measure_words(results.primary), decimals)
    if row.verdict is Verdict.ONE_PAIR:
        return (
            f"{label} measured {measured} {seeds}: one pair has no interval and no p-value, so "
            "nothing is established."
        )
    numbers = (
        f"(95 % interval of the difference {interval(effect.low, effect.high, decimals)}), "
        f"p {equals(effect.p)} (smallest reachable {seeds}: "
        f"{probability(effect.smallest_p)}), adjusted p {equals(row.p_holm)}"
    )
    if row.verdict is Verdict.SIGNIFICANT:
        direction = "better" if row.better else "worse"
        return f"{label} is {direction}: {measured} {numbers}: significant after Holm."
    return f"{label} measured {measured} {numbers}: not established at this number of seeds."


def _measured(difference: float, against: str, unit: str, decimals: int) -> str:
    """Say what was measured, without a word on what it means."""
    if difference == 0:
        return f"the same mean as {against} in {unit}"
    direction = "lower" if difference < 0 else "higher"
    return f"{number(abs(difference), decimals)} {unit} {direction} than {against}"


def states(row: Row) -> str:
    """Write the states of a cell's trials, such as "2 of 3 seeds done, 1 diverged"."""
    done = row.counts.get("done", 0)
    others = [f"{n} {state}" for state, n in sorted(row.counts.items()) if state != "done"]
    if not row.planned:
        return "no trial is planned"
    return ", ".join([f"{done} of {several(row.planned, 'seed')} done", *others])


def _seeds(row: Row) -> str:
    n = row.effect.n if row.effect is not None else 0
    if row.summary.n == row.reference_n == n:
        return f"with {several(n, 'seed')}"
    uneven = f"{row.summary.n} here, {row.reference_n} in the reference"
    return f"with {several(n, 'common seed')}, {uneven}"


def _headline(results: StudyResults, comparisons: Comparisons) -> str:
    compared = [row for row in comparisons.rows if row.verdict is not Verdict.REFERENCE]
    if not any(row.summary.n for row in comparisons.rows):
        return "No trial has finished yet, so there is nothing to conclude."
    if results.search:
        return _best_found(results, decimals_for(comparisons))
    if not compared:
        return "The study has one cell only, so there is nothing to compare."
    if results.cell(results.baseline) is None and all(r.reference is None for r in compared):
        return "The baseline is not in the plan, so no cell can be compared with it."
    significant = comparisons.having(Verdict.SIGNIFICANT)
    if significant:
        return _significant(results, significant, len(compared))
    if comparisons.family == 0:
        return "No difference can be tested: a test needs at least two seeds in both cells."
    return f"{_none_significant(comparisons)} Not significant does not mean equal."


def _best_found(results: StudyResults, decimals: int) -> str:
    found = searched(results)
    if found is None or not found.ranked:
        return "The search has no configuration yet whose seeds have all finished."
    best = found.ranked[0]
    return (
        f"The best of {several(len(found.tried), 'configuration')} so far is {best.cell.label}, "
        f"{number(best.summary.mean, decimals)} {measure_words(results.primary)} as it looks."
    )


def _significant(results: StudyResults, rows: Sequence[Row], compared: int) -> str:
    parts = []
    for word, chosen in (
        ("worse", [row.cell.label for row in rows if not row.better]),
        ("better", [row.cell.label for row in rows if row.better]),
    ):
        if chosen:
            verb = "is" if len(chosen) == 1 else "are"
            parts.append(f"{some_of(chosen)} {verb} significantly {word}")
    against = {row.reference.label for row in rows if row.reference is not None}
    reference = f"than {against.pop()}" if len(against) == 1 else "than what they are compared with"
    rest = compared - len(rows)
    tail = f" The other {rest} cannot be told apart with these seeds." if rest > 1 else ""
    return f"In {measure_words(results.primary)}, {' and '.join(parts)} {reference}.{tail}"


def _none_significant(comparisons: Comparisons) -> str:
    suggestive = len(comparisons.having(Verdict.SUGGESTIVE))
    if comparisons.family == 1:
        extra = ", although its 95 % interval excludes zero" if suggestive else ""
        return f"The one comparison is not significant{extra}."
    text = f"None of the {comparisons.family} comparisons is significant after Holm's correction"
    if suggestive == 0:
        return f"{text}."
    verb = "interval of 1 excludes" if suggestive == 1 else f"intervals of {suggestive} exclude"
    return f"{text}; the 95 % {verb} zero."


def _limits(results: StudyResults, comparisons: Comparisons) -> Iterable[str]:
    counts = results.counts()
    planned, done = sum(counts.values()), counts.get("done", 0)
    open_trials = sum(counts.get(state, 0) for state in ("missing", "running", "stale"))
    if open_trials:
        yield f"The study is not complete: {done} of {several(planned, 'trial')} are done."
    if guessed := chance_limit(results, comparisons):
        yield guessed
    if results.search:
        yield (
            "A search chooses where to look by what it has seen, so differences between its "
            "configurations are no tests; an ablation of the best is a study of its own."
        )
    else:
        yield from _largest(results, comparisons)
        yield from _reach(comparisons)
    if results.tune:
        yield (
            f"Cells are tuned over {listed(results.tune)}: the table of effects compares them "
            "within each setting, the section on tuned cells each at its own best."
        )
    if older := sum(row.older for row in comparisons.rows):
        named = some_of([row.cell.label for row in comparisons.rows if row.older])
        yield (
            f"{several(older, 'result')} {'was' if older == 1 else 'were'} made by older code than "
            f"the plan's and kept, in {named}: differences there compare code as well as cells."
        )
    lossy = [row for row in comparisons.rows if _died(row) and row.summary.n]
    if lossy:
        named = some_of([row.cell.label for row in lossy])
        yield (
            f"In {named} some seeds did not finish. The mean is over the seeds that did, "
            "which can flatter the cell."
        )
    pairs = [row.effect.n for row in comparisons.rows if row.effect and row.effect.n]
    uneven = sum(n < len(results.seeds) for n in pairs)
    if uneven:
        yield (
            f"{uneven} of {several(len(pairs), 'comparison')} {'rests' if uneven == 1 else 'rest'} "
            f"on fewer than the {len(results.seeds)} planned seeds: only seeds that finished in "
            "both cells are paired."
        )


def _largest(results: StudyResults, comparisons: Comparisons) -> Iterable[str]:
    found = [(row, row.effect) for row in comparisons.rows if row.effect and row.effect.difference]
    if len(found) < 2:
        return
    row, effect = max(found, key=lambda pair: abs(pair[1].difference or 0))
    decimals = decimals_for(comparisons)
    bounds = f" {interval(effect.low, effect.high, decimals)}" if effect.low is not None else ""
    direction = "better" if row.better else "worse"
    established = row.verdict is Verdict.SIGNIFICANT
    yield (
        f"The largest measured difference is that of {row.cell.label}: "
        f"{signed(effect.difference, decimals)}{bounds} {measure_words(results.primary)}, "
        f"{direction if established else 'not established at this number of seeds'}."
    )


def _reach(comparisons: Comparisons) -> Iterable[str]:
    most = max(comparisons.pairs, default=0)
    if most == 0:
        return
    needed = seeds_needed(max(1, comparisons.family))
    if most == 1:
        yield "With one seed there is no interval and no p-value: a difference may be chance alone."
        return
    floor = probability(smallest_p(most))
    text = (
        f"With {most} paired seeds the smallest p-value that can be reached is {floor}, "
        f"whatever the data."
    )
    if comparisons.family * smallest_p(most) > LEVEL:
        text += (
            f" No comparison could have become significant: Holm's correction over "
            f"{several(comparisons.family, 'comparison')} needs {needed} seeds or more."
        )
    yield text


def _died(row: Row) -> int:
    return sum(row.counts.get(state, 0) for state in ("diverged", *BROKEN))
