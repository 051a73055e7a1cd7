"""Main effects and two-way interactions of factorial designs, with the seed as block.

Least squares with a fixed effect of each seed, and Student's t on the variance that neither cell
nor seed explains. A mixed model with random seeds gives the same estimates where each seed ran
each cell, but must estimate the variance of 3 to 8 seeds, stops at zero for many data sets, and
uses normal quantiles (`docs/statistics.md`). Box, Hunter & Hunter 2005, chapters 5-6.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from ablate.analysis.interval import CONFIDENCE, Interval, t_interval
from ablate.analysis.power_law import Floats
from ablate.errors import UserError

Term = tuple[str, ...]
TOLERANCE = 1e-8


@dataclass(frozen=True)
class FactorialEffect:
    """What changing the factors of `term` does, averaged over the levels of all other factors.

    A main effect is the mean at `changes[0][1]` minus the mean at `changes[0][0]`, the factor's
    first level. An interaction is a difference of differences: how much the effect of the first
    change grows when the second is made too (twice what a +-1 coding calls the interaction).
    """

    term: Term
    changes: tuple[tuple[Hashable, Hashable], ...]
    effect: Interval
    p: float | None


@dataclass(frozen=True)
class Factorial:
    """All effects of a design, the error they are judged by, and what was taken for granted.

    `error` is the standard deviation of a run on `degrees` degrees of freedom; `pure` says that
    it comes from repeated cells, else it comes from the effects left out. `assumed_zero` are
    interactions left out that would bias an effect if they existed. `higher_order` is the p-value
    that effects left out are zero. `dropped` runs had no finite value.
    """

    effects: tuple[FactorialEffect, ...]
    error: float | None
    degrees: int
    pure: bool
    assumed_zero: tuple[Term, ...]
    higher_order: float | None
    dropped: int


def factorial_effects(
    values: ArrayLike,
    levels: Mapping[str, Sequence[Hashable]],
    seeds: Sequence[Hashable],
    *,
    interactions: Iterable[tuple[str, str]] | None = None,
    confidence: float = CONFIDENCE,
) -> Factorial:
    """Estimate main effects and two-way interactions from runs.

    Args:
        values: the metric of each run; runs without a finite value are dropped and counted.
        levels: for each factor its level in each run.
        seeds: the seed of each run.
        interactions: the pairs to estimate; None for all.
        confidence: of every interval.

    Raises:
        UserError: if the design does not identify an effect, naming what it is aliased with.
    """
    numbers = np.asarray(values, dtype=float)
    kept = np.flatnonzero(np.isfinite(numbers)).tolist()
    runs = {name: [column[i] for i in kept] for name, column in levels.items()}
    blocks = [seeds[i] for i in kept]
    y = numbers[kept]
    if y.size == 0:
        raise UserError("a factorial analysis needs at least one run with a finite value.")
    pairs = list(itertools.combinations(levels, 2)) if interactions is None else list(interactions)
    coding = Coding(runs)
    terms: list[Term] = [(name,) for name in levels] + list(pairs)
    _refuse_aliases(coding, terms)
    seed_columns = _dummies(blocks)[:, 1:]
    x = np.column_stack([coding.matrix(terms), seed_columns])
    solution = np.linalg.pinv(x)
    beta, spread = solution @ y, solution @ solution.T
    cells = _dummies(list(zip(*runs.values(), strict=True)))
    error = _error(y, x @ beta, np.linalg.matrix_rank(x), np.column_stack([cells, seed_columns]))
    effects = tuple(
        _effect(coding, terms, change, beta, spread, error, confidence)
        for term in terms
        for change in coding.changes(term)
    )
    return Factorial(
        effects, *error[:3], _assumed(coding, terms, x), error[3], len(numbers) - len(y)
    )


class Coding:
    """Sum-to-zero columns of factors and their products: an average over levels is all zeros."""

    def __init__(self, levels: Mapping[str, Sequence[Hashable]]) -> None:
        self.levels = {name: list(dict.fromkeys(column)) for name, column in levels.items()}
        self.runs = {
            name: np.array([self.code(name, level) for level in column])
            for name, column in levels.items()
        }
        self.count = len(next(iter(levels.values())))

    def code(self, name: str, level: Hashable) -> Floats:
        """Return the columns of `level`: one for each level but the factor's first."""
        order = self.levels[name]
        row = np.zeros(len(order) - 1)
        if level == order[0]:
            return row - 1
        row[order.index(level) - 1] = 1
        return row

    def columns(self, term: Term) -> Floats:
        """Return the columns ``[runs, c]`` of a factor or of a product of factors."""
        found = np.ones((self.count, 1))
        for name in term:
            found = (found[:, :, None] * self.runs[name][:, None, :]).reshape(self.count, -1)
        return found

    def matrix(self, terms: Sequence[Term]) -> Floats:
        """Return intercept and all columns of `terms`."""
        return np.column_stack([np.ones(self.count), *(self.columns(term) for term in terms)])

    def changes(self, term: Term) -> list[tuple[tuple[str, Hashable, Hashable], ...]]:
        """Return every change (factor, first level, other level) that `term` can describe."""
        steps = [
            [(name, self.levels[name][0], other) for other in self.levels[name][1:]]
            for name in term
        ]
        return list(itertools.product(*steps))


def aliases(
    levels: Mapping[str, Sequence[Hashable]], terms: Sequence[Term] | None = None
) -> list[tuple[Term, ...]]:
    """Return the groups of terms that the runs cannot tell apart; () stands for the mean.

    By default of all main effects and two-way interactions. Each group is one linear relation
    that the runs impose: its last term is a combination of the others.
    """
    coding = Coding(levels)
    if terms is None:
        terms = [*((name,) for name in levels), *itertools.combinations(levels, 2)]
    owners: list[Term] = [()]
    for term in terms:
        owners += [term] * coding.columns(term).shape[1]
    groups = []
    for relation in _relations(coding.matrix(terms)):
        group = tuple(dict.fromkeys(owners[column] for column in relation))
        if group not in groups:
            groups.append(group)
    return groups


def _relations(matrix: Floats) -> list[list[int]]:
    """Return, for each column that earlier ones determine, the columns of that relation."""
    independent: list[int] = []
    found = []
    for column in range(matrix.shape[1]):
        target = matrix[:, column]
        basis = matrix[:, independent]
        weights = np.linalg.lstsq(basis, target, rcond=None)[0]
        if np.abs(target - basis @ weights).max() > TOLERANCE:
            independent.append(column)
            continue
        used = [c for c, w in zip(independent, weights, strict=True) if abs(w) > TOLERANCE]
        found.append([*used, column])
    return found


def term_name(term: Term) -> str:
    """Return a term as a reader says it: "gate x optimizer", or "the mean"."""
    return " x ".join(term) if term else "the mean"


def _refuse_aliases(coding: Coding, terms: Sequence[Term]) -> None:
    for name, order in coding.levels.items():
        if len(order) < 2:
            raise UserError(f"factor '{name}' has the single level {order[0]!r}; it has no effect.")
    runs = {
        name: [tuple(row) for row in rows.tolist()] for name, rows in coding.runs.items()
    }  # fmt: skip
    groups = aliases(runs, terms)
    if groups:
        words = "; ".join(
            f"{term_name(group[-1])} from {' + '.join(map(term_name, group[:-1])) or 'zero'}"
            for group in groups
        )
        pairs = sorted({term_name(t) for group in groups for t in group if len(t) == 2})
        drop = f" Leave out of the interactions some of: {', '.join(pairs)}." if pairs else ""
        raise UserError(f"the design cannot tell {words}.{drop}")


def _dummies(labels: Sequence[Hashable]) -> Floats:
    order = {label: index for index, label in enumerate(dict.fromkeys(labels))}
    return np.eye(len(order))[[order[label] for label in labels]]


def _error(
    y: Floats, fitted: Floats, rank: int, saturated: Floats
) -> tuple[float | None, int, bool, float | None]:
    """Return the error of a run, its degrees, whether it is pure, and the test of what is left."""
    full = saturated @ np.linalg.pinv(saturated)
    pure_degrees = len(y) - round(float(np.trace(full)))
    pure = float(((y - full @ y) ** 2).sum())
    left, left_degrees = float(((y - fitted) ** 2).sum()), len(y) - int(rank)
    if pure_degrees == 0:
        error = (left / left_degrees) ** 0.5 if left_degrees else None
        return error, left_degrees, False, None
    extra = left_degrees - pure_degrees
    test = None
    if extra > 0 and pure > 0:
        ratio = max(left - pure, 0.0) / extra / (pure / pure_degrees)
        test = float(stats.f.sf(ratio, extra, pure_degrees))
    return (pure / pure_degrees) ** 0.5, pure_degrees, True, test


def _effect(
    coding: Coding,
    terms: Sequence[Term],
    change: tuple[tuple[str, Hashable, Hashable], ...],
    beta: Floats,
    spread: Floats,
    error: tuple[float | None, int, bool, float | None],
    confidence: float,
) -> FactorialEffect:
    term = tuple(name for name, _, _ in change)
    contrast = np.zeros(len(beta))
    start = 1 + sum(coding.columns(t).shape[1] for t in terms[: terms.index(term)])
    product = np.ones(1)
    for name, low, high in change:
        product = np.outer(product, coding.code(name, high) - coding.code(name, low)).reshape(-1)
    contrast[start : start + product.size] = product
    estimate = float(contrast @ beta)
    steps = tuple((low, high) for _, low, high in change)
    deviation, degrees = error[0], error[1]
    if deviation is None:
        return FactorialEffect(term, steps, Interval(estimate, None, None), None)
    standard = deviation * float(contrast @ spread @ contrast) ** 0.5
    p = float(2 * stats.t.sf(abs(estimate) / standard, degrees)) if standard > 0 else None
    return FactorialEffect(term, steps, t_interval(estimate, standard, degrees, confidence), p)


def _assumed(coding: Coding, terms: Sequence[Term], x: Floats) -> tuple[Term, ...]:
    found = []
    for pair in itertools.combinations(coding.levels, 2):
        if pair in terms or pair[::-1] in terms:
            continue
        bias = np.linalg.pinv(x) @ coding.columns(pair)
        # Row 0 is the mean, which no effect uses.
        if np.abs(bias[1 : 1 + coding.matrix(terms).shape[1] - 1]).max() > TOLERANCE:
            found.append(pair)
    return tuple(found)
