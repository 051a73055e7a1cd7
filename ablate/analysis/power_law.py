"""Batched robust fits of L = E + sum_k A_k x_k^-alpha_k on log residuals, and their profiles.

The loss is that of Hoffmann et al. 2022 (arXiv:2203.15556, section 3.3): Huber's function of
log L - log L_hat, from many starts. Everything works on a batch of data sets that share their
sizes, so that a bootstrap or a simulation is one call. Shapes: ``b`` data set, ``n`` run, ``p``
parameter, ``v`` variable.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

HUBER = 2.0
"""Huber's constant in units of the residual scale: 99 % efficient for normal residuals."""

FIRST_HUBER = 1e-3
"""Hoffmann's absolute constant; close to least absolute residuals, so outliers set no start."""

EXPONENTS = (0.03, 0.1, 0.25, 0.5, 0.9, 1.6)
"""Starting values of every exponent; their product over the variables is the set of starts."""

BOUNDS = (1e-3, 10.0)
"""Range of an exponent."""


@dataclass(frozen=True, eq=False)
class Law:
    """The form L = E + sum_k A_k (x_k / reference_k)^-alpha_k; E is absent without `floor`.

    `log_sizes` is ``[n, v]``, centred. The parameters are ``log E`` (with `floor`), then
    ``log A_k, alpha_k`` for each variable, A_k taken at the centre of the sizes.
    """

    log_sizes: Floats
    floor: bool

    @property
    def parameters(self) -> int:
        """Number of free parameters."""
        return int(self.floor) + 2 * int(self.log_sizes.shape[1])

    @property
    def exponents(self) -> list[int]:
        """Positions of the exponents among the parameters."""
        return [int(self.floor) + 2 * k + 1 for k in range(self.log_sizes.shape[1])]

    def predict(self, theta: Floats, log_sizes: Floats) -> tuple[Floats, Floats]:
        """Return log L ``[b, n]`` and its gradient ``[b, n, p]`` at `theta` ``[b, p]``.

        `log_sizes` is ``[n, v]``, or ``[b, n, v]`` for other sizes in every data set.
        """
        first, shape = int(self.floor), (len(theta), log_sizes.shape[-2])
        terms = [np.broadcast_to(theta[:, :1], shape)] * first
        for k in range(log_sizes.shape[-1]):
            level, slope = theta[:, first + 2 * k, None], theta[:, first + 2 * k + 1, None]
            terms.append(level - slope * log_sizes[..., k])
        # A loop over two or three terms is several times faster than reducing a short axis.
        peak = functools.reduce(np.maximum, terms)
        shares = [np.exp(term - peak) for term in terms]
        total = functools.reduce(np.add, shares)
        gradient = np.empty((*shape, self.parameters))
        if self.floor:
            gradient[..., 0] = shares[0] / total
        for k in range(log_sizes.shape[-1]):
            share = shares[first + k] / total
            gradient[..., first + 2 * k] = share
            gradient[..., first + 2 * k + 1] = -share * log_sizes[..., k]
        return np.log(total) + peak, gradient


@dataclass(frozen=True, eq=False)
class Pin:
    """Hold one function of the parameters at `value` ``[b]``.

    The function is `weights` ``[p]`` times the parameters, or log L at `log_sizes`
    ``[b, 1, v]`` where those are given. It is linear along one direction (one parameter, or all
    levels together), so a step is put back on the surface exactly by moving along that.
    """

    value: Floats
    weights: Floats | None = None
    log_sizes: Floats | None = None

    def at(self, law: Law, theta: Floats) -> tuple[Floats, Floats]:
        """Return the function ``[b]`` and its gradient ``[b, p]``."""
        if self.log_sizes is not None:
            value, gradient = law.predict(theta, self.log_sizes)
            return value[:, 0], gradient[:, 0]
        assert self.weights is not None
        return theta @ self.weights, np.broadcast_to(self.weights, theta.shape)

    def direction(self, law: Law) -> Floats:
        """Return the direction ``[p]`` along which the function rises at rate one."""
        along = np.zeros(law.parameters)
        if self.weights is None:
            along[: int(law.floor)] = 1.0
            along[int(law.floor) :: 2] = 1.0
        else:
            first = int(np.flatnonzero(self.weights)[0])
            along[first] = 1 / self.weights[first]
        return along

    def hold(self, law: Law, theta: Floats) -> Floats:
        """Return `theta` moved along `direction` to where the function has its value."""
        gap = self.value - self.at(law, theta)[0]
        return np.asarray(theta + gap[:, None] * self.direction(law))

    def keep(self, rows: NDArray[np.bool_]) -> Pin:
        """Return the pins of these data sets."""
        log_sizes = None if self.log_sizes is None else self.log_sizes[rows]
        return Pin(self.value[rows], self.weights, log_sizes)


def fit(
    law: Law, log_loss: Floats, theta: Floats, cut: Floats, *, pin: Pin | None = None, steps: int
) -> tuple[Floats, Floats]:
    """Minimise Huber's loss from `theta` ``[b, p]`` by damped, reweighted Gauss-Newton steps.

    Args:
        law: form and sizes.
        log_loss: ``[b, n]``.
        theta: starts ``[b, p]``.
        cut: Huber's constant ``[b]``, in units of log loss.
        pin: what to hold fixed.
        steps: largest number of steps.

    Returns:
        The parameters ``[b, p]`` and the loss ``[b]``, which is half the sum of squares where no
        residual exceeds `cut`.
    """
    theta, final = pin.hold(law, theta) if pin is not None else theta.copy(), np.empty(len(theta))
    # Data sets that have settled leave the batch: most need few steps, a few need many.
    active, x, y = np.arange(len(theta)), theta, log_loss
    damping = np.full(len(theta), 1e-3)
    state: tuple[Floats, ...] = _expand(law, y, x, cut, pin)
    final[:] = state[0]
    for _ in range(steps):
        trial = _clip(law, x + _move(state[1], state[2], damping), y)
        trial = pin.hold(law, trial) if pin is not None else trial
        new = _expand(law, y, trial, cut, pin)
        better = new[0] <= state[0]
        done = np.where(better, state[0] - new[0] <= 1e-11 * state[0], damping >= 1e8)
        x = np.where(better[:, None], trial, x)
        state = tuple(
            np.where(better.reshape(-1, *[1] * (old.ndim - 1)), fresh, old)
            for fresh, old in zip(new, state, strict=True)
        )
        damping = np.clip(np.where(better, damping * 0.2, damping * 8), 1e-12, 1e9)
        theta[active], final[active] = x, state[0]
        go = ~done
        if not go.any():
            break
        active, x, y, cut, damping = active[go], x[go], y[go], cut[go], damping[go]
        state = tuple(array[go] for array in state)
        pin = pin.keep(go) if pin is not None else None
    return theta, final


def _move(gradient: Floats, curvature: Floats, damping: Floats) -> Floats:
    diagonal = np.diagonal(curvature, axis1=1, axis2=2)
    ridge = damping[:, None] * diagonal + 1e-13 * diagonal.max(axis=1, keepdims=True) + 1e-300
    system = curvature + ridge[:, :, None] * np.eye(gradient.shape[1])
    return np.clip(np.linalg.solve(system, gradient[..., None])[..., 0], -3, 3)


def _expand(
    law: Law, log_loss: Floats, theta: Floats, cut: Floats, pin: Pin | None
) -> tuple[Floats, Floats, Floats]:
    predicted, slope = law.predict(theta, law.log_sizes)
    residual = log_loss - predicted
    size, edge = np.abs(residual), cut[:, None]
    inside = size <= edge
    loss = np.where(inside, 0.5 * residual**2, edge * (size - 0.5 * edge)).sum(axis=1)
    weight = np.where(inside, 1.0, edge / np.maximum(size, 1e-300))
    weighted = slope * weight[..., None]
    transposed = weighted.transpose(0, 2, 1)
    gradient = (transposed @ residual[..., None])[..., 0]
    curvature = transposed @ slope
    if pin is not None:
        row, along = pin.at(law, theta)[1], pin.direction(law)
        onto = np.eye(theta.shape[1]) - along[None, :, None] * row[:, None, :]
        back = onto.transpose(0, 2, 1)
        gradient = (back @ gradient[..., None])[..., 0]
        curvature = back @ curvature @ onto
    return loss, gradient, curvature


def _clip(law: Law, theta: Floats, log_loss: Floats) -> Floats:
    clipped = theta.copy()
    clipped[:, law.exponents] = np.clip(theta[:, law.exponents], *BOUNDS)
    if law.floor:
        lowest = log_loss.min(axis=1)
        clipped[:, 0] = np.clip(theta[:, 0], lowest - 20, lowest + 1)
    return clipped


def starts(law: Law, log_loss: Floats) -> Floats:
    """Return starts ``[s, b, p]``: linear fits of E and A_k for fixed exponents (`EXPONENTS`)."""
    loss = np.exp(log_loss)
    found = []
    for slopes in itertools.product(EXPONENTS, repeat=law.log_sizes.shape[1]):
        columns = np.exp(-law.log_sizes * np.array(slopes))
        if law.floor:
            columns = np.column_stack([np.ones(len(columns)), columns])
        # Dividing by the loss makes the linear residual the log residual to first order.
        scaled = columns / loss[..., None]
        normal = np.einsum("bnp,bnq->bpq", scaled, scaled)
        normal += 1e-9 * np.trace(normal, axis1=1, axis2=2)[:, None, None] * np.eye(len(normal[0]))
        sizes = np.linalg.solve(normal, scaled.sum(axis=1)[..., None])[..., 0]
        sizes = np.log(np.maximum(sizes, 0.02 * loss.min(axis=1, keepdims=True)))
        theta = np.empty((len(loss), law.parameters))
        first = int(law.floor)
        theta[:, :first] = sizes[:, :first]
        theta[:, first::2] = sizes[:, first:]
        theta[:, first + 1 :: 2] = slopes
        found.append(theta)
    return np.stack(found)


def robust_fit(law: Law, log_loss: Floats) -> tuple[Floats, Floats, Floats]:
    """Fit every data set from all starts; return parameters, Huber's constant and loss.

    First with Hoffmann's near-absolute loss from every start, then, from the best, with the
    constant at `HUBER` times the residual scale that the first fit shows.
    """
    batch, n = log_loss.shape
    begin = starts(law, log_loss)
    tiled = np.tile(log_loss, (len(begin), 1))
    rough = np.full(len(tiled), FIRST_HUBER)
    theta, loss = fit(law, tiled, begin.reshape(-1, law.parameters), rough, steps=40)
    best = loss.reshape(-1, batch).argmin(axis=0) * batch + np.arange(batch)
    theta = theta[best]
    residual = np.abs(log_loss - law.predict(theta, law.log_sizes)[0])
    # The first fit passes through p points; their residuals say nothing of the scale.
    spread = np.median(np.sort(residual, axis=1)[:, min(law.parameters, n - 1) :], axis=1)
    cut = HUBER * np.maximum(1.4826 * spread, 1e-9)
    theta, loss = fit(law, log_loss, theta, cut, steps=100)
    return theta, cut, loss
