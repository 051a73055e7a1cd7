"""Scaling laws: the fitted curves, their exponents, and where they cross."""

from __future__ import annotations

import math

from ablate.analysis.crossing import Crossing
from ablate.analysis.formatting import DASH, count, measure_words, number, probability
from ablate.analysis.frame import StudyResults
from ablate.analysis.interval import Interval
from ablate.analysis.scaling import ScalingFit
from ablate.analysis.size_laws import SYMBOLS, SizeCurve, size_laws
from ablate.dashboards.law_figure import law_drawings
from ablate.dashboards.section import Section
from ablate.dashboards.text_table import TextTable


def scaling_section(results: StudyResults, decimals: int) -> Section | None:
    """Return the laws of a study that varies a size; None if it varies none."""
    laws = size_laws(results)
    if laws is None or not any(curve.points for curve in laws.curves):
        return None
    law = " + ".join(["E"] + [_TERMS[k].format(name) for k, name in enumerate(laws.variables)])
    words = ", ".join(f"{name} = {SYMBOLS[name]}" for name in laws.variables)
    fitted = [(curve, curve.fit) for curve in laws.curves if curve.fit is not None]
    refused = [
        f"Not fitted, {curve.name}: {curve.refusal}" for curve in laws.curves if curve.refusal
    ]
    lead = [f"The law is L = {law}, where L is {measure_words(results.primary)} and {words}."]
    lead += [_crossing(*met, laws.variables[0]) for met in laws.crossings]
    notes = [f"{curve.name}: {note}." for curve, fit in fitted for note in fit.notes]
    if fitted:
        notes.insert(
            0,
            "Intervals allow for the scatter of seeds and of sizes about the law; E and A are not "
            "comparable between curves with different exponents. Largest size: the law is fitted "
            "without it; its error there (predicted / observed - 1) shows how far to trust it.",
        )
    return Section(
        name="scaling",
        title="Scaling",
        lead=tuple(lead + refused),
        drawings=law_drawings(results, laws),
        tables=(_table([(c, f) for c, f in fitted], decimals),) if fitted else (),
        notes=tuple(notes),
    )


_TERMS = (
    "A {}^\N{MINUS SIGN}\N{GREEK SMALL LETTER ALPHA}",
    "B {}^\N{MINUS SIGN}\N{GREEK SMALL LETTER BETA}",
)


def _table(fitted: list[tuple[SizeCurve, ScalingFit]], decimals: int) -> TextTable:
    names = list(fitted[0][1].parameters)
    return TextTable(
        caption="Fitted scaling laws with 95 % intervals.",
        alignment="l" + "r" * (len(names) + 3),
        heading=(
            "Curve",
            *(_GREEK.get(name, name) for name in names),
            "Sizes x seeds",
            "Misfit p",
            "Error at largest size",
        ),
        rows=tuple(
            (
                curve.name,
                *(_parameter(name, fit.parameters[name], decimals) for name in names),
                f"{fit.settings} x {fit.seeds}",
                probability(fit.misfit),
                DASH
                if curve.largest is None
                else f"{'+' if curve.largest.error > 0 else ''}"
                f"{number(100 * curve.largest.error, 2)} %",
            )
            for curve, fit in fitted
        ),
    )


_GREEK = {"alpha": "\N{GREEK SMALL LETTER ALPHA}", "beta": "\N{GREEK SMALL LETTER BETA}"}


def _parameter(name: str, one: Interval, decimals: int) -> str:
    def write(value: float | None) -> str:
        if value is None or math.isinf(value):
            return DASH if value is None else "\N{INFINITY}"
        if name in ("A", "B"):
            return number(value, 2) if value < 100 else count(value)
        return number(value, 3 if name in _GREEK else decimals)

    return f"{write(one.estimate)} [{write(one.low)}, {write(one.high)}]"


def _crossing(second: str, first: str, met: Crossing, variable: str) -> str:
    if met.verdict in ("first below", "second below"):
        side = "below" if met.verdict == "first below" else "above"
        low, high = map(count, met.searched)
        return (
            f"{second} lies {side} {first} at every size from {low} to {high}: the 95 % interval "
            "of their difference excludes zero throughout."
        )
    where = f"between {_size(met.low)} and {_size(met.high)}"
    at = ", ".join(count(size) for size in met.estimates) or "none"
    if met.verdict == "crosses":
        beyond = ", beyond the sizes that were run" if met.extrapolated else ""
        return f"{second} and {first} cross at {variable} = {at} ({where}){beyond}."
    return (
        f"{second} and {first} cannot be ordered at every size: they cannot be told apart {where} "
        f"(crossings of the fitted curves: {at})."
    )


def _size(value: float | None) -> str:
    if value is None or math.isinf(value):
        return "the largest size searched"
    return count(value) if value > 0 else "the smallest size searched"
