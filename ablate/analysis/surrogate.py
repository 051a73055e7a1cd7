"""Importance of axes in a search: functional ANOVA of a random forest over the search space.

Hutter, Hoos & Leyton-Brown 2014, "An efficient approach for assessing hyperparameter importance".
A tree is constant on boxes, so the variance of its one- and two-axis marginals over the whole
space is a sum over boxes, exact. For searches only: a grid or factorial has `factorial`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ablate.analysis.interval import CONFIDENCE, Interval
from ablate.analysis.power_law import Floats
from ablate.errors import UserError, unknown

FEWEST = 20
TREES = 32
LEAVES = 128
"""Of a tree, at most: the shares of a tree take time with the cube of its boxes."""
NOTHING = "(an axis that does nothing)"


@dataclass(frozen=True)
class Surrogate:
    """Shares of the variance of the metric over the search space, by axis and by pair of axes.

    Intervals are percentiles over forests on random halves of the trials, centred on the
    estimate (delete-half resampling, Shao & Wu 1989). `nothing` is the share that an axis of
    random numbers gets by the same way: what lies inside its interval is noise. `explained` is
    the out-of-bag R^2 of the forest; `dropped` trials had no finite value.
    """

    axes: dict[str, Interval]
    pairs: dict[tuple[str, str], Interval]
    nothing: Interval
    explained: float
    trials: int
    dropped: int


def surrogate_importance(
    columns: Mapping[str, Sequence[Any]],
    values: ArrayLike,
    *,
    log: Collection[str] = (),
    resamples: int = 40,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> Surrogate:
    """Estimate how much each axis of a search matters.

    Args:
        columns: for each axis its value in each trial; numbers are scaled between the smallest
            and largest seen, anything else is a category.
        values: the metric of each trial; trials without a finite value are dropped and counted.
        log: numeric axes to scale by their logarithm.
        resamples: number of forests on random halves of the trials.
        seed: of forests and redraws.
        confidence: of every interval.

    Raises:
        UserError: if trials are fewer than 20 or than four per axis, an axis never varies, or the
            forest predicts no better than the mean.
    """
    numbers = np.asarray(values, dtype=float)
    kept = np.flatnonzero(np.isfinite(numbers)).tolist()
    for name in log:
        if name not in columns:
            raise unknown("axis of the search", name, columns)
    need = max(FEWEST, 4 * len(columns))
    if len(kept) < need:
        raise UserError(
            f"importance over {len(columns)} axes needs at least {need} finished trials, got "
            f"{len(kept)}."
        )
    y = numbers[kept]
    x = np.column_stack(
        [_unit(name, [column[i] for i in kept], name in log) for name, column in columns.items()]
    )
    generator = np.random.default_rng(seed)
    x = np.column_stack([x, generator.uniform(size=len(y))])
    forest = _forest(seed, oob=True).fit(x, y)
    explained = float(forest.oob_score_)
    if not explained > 0:
        raise UserError(
            f"the forest predicts the {len(y)} trials no better than their mean (out-of-bag R^2 "
            f"{explained:.2f}); it has no importances to give. Run more trials."
        )
    estimate = forest_shares(forest, x.shape[1])
    redrawn = []
    for index in range(resamples):
        # Half of the trials without replacement: a redraw with replacement repeats trials, and
        # the forest then learns their noise. Halves scatter as much as the whole does.
        rows = generator.permutation(len(y))[: len(y) // 2]
        again = _forest(seed + 1 + index, oob=False).fit(x[rows], y[rows])
        redrawn.append(forest_shares(again, x.shape[1]))
    scatter = np.array(redrawn) - np.nanmean(redrawn, axis=0)
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    ends = np.clip(estimate + np.nanquantile(scatter, tails, axis=0), 0, 1)
    found = [Interval(*map(float, row)) for row in np.stack([estimate, *ends], axis=1)]
    names = list(columns)
    order = list(itertools.combinations(range(x.shape[1]), 2))
    pairs = {
        (names[i], names[j]): found[x.shape[1] + index]
        for index, (i, j) in enumerate(order)
        if j < len(names)
    }
    axes = dict(zip(names, found, strict=False))
    return Surrogate(
        axes, pairs, found[len(names)], explained, len(y), len(numbers) - len(y)
    )  # fmt: skip


def _unit(name: str, column: Sequence[Any], log: bool) -> Floats:
    """Return a column scaled to 0 .. 1; a category sits in the middle of its equal share."""
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in column)
    if len(set(map(str, column))) < 2:
        raise UserError(f"axis '{name}' has the one value {column[0]!r} in all finished trials.")
    if not numeric:
        if log:
            raise UserError(f"axis '{name}' is not numeric; it has no logarithm.")
        order = sorted(set(map(str, column)))
        return np.array([(order.index(str(v)) + 0.5) / len(order) for v in column])
    numbers = np.array(column, dtype=float)
    if log:
        if not (numbers > 0).all():
            raise UserError(f"axis '{name}' holds {numbers.min():g}; a logarithm needs > 0.")
        numbers = np.log(numbers)
    return np.asarray((numbers - numbers.min()) / (numbers.max() - numbers.min()))


def _forest(seed: int, *, oob: bool) -> Any:
    # Half a second of import that only searches need.
    from sklearn.ensemble import ExtraTreesRegressor

    # Random cuts: greedy ones spend themselves on the strongest axis and shrink the others' shares.
    return ExtraTreesRegressor(
        TREES,
        max_features=1.0,
        bootstrap=True,
        oob_score=oob,
        random_state=seed,
        n_jobs=1,
        max_leaf_nodes=LEAVES,
    )


def forest_shares(forest: Any, dimensions: int) -> Floats:
    """Return the mean over trees of the shares of single axes, then of pairs, in order."""
    shares = [tree_shares(one.tree_, dimensions) for one in forest.estimators_]
    known = [share for share in shares if share is not None]
    count = dimensions + math.comb(dimensions, 2)
    return np.mean(known, axis=0) if known else np.full(count, np.nan)


def tree_shares(tree: Any, dimensions: int) -> Floats | None:
    """Return the shares of variance of a scikit-learn tree over the unit cube; None if constant."""
    low, high, value = _boxes(tree, dimensions)
    width = high - low
    weight = value * width.prod(axis=1)
    mean = weight.sum()
    variance = float((weight * value).sum() - mean**2)
    if variance <= 1e-12 * max(float((value**2).max()), 1e-300):
        return None
    lengths, inside = zip(
        *(_segments(low[:, k], high[:, k]) for k in range(dimensions)), strict=True
    )
    single = np.array(
        [
            (lengths[k] * (inside[k] @ (weight / width[:, k])) ** 2).sum() - mean**2
            for k in range(dimensions)
        ]
    )
    double = []
    for i, j in itertools.combinations(range(dimensions), 2):
        part = (inside[i] * (weight / (width[:, i] * width[:, j]))) @ inside[j].T
        both = float((np.outer(lengths[i], lengths[j]) * part**2).sum() - mean**2)
        double.append(both - single[i] - single[j])
    return np.concatenate([single, double]) / variance


def _boxes(tree: Any, dimensions: int) -> tuple[Floats, Floats, Floats]:
    low, high, value = [], [], []
    stack = [(0, np.zeros(dimensions), np.ones(dimensions))]
    while stack:
        node, start, end = stack.pop()
        if tree.children_left[node] < 0:
            low.append(start)
            high.append(end)
            value.append(tree.value[node, 0, 0])
            continue
        axis, cut = tree.feature[node], tree.threshold[node]
        left_end, right_start = end.copy(), start.copy()
        left_end[axis] = right_start[axis] = cut
        stack.append((tree.children_left[node], start, left_end))
        stack.append((tree.children_right[node], right_start, end))
    return np.array(low), np.array(high), np.array(value)


def _segments(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Return the lengths of the pieces between all edges, and which box covers which piece."""
    edges = np.unique(np.concatenate([low, high]))
    middle = (edges[:-1] + edges[1:]) / 2
    inside = (low[None, :] < middle[:, None]) & (middle[:, None] < high[None, :])
    return np.diff(edges), inside.astype(float)
