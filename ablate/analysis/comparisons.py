"""Every cell of a study beside the cell it is compared with, and what may be said about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from ablate.analysis.effects import LEVEL, PairedEffect, Summary, holm, paired_effect, summarise
from ablate.analysis.frame import Cell, StudyResults, Trial
from ablate.analysis.learning_curves import area_under_log_curve, clean


class Verdict(Enum):
    """What the numbers allow to say about one cell; nothing here is a matter of taste."""

    REFERENCE = "reference"
    NO_VALUE = "no finished trial"
    NOT_COMPARED = "not compared"
    ONE_PAIR = "one pair"
    IDENTICAL = "identical"
    SIGNIFICANT = "significant"
    SUGGESTIVE = "not significant, interval excludes zero"
    UNDECIDED = "not significant"


@dataclass(frozen=True)
class Row:
    """One line of the ablation table.

    `effect` is None for the reference itself and where there is nothing to compare with.
    `better` says whether the paired difference points in the direction of the goal, `older` how
    many of its trials were made by older code and kept, `lanes` how many trials shared a program
    in the packs that its finished trials ran in, 1 for a trial that ran alone.
    """

    cell: Cell
    summary: Summary
    counts: Mapping[str, int]
    reference: Cell | None
    reference_n: int
    effect: PairedEffect | None
    p_holm: float | None
    better: bool | None
    verdict: Verdict
    parameters: float | None
    state_bytes: float | None
    flops_per_token: float | None
    tokens_per_second: float | None
    seconds: float | None
    peak_memory: float | None
    area: float | None
    older: int
    lanes: tuple[int, ...] = ()

    @property
    def planned(self) -> int:
        """Number of trials that the plan asks for in this cell."""
        return sum(self.counts.values())

    @property
    def magnitude(self) -> float:
        """Size of the paired difference; 0 where there is none."""
        return abs((self.effect.difference if self.effect else None) or 0.0)


@dataclass(frozen=True)
class Comparisons:
    """All rows in plan order, and the number of tests that Holm's correction covers."""

    rows: tuple[Row, ...]
    family: int

    def having(self, *verdicts: Verdict) -> tuple[Row, ...]:
        """Return the rows with one of `verdicts`, in plan order."""
        return tuple(row for row in self.rows if row.verdict in verdicts)

    @property
    def time_words(self) -> str:
        """How seconds and tokens per second are to be read; empty if every trial ran alone."""
        packed = {lanes > 1 for row in self.rows for lanes in row.lanes}
        if packed == {True}:
            return "share of a pack"
        return "some packed, some alone: not comparable" if True in packed else ""

    @property
    def pairs(self) -> tuple[int, ...]:
        """The distinct numbers of common seeds over which differences were taken, ascending."""
        return tuple(sorted({row.effect.n for row in self.rows if row.effect and row.effect.n}))


def compare(results: StudyResults) -> Comparisons:
    """Compare each cell with its reference on common seeds and correct over all those tests."""
    span = common_span(results)
    rows = [_row(results, cell, span) for cell in results.cells]
    tested = [i for i, row in enumerate(rows) if row.effect and row.effect.p is not None]
    adjusted = holm([p for i in tested if (p := _p(rows[i])) is not None])
    for index, p_holm in zip(tested, adjusted, strict=True):
        rows[index] = replace(rows[index], p_holm=p_holm)
    rows = [replace(row, verdict=judge(row)) for row in rows]
    return Comparisons(tuple(rows), len(tested))


def judge(row: Row) -> Verdict:
    """Return what may be said about `row`, from its numbers alone."""
    if row.summary.n == 0:
        return Verdict.NO_VALUE
    if row.effect is None:
        return Verdict.REFERENCE if row.cell.compared_with is None else Verdict.NOT_COMPARED
    if row.effect.n == 0:
        return Verdict.NOT_COMPARED
    if row.effect.identical:
        return Verdict.IDENTICAL
    if row.effect.n == 1:
        return Verdict.ONE_PAIR
    if row.p_holm is not None and row.p_holm <= LEVEL:
        return Verdict.SIGNIFICANT
    low, high = row.effect.low, row.effect.high
    if low is not None and high is not None and (low > 0 or high < 0):
        return Verdict.SUGGESTIVE
    return Verdict.UNDECIDED


def common_span(results: StudyResults) -> tuple[float, float] | None:
    """Return the range of tokens that the learning curve of every done trial covers."""
    curves = [
        clean(curve) for cell in results.by_cell for curve in results.learning_curves(cell).values()
    ]
    filled = [curve for curve in curves if curve.tokens.size]
    if not filled:
        return None
    start = max(float(curve.tokens[0]) for curve in filled)
    end = min(float(curve.tokens[-1]) for curve in filled)
    return (start, end) if start < end else None


def _row(results: StudyResults, cell: Cell, span: tuple[float, float] | None) -> Row:
    values = results.values[cell.id]
    reference = results.cell(cell.compared_with)
    others = results.values[reference.id] if reference is not None else {}
    effect = None
    if reference is not None:
        seeds = sorted(set(values) & set(others))
        effect = paired_effect([values[s] for s in seeds], [others[s] for s in seeds])
    trials = results.by_cell[cell.id]
    done = [trial for trial in trials if trial.state == "done"]
    return Row(
        cell=cell,
        summary=summarise([values[seed] for seed in sorted(values)]),
        counts=dict(Counter(trial.state for trial in trials)),
        reference=reference,
        reference_n=len(others),
        effect=effect,
        p_holm=None,
        better=_better(effect, results.goal),
        verdict=Verdict.UNDECIDED,
        parameters=_planned(cell.parameters, trials, "parameters"),
        state_bytes=_planned(cell.state_bytes, trials, "state_bytes"),
        flops_per_token=_planned(cell.flops_per_token, trials, "flops_per_token"),
        tokens_per_second=_mean(trial.summary.get("tokens_per_second") for trial in done),
        seconds=_mean(trial.summary.get("seconds") for trial in done),
        peak_memory=_mean(trial.summary.get("peak_memory_bytes") for trial in done),
        area=_area(results, cell, span),
        older=sum(trial.older_code for trial in trials),
        lanes=tuple(sorted({int(trial.info.get("lanes") or 1) for trial in done})),
    )


def _better(effect: PairedEffect | None, goal: str) -> bool | None:
    if effect is None or not effect.difference:
        return None
    return (effect.difference < 0) == (goal == "min")


def _planned(value: float | None, trials: Iterable[Trial], key: str) -> float | None:
    if value is not None:
        return value
    return next((t.info[key] for t in trials if t.info.get(key) is not None), None)


def _mean(values: Iterable[float | None]) -> float | None:
    kept = [value for value in values if value is not None]
    finite = [value for value in kept if abs(value) < float("inf")]
    return sum(finite) / len(finite) if finite else None


def _area(results: StudyResults, cell: Cell, span: tuple[float, float] | None) -> float | None:
    if span is None:
        return None
    found = results.learning_curves(cell.id).values()
    return _mean(area_under_log_curve(curve, *span) for curve in found)


def _p(row: Row) -> float | None:
    return row.effect.p if row.effect is not None else None
