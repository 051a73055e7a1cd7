"""What each factor contributes: main effects, interactions, Shapley values, search importance."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ablate.analysis.attribution import (
    FACTORIAL,
    SEARCH,
    factorial,
    importance,
    shapley,
    varied,
)
from ablate.analysis.effects import holm
from ablate.analysis.factorial import Factorial, FactorialEffect, term_name
from ablate.analysis.formatting import (
    equals,
    interval,
    level,
    listed,
    measure_words,
    number,
    probability,
    several,
    signed,
)
from ablate.analysis.frame import StudyResults
from ablate.analysis.interval import Interval
from ablate.analysis.shapley import Shapley
from ablate.analysis.surrogate import Surrogate
from ablate.dashboards.interval_figure import interval_figure
from ablate.dashboards.section import Drawing, Section
from ablate.dashboards.text_table import TextTable
from ablate.errors import UserError

MOST_EFFECTS = 40
"""The figure and the table show at most this many effects: those with the largest estimates."""


def attribution_section(results: StudyResults, decimals: int) -> Section | None:
    """Return what the design attributes to each factor; None if it is no design for that.

    Where the runs do not identify the numbers, the section says why.
    """
    if not any(results.values[cell.id] for cell in results.cells):
        return None
    if results.design in FACTORIAL:
        parts = [_part(factorial, _factorial, results, decimals)]
        # Above two levels a share has no meaning, which is no failure of the study.
        if all(len(levels) == 2 for levels in varied(results).values()):
            parts.append(_part(shapley, _shapley, results, decimals))
        title = "Main effects and interactions"
    elif results.design == SEARCH:
        parts, title = (
            [_part(importance, _importance, results, decimals)],
            "Importance of each axis",
        )
    else:
        return None
    return Section(
        name="attribution",
        title=title,
        lead=tuple(text for part in parts for text in part.lead),
        drawings=tuple(drawing for part in parts for drawing in part.drawings),
        tables=tuple(table for part in parts for table in part.tables),
        notes=tuple(text for part in parts for text in part.notes),
    )


def _part(
    find: Callable[[StudyResults], object],
    show: Callable[..., Section],
    results: StudyResults,
    decimals: int,
) -> Section:
    try:
        return show(find(results), results, decimals)
    except UserError as refusal:
        return Section("attribution", "", lead=(f"Not computed: {refusal}",))


def _factorial(found: Factorial, results: StudyResults, decimals: int) -> Section:
    adjusted = iter(holm([one.p for one in found.effects if one.p is not None]))
    holm_p = [None if one.p is None else next(adjusted) for one in found.effects]
    kept = _shown(found.effects)
    effects = [found.effects[index] for index in kept]
    names = [f"{term_name(one.term)}: {_changes(one)}" for one in effects]
    texts = [_estimate(one.effect, decimals) for one in effects]
    unit = measure_words(results.primary)
    table = TextTable(
        caption=f"Main effects and two-way interactions on {unit}, averaged over all other "
        "factors, with the seed as block.",
        alignment="llrrr",
        heading=("Term", "Change", "Effect [95 % interval]", "p", "p (Holm)"),
        rows=tuple(
            (term_name(one.term), _changes(one), text, probability(one.p), probability(holm_p[at]))
            for one, text, at in zip(effects, texts, kept, strict=True)
        ),
    )
    drawing = Drawing(
        name="factorial",
        figure=interval_figure(names, [one.effect for one in effects], f"effect on {unit}", texts),
        caption="A main effect is what a change does on average over all levels of the other "
        "factors. An interaction is how much larger the effect of the first change is when the "
        "second is made too. Filled: the 95 % interval excludes zero.",
        description="Effects with intervals; every number is in the table below.",
    )
    return Section("", "", drawings=(drawing,), tables=(table,), notes=_factorial_notes(found))


def _shown(effects: Sequence[FactorialEffect]) -> list[int]:
    """Positions of all main effects, and of the largest interactions as far as there is room."""

    def rank(at: int) -> tuple[bool, float]:
        return len(effects[at].term) > 1, -abs(effects[at].effect.estimate)

    kept = sorted(range(len(effects)), key=rank)[:MOST_EFFECTS]
    return sorted(kept, key=lambda at: (len(effects[at].term), at))


def _factorial_notes(found: Factorial) -> tuple[str, ...]:
    notes = []
    if found.error is None:
        notes.append("No degree of freedom is left for the error: no interval and no p-value.")
    else:
        source = "repeated cells" if found.pure else "the interactions that were left out"
        notes.append(
            f"Student's t on {several(found.degrees, 'degree')} of freedom; the error comes from "
            f"{source}. p (Holm) corrects over {several(len(found.effects), 'effect')}."
        )
    if found.higher_order is not None and found.higher_order < 0.05:
        notes.append(
            "Interactions of three or more factors exist "
            f"(F test, p {equals(found.higher_order)}): averages hide them."
        )
    if found.assumed_zero:
        terms = listed(term_name(term) for term in found.assumed_zero)
        notes.append(f"Taken to be zero, because the design cannot tell: {terms}.")
    if len(found.effects) > MOST_EFFECTS:
        notes.append(
            f"Of {len(found.effects)} effects {MOST_EFFECTS} are shown: the main effects and the "
            "largest interactions."
        )
    return tuple(notes)


def _changes(one: FactorialEffect) -> str:
    arrow = "\N{RIGHTWARDS ARROW}"
    return " and ".join(f"{level(a)} {arrow} {level(b)}" for a, b in one.changes)  # type: ignore[arg-type]


def _shapley(found: Shapley, results: StudyResults, decimals: int) -> Section:
    on = {axis: level(levels[0]) for axis, levels in varied(results).items()}
    rows = [
        (f"{axis}: {on[axis]}", _estimate(share, decimals)) for axis, share in found.shares.items()
    ]
    table = TextTable(
        caption=f"Shapley values: the share of each first level in what all of them together do "
        f"to {measure_words(results.primary)}.",
        alignment="lr",
        heading=("Level", "Share [95 % interval]"),
        rows=(*rows, ("all together", _estimate(found.total, decimals))),
    )
    dropped = len(found.dropped)
    lost = f" {several(dropped, 'seed')} without a value in every cell left out." if dropped else ""
    note = (
        "A share is what the level adds, averaged over all orders in which the levels could be "
        f"switched on; the shares add up to the total. Over {several(len(found.seeds), 'seed')}."
    )
    return Section("", "", tables=(table,), notes=(f"{note}{lost}",))


def _importance(found: Surrogate, results: StudyResults, decimals: int) -> Section:
    shares = {**found.axes, **{f"{a} x {b}": share for (a, b), share in found.pairs.items()}}
    ordered = sorted(shares.items(), key=lambda item: -item[1].estimate)[:MOST_EFFECTS]
    names = [name for name, _ in ordered]
    texts = [_percent(share) for _, share in ordered]
    table = TextTable(
        caption=f"Share of each axis in the variance of {measure_words(results.primary)} over the "
        "search space.",
        alignment="lr",
        heading=("Axis", "Share [95 % interval]"),
        rows=(
            *zip(names, texts, strict=True),
            ("an axis that does nothing", _percent(found.nothing)),
        ),
    )
    note = (
        f"By a forest over {several(found.trials, 'configuration')} that explains "
        f"{number(100 * found.explained, 0)} % of the variance of those it has not seen. A share "
        "inside the interval of an axis that does nothing is noise."
    )
    return Section("", "", tables=(table,), notes=(note,))


def _estimate(one: Interval, decimals: int) -> str:
    text = signed(one.estimate, decimals)
    return text if one.low is None else f"{text} {interval(one.low, one.high, decimals)}"


def _percent(one: Interval) -> str:
    text = f"{number(100 * one.estimate, 0)} %"
    if one.low is None or one.high is None:
        return text
    return f"{text} {interval(100 * one.low, 100 * one.high, 0)}"
