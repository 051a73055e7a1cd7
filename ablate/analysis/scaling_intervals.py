"""Intervals of scaling fits: what the residuals say of the noise, and the robust profile.

A run's log residual has three parts: its size's misfit (the law is not exact, or this size was
tuned badly), its seed's shift (the same data order at every size), and the rest. The interval of
a function g of the parameters holds every value c for which pinning g = c raises Huber's loss by
less than an F quantile of the noise (Schrader & Hettmansperger 1980, Biometrika 67). The noise is
that of sizes if it exceeds that of seeds, and both pooled otherwise; `docs/statistics.md` has the
formulas and the measured coverage.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ablate.analysis.power_law import Floats, Law, Pin, fit, robust_fit

POOL_STEP, POOL_LIMIT = 0.1, 1.5
"""Sizes and seeds are pooled while the ratio of their mean squares is below 1 plus one step for
each size beyond the second that the parameters leave over, or the limit."""

WALK = np.array([0.25, 0.6, 1.0, 1.5, 2.2, 3.2, 4.7, 7, 10, 15, 22, 32, 47, 70, 100, 150, 220, 320])
"""Points, in half-widths of the linear interval, at which the walk outwards tries the profile."""


@dataclass(frozen=True, eq=False)
class Design:
    """Which size (`setting`) and which seed (`block`) each run has, and the projections of both.

    `shift` maps log losses ``[n]`` to each run's seed effect; `between` and `within` are
    the projections on sizes and on what neither sizes nor seeds explain.
    """

    law: Law
    setting: NDArray[np.intp]
    settings: int
    seeds: int
    shift: Floats
    between: Floats
    within: Floats
    within_degrees: int


def make_design(law: Law, setting: NDArray[np.intp], block: NDArray[np.intp] | None) -> Design:
    """Return the projections for runs of these settings; no `block`, no common seeds."""
    n, settings = len(setting), int(setting.max()) + 1
    sizes = np.eye(settings)[setting]
    between = sizes @ np.linalg.pinv(sizes)
    seeds = int(block.max()) + 1 if block is not None else 1
    shift, both = np.zeros((n, n)), between
    if block is not None and seeds > 1:
        # Sum-to-zero coding: the seed effects average to zero, so they leave the level alone.
        dummies = np.eye(seeds)[block] @ (np.eye(seeds)[:, :-1] - np.eye(seeds)[:, -1:])
        dummies = dummies if dummies.size else np.zeros((n, 0))
        table = np.column_stack([sizes, dummies])
        shift = np.column_stack([np.zeros_like(sizes), dummies]) @ np.linalg.pinv(table)
        both = table @ np.linalg.pinv(table)
    degrees = n - round(float(np.trace(both)))
    return Design(law, setting, settings, seeds, shift, between, np.eye(n) - both, degrees)


@dataclass(frozen=True, eq=False)
class Noise:
    """Variance of one run's log loss that counts against the curve's shape, and how well known.

    All arrays are ``[b]``. `level` is the further variance of the whole curve's height that
    common seeds cause, with `level_degrees` degrees of freedom.
    """

    variance: Floats
    degrees: Floats
    flatness: Floats
    misfit: Floats
    level: Floats
    level_degrees: int


@dataclass(frozen=True, eq=False)
class Fits:
    """A batch of robust fits: parameters ``[b, p]``, Huber's constant, loss and noise ``[b]``."""

    design: Design
    log_loss: Floats
    theta: Floats
    cut: Floats
    loss: Floats
    noise: Noise

    def critical(self, confidence: float) -> Floats:
        """Return the rise of the loss ``[b]`` at which the profile interval ends."""
        quantile = stats.f.ppf(confidence, 1, self.noise.degrees)
        return np.asarray(0.5 * quantile * self.noise.variance * self.noise.flatness)


def fit_batch(design: Design, log_loss: Floats, *, exact: bool = False) -> Fits:
    """Fit every data set of `log_loss` ``[b, n]``; `exact` says that sizes have no misfit."""
    shift = log_loss @ design.shift.T
    aligned = log_loss - shift
    theta, cut, loss = robust_fit(design.law, aligned)
    noise = _noise(design, aligned, shift, theta, cut, exact=exact)
    return Fits(design, aligned, theta, cut, loss, noise)


def _noise(
    design: Design, aligned: Floats, shift: Floats, theta: Floats, cut: Floats, *, exact: bool
) -> Noise:
    law, n = design.law, aligned.shape[1]
    residual = aligned - law.predict(theta, law.log_sizes)[0]
    clipped = np.clip(residual, -cut[:, None], cut[:, None])
    inside = np.maximum((np.abs(residual) <= cut[:, None]).mean(axis=1), 1 / n)
    # Huber's pseudo-residuals, with his small-sample factor, let classical sums of squares stand.
    factor = 1 + law.parameters / n * (1 - inside) / inside
    pseudo = clipped * (factor / inside)[:, None]
    between = ((pseudo @ design.between) ** 2).sum(axis=1)
    within = ((pseudo @ design.within) ** 2).sum(axis=1)
    free, degrees = design.settings - law.parameters, design.within_degrees
    between_square = between / free
    pooled = (between + within) / (free + degrees)
    if degrees == 0:
        use_pool = np.zeros(len(theta), dtype=bool)
    elif exact:
        use_pool = np.ones(len(theta), dtype=bool)
    elif free == 1:
        # One degree of freedom cannot show that the misfit is small: no pooling on its word.
        use_pool = np.zeros(len(theta), dtype=bool)
    else:
        limit = min(1 + POOL_STEP * (free - 1), POOL_LIMIT)
        use_pool = between_square <= limit * within / degrees
    variance = np.where(use_pool, pooled, between_square)
    known = np.where(use_pool, free + degrees, free).astype(float)
    ratio = between_square / np.maximum(within / degrees, 1e-300) if degrees else variance * np.nan
    level = np.zeros(len(theta))
    if design.seeds > 1:
        seed_square = (shift**2).sum(axis=1) / (design.seeds - 1)
        own = within / max(degrees, 1)
        limit = min(1 + POOL_STEP * (design.seeds - 2), POOL_LIMIT)
        level = np.where(seed_square > limit * own, seed_square - own, 0) / n
    return Noise(variance, known, inside, ratio, level, design.seeds - 1)


def profile(
    fits: Fits, *, weights: Floats | None = None, at: Floats | None = None, confidence: float = 0.95
) -> tuple[Floats, Floats, Floats]:
    """Return estimate, low and high ``[b]`` of one function of the parameters.

    The function is `weights` ``[p]`` times the parameters, or log L at the centred log sizes `at`
    ``[b, 1, v]``. An end that the data do not give is infinite.
    """
    theta, law = fits.theta, fits.design.law
    blank = np.zeros(len(theta))
    estimate, gradient = Pin(blank, weights, at).at(law, theta)
    _, slope = law.predict(theta, law.log_sizes)
    curvature = slope.transpose(0, 2, 1) @ slope
    inverse = np.linalg.pinv(curvature, rcond=1e-12, hermitian=True)
    spread = np.sqrt(np.einsum("bp,bpq,bq->b", gradient, inverse, gradient))
    deviation = np.sqrt(np.maximum(fits.noise.variance, 1e-24)) * spread
    unit = np.clip(deviation, 1e-10, 1.0)
    half = stats.t.ppf(0.5 + confidence / 2, fits.noise.degrees) * unit
    critical = np.maximum(fits.critical(confidence), 1e-24)
    ends = []
    for sign in (-1.0, 1.0):
        walk = _Walk(fits, weights, at, estimate, sign * half, critical)
        ends.append(walk.end())
    return estimate, ends[0], ends[1]


@dataclass(frozen=True, eq=False)
class _Walk:
    """One end of a profile interval: outwards until the loss has risen enough, then inwards."""

    fits: Fits
    weights: Floats | None
    at: Floats | None
    estimate: Floats
    half: Floats
    critical: Floats

    def end(self) -> Floats:
        """Return the value ``[b]`` at which the profile crosses, infinite where it never does."""
        count = len(self.estimate)
        near, far = np.zeros(count), np.full(count, np.inf)
        near_root, far_root = -np.ones(count), np.full(count, np.inf)
        theta = self.fits.theta
        for step in WALK:
            seeking = np.isinf(far)
            if not seeking.any():
                break
            root, moved = self._root(np.where(seeking, step, near), theta)
            theta = np.where(seeking[:, None], moved, theta)
            past = seeking & (root > 0)
            far, far_root = np.where(past, step, far), np.where(past, root, far_root)
            before = seeking & ~past
            near, near_root = np.where(before, step, near), np.where(before, root, near_root)
        return self._narrow(near, far, near_root, far_root, theta)

    def _narrow(
        self, near: Floats, far: Floats, near_root: Floats, far_root: Floats, theta: Floats
    ) -> Floats:
        open_end = np.isinf(far)
        far, far_root = np.where(open_end, near + 1, far), np.where(open_end, 1.0, far_root)
        left, right = near_root, far_root
        point = near
        for _ in range(12):
            # The Illinois rule: regula falsi that halves the stale side's weight.
            point = (near * right - far * left) / (right - left)
            root, _ = self._root(point, theta)
            past = root > 0
            left = np.where(past, left * 0.5, root)
            right = np.where(past, root, right * 0.5)
            near, far = np.where(past, near, point), np.where(past, point, far)
            if bool((np.abs(root) < 1e-4)[~open_end].all()):
                break
        return np.where(open_end, np.sign(self.half) * np.inf, self.estimate + point * self.half)

    def _root(self, step: Floats, theta: Floats) -> tuple[Floats, Floats]:
        pin = Pin(self.estimate + step * self.half, self.weights, self.at)
        law, log_loss, cut = self.fits.design.law, self.fits.log_loss, self.fits.cut
        theta, loss = fit(law, log_loss, theta, cut, pin=pin, steps=40)
        rise = np.maximum(loss - self.fits.loss, 0)
        return np.sqrt(rise / self.critical) - 1, theta
