"""The paper's loss curve, Eq. 1: l(k) = 1 / (β0·k + β1) + β2 with β0, β1, β2 >= 0, and its closed forms.

All functions work on one curve or on arrays of curves alike. Losses here are normalised (largest loss = 1).

References: Peng et al., "Optimus", EuroSys 2018, sections 2.1 and 3.1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optimus_models.history import FloatArray

_GRID = 1.0 - np.geomspace(1.0, 1e-3, 33)
"""Trial asymptotes as fractions of the smallest loss: 0 up to just below it, denser near it."""
_REFINEMENTS = 2
"""Times the grid is narrowed round its best point; two leave β2 within 0.1 % of the smallest loss."""
_SMALLEST = 1e-12
"""Keeps denominators away from 0: β1 = 0 is allowed and k = 0 may be asked for."""


class InverseLaw(NamedTuple):
    """β0, β1, β2 of Eq. 1: floats, or arrays (m,) of m curves."""

    beta0: FloatArray
    beta1: FloatArray
    beta2: FloatArray

    def loss(self, steps: FloatArray) -> FloatArray:
        """Normalised loss at `steps` (n,): shape (n,) for one curve, (m, n) for m curves."""
        b0, b1, b2 = (np.asarray(beta)[..., None] for beta in self)
        return 1.0 / np.maximum(b0 * steps + b1, _SMALLEST) + b2


class Profile(NamedTuple):
    """The best curve for each of m trial asymptotes, and how well it fits."""

    laws: InverseLaw
    """(m,) curves in order of increasing β2."""
    squared_error: FloatArray
    """(m,) weighted mean squared residual in normalised loss."""

    @property
    def best(self) -> int:
        return int(np.argmin(self.squared_error))


def fit_profile(steps: FloatArray, losses: FloatArray, weights: FloatArray) -> Profile:
    """Fit Eq. 1 for each of a grid of asymptotes β2, narrowed round the best.

    Eq. 1 is not linear in β, but for a fixed β2 it is: 1/(l - β2) = β0·k + β1, which is non-negative least squares
    in two unknowns. Rows weigh (l - β2)², which makes the residual a residual of the loss to first order.

    `steps` (n,) >= 0, `losses` (n,) > 0, `weights` (n,) >= 0, n >= 1.
    """
    smallest = float(losses.min())
    asymptotes = smallest * _GRID
    profile = _fit_each(steps, losses, weights, asymptotes)
    for _ in range(_REFINEMENTS):
        low, high = _bracket(asymptotes, profile.best)
        asymptotes = np.union1d(asymptotes, np.linspace(low, high, 9))
        profile = _fit_each(steps, losses, weights, asymptotes)
    return profile


def _bracket(asymptotes: FloatArray, best: int) -> tuple[float, float]:
    return float(asymptotes[max(best - 1, 0)]), float(asymptotes[min(best + 1, len(asymptotes) - 1)])


def _fit_each(steps: FloatArray, losses: FloatArray, weights: FloatArray, asymptotes: FloatArray) -> Profile:
    reach = max(float(steps[-1]), 1.0)
    k = steps / reach  # of order one, for the sake of the normal equations
    above = np.maximum(losses - asymptotes[:, None], _SMALLEST)  # (m, n)
    cubed = weights * above**3
    squared_rows = cubed * above
    b0, b1 = _nonnegative_line(k, squared_rows, cubed)
    laws = InverseLaw(b0 / reach, b1, asymptotes)
    residual = laws.loss(steps) - losses
    return Profile(laws, (residual * residual) @ (weights / weights.sum()))


def _nonnegative_line(k: FloatArray, rows: FloatArray, targets: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Slopes and intercepts >= 0, each (m,), of the weighted lines; `rows` (m, n) squared row weights,
    `targets` (m, n) the same times the value to be met."""
    s0, s1, s2 = rows.sum(axis=1), rows @ k, rows @ (k * k)
    t0, t1 = targets.sum(axis=1), targets @ k
    determinant = np.maximum(s0 * s2 - s1 * s1, 0.0)
    usable = determinant > 1e-12 * s0 * s2
    safe = np.where(usable, determinant, 1.0)
    slope = np.where(usable, (s0 * t1 - s1 * t0) / safe, -1.0)
    intercept = (s2 * t0 - s1 * t1) / safe
    flat = t0 / np.maximum(s0, 1e-300)  # the best line with slope 0
    steep = t1 / np.maximum(s2, 1e-300)  # the best line through the origin
    intercept = np.where(slope < 0, flat, intercept)
    slope = np.maximum(slope, 0.0)
    slope = np.where(intercept < 0, steep, slope)
    return slope, np.maximum(intercept, 0.0)


def step_of_small_decrease(
    law: InverseLaw, delta: float | FloatArray, epoch_steps: float, *, relative: bool
) -> FloatArray:
    """First step k with l(k) - l(k + E) < δ (absolute), or < δ·l(k) (relative), E = `epoch_steps`; inf if never.

    With a = β0·E and u = β0·k + β1 the condition is a/(u·(u + a)) < δ, or with the relative rule
    a/(u·(u + a)) < δ·(1/u + β2): quadratics in u.
    """
    b0, b1, b2 = (np.asarray(beta, dtype=np.float64) for beta in law)
    a = b0 * epoch_steps
    if relative:
        # β2·u² + (1 + a·β2)·u - a·(1/δ - 1) = 0, solved in the form that stays exact as β2 goes to 0.
        linear, constant = 1.0 + a * b2, a * (1.0 / delta - 1.0)
        root = np.sqrt(linear * linear + 4.0 * b2 * constant)
        u = 2.0 * constant / (linear + root)
    else:
        u = (-a + np.sqrt(a * a + 4.0 * a / delta)) / 2.0
    return _step_at(u, b0, b1)


def step_of_loss(law: InverseLaw, target: float) -> FloatArray:
    """First step with l(k) <= `target` (normalised); inf where the curve never gets there."""
    b0, b1, b2 = (np.asarray(beta, dtype=np.float64) for beta in law)
    reachable = target > b2
    u = 1.0 / np.where(reachable, target - b2, 1.0)
    return np.where(reachable, _step_at(u, b0, b1), np.inf)


def _step_at(u: FloatArray, b0: FloatArray, b1: FloatArray) -> FloatArray:
    """The step k >= 0 with β0·k + β1 = u; inf for a flat curve that is not there at the start."""
    distance = u - b1
    return np.where(distance <= 0, 0.0, np.where(b0 > 0, distance / np.where(b0 > 0, b0, 1.0), np.inf))
