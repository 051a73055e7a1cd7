"""Scaling laws with intervals: L(N), L(D), L(N, D), L(context), and where two of them cross.

    L(N) = E + A N^-alpha        L(N, D) = E + A N^-alpha + B D^-beta

Kaplan et al. 2020 (arXiv:2001.08361) without E, Hoffmann et al. 2022 (arXiv:2203.15556, eq. 2 and
section 3.3) with it. Fits are in `power_law`, intervals in `scaling_intervals`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from ablate.analysis.interval import CONFIDENCE, Interval
from ablate.analysis.power_law import BOUNDS, Floats, Law
from ablate.analysis.scaling_intervals import Design, Fits, Noise, fit_batch, make_design, profile
from ablate.errors import UserError

NAMES = (("A", "alpha"), ("B", "beta"))
SPAN = 4.0
"""Least ratio of the largest to the smallest size."""


@dataclass(frozen=True, eq=False)
class ScalingFit:
    """A fitted law: `parameters` by name (E, A, alpha, B, beta), in the units of the sizes.

    `misfit` is the p-value of the F test that sizes scatter about the law no more than seeds do;
    None with one seed. `dropped` runs had no finite loss. `notes` say what a reader must know.
    """

    variables: tuple[str, ...]
    floor: bool
    parameters: dict[str, Interval]
    runs: int
    settings: int
    seeds: int
    dropped: int
    misfit: float | None
    notes: tuple[str, ...]
    sizes: Floats
    losses: Floats
    blocks: tuple[Hashable, ...] | None
    exact: bool
    confidence: float
    fits: Fits
    center: Floats


def fit_scaling(
    sizes: Mapping[str, ArrayLike],
    losses: ArrayLike,
    *,
    seeds: Sequence[Hashable] | None = None,
    floor: bool = True,
    exact: bool = False,
    confidence: float = CONFIDENCE,
) -> ScalingFit:
    """Fit the law of one or two sizes to runs.

    Args:
        sizes: per variable ("N", "D", "context") its value for each run.
        losses: the loss of each run; runs whose loss is not finite are dropped and counted.
        seeds: the seed of each run; a seed that several sizes share may shift them together.
        floor: whether the irreducible loss E is free; without it E = 0.
        exact: take the law as exact, so that only seeds scatter. Narrower, and wrong if it is not.
        confidence: of every interval.

    Raises:
        UserError: if sizes are too few, too close, or move together, or the loss does not fall.
    """
    table = np.column_stack([np.asarray(column, dtype=float) for column in sizes.values()])
    values = np.asarray(losses, dtype=float)
    names = tuple(sizes)
    if len(names) > len(NAMES):
        raise UserError(f"{len(names)} sizes ({', '.join(names)}) given; a law has one or two.")
    kept = np.isfinite(values)
    dropped = int((~kept).sum())
    table, values = table[kept], values[kept]
    labels = (
        None if seeds is None else tuple(s for s, keep in zip(seeds, kept, strict=True) if keep)
    )
    _check(names, table, values, floor)
    center = np.log(np.unique(table, axis=0)).mean(axis=0)
    law = Law(np.log(table) - center, floor)
    setting = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
    block = None
    if labels is not None:
        order = {label: index for index, label in enumerate(dict.fromkeys(labels))}
        block = np.array([order[label] for label in labels])
    fits = fit_batch(make_design(law, setting, block), np.log(values)[None], exact=exact)
    parameters = _parameters(fits, center, confidence)
    misfit = _misfit(fits)
    notes = _notes(names, fits, parameters, misfit, dropped, exact)
    count = fits.design.settings
    return ScalingFit(
        names, floor, parameters, len(values), count, fits.design.seeds, dropped, misfit, notes,
        table, values, labels, exact, confidence, fits, center,
    )  # fmt: skip


def _check(names: tuple[str, ...], table: Floats, losses: Floats, floor: bool) -> None:
    law = " + ".join(
        ["E"] * floor + [f"{NAMES[k][0]} {n}^-{NAMES[k][1]}" for k, n in enumerate(names)]
    )
    if len(losses) == 0 or not (table > 0).all() or not (losses > 0).all():
        raise UserError(f"L = {law} needs runs with positive sizes and losses.")
    need = 4 if floor and len(names) == 1 else 3
    free = "E free" if floor else "E = 0"
    for name, column in zip(names, table.T, strict=True):
        count = len(np.unique(column))
        if count < need:
            remedy = " or fix E = 0" if floor and count >= 3 else ""
            raise UserError(
                f"L = {law} with {free} needs at least {need} sizes of {name}, got {count}: "
                f"add sizes{remedy}."
            )
        span = column.max() / column.min()
        if span < SPAN:
            raise UserError(
                f"the sizes of {name} span a factor of {span:.3g}; an exponent needs at least "
                f"{SPAN:g}."
            )
    settings, parameters = len(np.unique(table, axis=0)), int(floor) + 2 * len(names)
    if settings <= parameters:
        raise UserError(f"L = {law} has {parameters} parameters, but only {settings} sizes exist.")
    logs = np.log(table)
    if len(names) == 2 and abs(np.corrcoef(logs.T)[0, 1]) > 0.95:
        raise UserError(
            f"{names[0]} and {names[1]} move together (correlation of their logarithms above "
            f"0.95), so their exponents cannot be told apart: vary one at a fixed other."
        )
    line = np.column_stack([np.ones(len(logs)), logs])
    slopes = np.linalg.lstsq(line, np.log(losses), rcond=None)[0][1:]
    for name, slope in zip(names, slopes, strict=True):
        if slope >= 0:
            raise UserError(f"the loss does not fall with {name}; there is no law to fit.")


def _parameters(fits: Fits, center: Floats, confidence: float) -> dict[str, Interval]:
    law, found = fits.design.law, {}
    if law.floor:
        found["E"] = _scalar(fits, {0: 1.0}, confidence, log=True)
    for k, (level, exponent) in enumerate(NAMES[: len(center)]):
        at = law.exponents[k]
        # A belongs to N = 1, far outside the sizes: its interval inherits that of the exponent.
        found[level] = _scalar(fits, {at - 1: 1.0, at: float(center[k])}, confidence, log=True)
        found[exponent] = _scalar(fits, {at: 1.0}, confidence, log=False)
    return found


def _scalar(fits: Fits, weights: dict[int, float], confidence: float, *, log: bool) -> Interval:
    row = np.zeros(fits.design.law.parameters)
    row[list(weights)] = list(weights.values())
    estimate, low, high = profile(fits, weights=row, confidence=confidence)
    if log:
        low, high = _raise_level(fits.noise, estimate, low, high, confidence)
        smallest = fits.log_loss.min() - 15
        ends = np.exp(np.where(low < smallest, -np.inf, low)), np.exp(high)
        return Interval(float(np.exp(estimate)[0]), float(ends[0][0]), float(ends[1][0]))
    low = np.where(low <= BOUNDS[0] * 1.05, 0.0, low)
    high = np.where(high >= BOUNDS[1] * 0.99, np.inf, high)
    return Interval(float(estimate[0]), float(low[0]), float(high[0]))


def _raise_level(
    noise: Noise, estimate: Floats, low: Floats, high: Floats, confidence: float
) -> tuple[Floats, Floats]:
    """Widen the interval of a log loss by what common seeds shift the whole curve."""
    if noise.level_degrees == 0:
        return low, high
    extra = stats.t.ppf(0.5 + confidence / 2, noise.level_degrees) ** 2 * noise.level
    return (
        estimate - np.sqrt((estimate - low) ** 2 + extra),
        estimate + np.sqrt((high - estimate) ** 2 + extra),
    )


def _misfit(fits: Fits) -> float | None:
    design = fits.design
    if design.within_degrees == 0:
        return None
    free = design.settings - design.law.parameters
    return float(stats.f.sf(fits.noise.misfit[0], free, design.within_degrees))


def _notes(
    names: tuple[str, ...],
    fits: Fits,
    parameters: dict[str, Interval],
    misfit: float | None,
    dropped: int,
    exact: bool,
) -> tuple[str, ...]:
    design, notes = fits.design, []
    free = design.settings - design.law.parameters
    if dropped:
        notes.append(f"{dropped} runs without a finite loss are left out")
    if free == 1 and not exact:
        notes.append("one size more than parameters: intervals are very wide, add sizes")
    if misfit is not None and misfit < 0.05:
        notes.append(f"sizes scatter about the law more than seeds do (F test, p = {misfit:.2g})")
    if misfit is None:
        notes.append("one run per size: the scatter about the law stands for that of seeds")
    for name in names:
        exponent = parameters[NAMES[names.index(name)][1]]
        if exponent.low == 0 or exponent.high == np.inf:
            notes.append(f"the runs do not bound the exponent of {name} on both sides")
    return tuple(notes)


def predict_loss(fit: ScalingFit, sizes: Mapping[str, ArrayLike]) -> list[Interval]:
    """Return the expected loss at further sizes, with intervals for the mean over seeds.

    Raises:
        UserError: if `sizes` are not those of the fit.
    """
    if set(sizes) != set(fit.variables):
        raise UserError(f"sizes {sorted(sizes)} given; the fit has {list(fit.variables)}.")
    table = np.column_stack([np.asarray(sizes[name], dtype=float) for name in fit.variables])
    estimate, low, high = log_losses(fit, np.log(table) - fit.center)
    ends = np.exp(np.stack([estimate, low, high], axis=1))
    return [Interval(*map(float, row)) for row in ends]


def log_losses(fit: ScalingFit, log_sizes: Floats) -> tuple[Floats, Floats, Floats]:
    """Return log L with its interval at centred `log_sizes` ``[m, v]``, each ``[m]``."""
    fits = repeat(fit.fits, len(log_sizes))
    found = profile(fits, at=log_sizes[:, None, :], confidence=fit.confidence)
    return (found[0], *_raise_level(fits.noise, *found, fit.confidence))


def repeat(fits: Fits, count: int) -> Fits:
    """Return a batch that holds the first fit of `fits` `count` times."""

    def spread(array: Floats) -> Floats:
        return np.repeat(array[:1], count, axis=0)

    old = fits.noise
    noise = Noise(
        spread(old.variance), spread(old.degrees), spread(old.flatness), spread(old.misfit),
        spread(old.level), old.level_degrees,
    )  # fmt: skip
    return Fits(
        fits.design, spread(fits.log_loss), spread(fits.theta), spread(fits.cut),
        spread(fits.loss), noise,
    )  # fmt: skip


@dataclass(frozen=True)
class Extrapolation:
    """The largest size predicted from all others; `error` is predicted / observed - 1."""

    sizes: dict[str, float]
    predicted: Interval
    observed: float
    error: float


def leave_largest_out(fit: ScalingFit) -> Extrapolation | None:
    """Refit without the largest size and predict it; None if too few sizes would remain.

    With two variables the largest is the setting with the largest product of its sizes.
    """
    largest = fit.sizes[np.log(fit.sizes).sum(axis=1).argmax()]
    out = (fit.sizes == largest).all(axis=1)
    kept = [index for index, gone in enumerate(out) if not gone]
    blocks = None if fit.blocks is None else [fit.blocks[index] for index in kept]
    columns = {name: fit.sizes[kept, k] for k, name in enumerate(fit.variables)}
    try:
        smaller = fit_scaling(
            columns, fit.losses[kept], seeds=blocks, floor=fit.floor, exact=fit.exact,
            confidence=fit.confidence,
        )  # fmt: skip
    except UserError:
        return None
    sizes = {name: float(fit.sizes[out][0, k]) for k, name in enumerate(fit.variables)}
    predicted = predict_loss(smaller, {name: [size] for name, size in sizes.items()})[0]
    observed = float(np.exp(np.log(fit.losses[out]).mean()))
    return Extrapolation(sizes, predicted, observed, predicted.estimate / observed - 1)


def bootstrap_scaling(fit: ScalingFit, *, draws: int = 200, seed: int = 0) -> dict[str, Floats]:
    """Return `draws` refits of data redrawn from the fit, over seeds and over sizes.

    Normal draws with the estimated variances of a size's misfit, a seed's shift and a run. The
    draws show how parameters move together; their percentiles are *not* the intervals of the
    fit, which they undercover at few sizes (`docs/statistics.md`).
    """
    design, noise, generator = fit.fits.design, fit.fits.noise, np.random.default_rng(seed)
    law, n = design.law, len(fit.losses)
    log_loss = law.predict(fit.fits.theta, law.log_sizes)[0]
    each = n / design.settings
    own = noise.variance[0] / max(noise.misfit[0], 1.0) if design.within_degrees else 0.0
    misfit = (noise.variance[0] - own) / each
    data = log_loss + np.sqrt(own) * generator.standard_normal((draws, n))
    sizes = generator.standard_normal((draws, design.settings))
    data += np.sqrt(misfit) * sizes[:, design.setting]
    data += np.sqrt(noise.level[0]) * generator.standard_normal((draws, 1))
    plain = replace_blocks(design)
    theta = fit_batch(plain, data, exact=fit.exact).theta
    found = {"E": np.exp(theta[:, 0])} if law.floor else {}
    for k, (level, exponent) in enumerate(NAMES[: len(fit.center)]):
        slope = theta[:, law.exponents[k]]
        found[level] = np.exp(theta[:, law.exponents[k] - 1] + slope * fit.center[k])
        found[exponent] = slope
    return found


def replace_blocks(design: Design) -> Design:
    """Return `design` without common seeds."""
    return make_design(design.law, design.setting, None)
