"""The paper's loss curve, Eq. 1: l(k) = 1 / (β0·k + β1) + β2 with β0, β1, β2 >= 0, and its closed forms.

Losses here are normalised (largest loss = 1).

References: Peng et al., "Optimus", EuroSys 2018, sections 2.1 and 3.1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from optimus_models.history import FloatArray

_GRID = 1.0 - np.geomspace(1.0, 1e-3, 65)
"""Trial asymptotes as fractions of the smallest loss: 0 up to just below it, denser near it."""
_REFINEMENTS = 3
"""Times the grid is narrowed round its best point; each narrows it eight times."""
_SMALLEST = 1e-12
"""Keeps denominators away from 0: β1 = 0 is allowed and k = 0 may be asked for."""


class InverseLaw(NamedTuple):
    """β0, β1, β2 of Eq. 1."""

    beta0: float
    beta1: float
    beta2: float

    def loss(self, steps: FloatArray) -> FloatArray:
        """Normalised loss at `steps` (n,)."""
        return 1.0 / np.maximum(self.beta0 * steps + self.beta1, _SMALLEST) + self.beta2


def fit_inverse_law(steps: FloatArray, losses: FloatArray) -> tuple[InverseLaw, float]:
    """Fit Eq. 1; also the root mean squared residual.

    Eq. 1 is not linear in β, but for a fixed β2 it is: 1/(l - β2) = β0·k + β1, which is non-negative least squares in
    two unknowns, here solved in closed form for a whole grid of β2 at once. The grid, narrowed round its best point
    a few times, keeps the β2 with the smallest residual of the loss itself.

    `steps` (n,) >= 0, increasing; `losses` (n,) >= 0; n >= 1.
    """
    grid = float(losses.min()) * _GRID
    for _ in range(_REFINEMENTS):
        _, error = _fit_each(steps, losses, grid)
        best = int(np.argmin(error))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        grid = np.union1d(grid[best], np.linspace(low, high, 17))
    (b0, b1), error = _fit_each(steps, losses, grid)
    best = int(np.argmin(error))
    return InverseLaw(float(b0[best]), float(b1[best]), float(grid[best])), math.sqrt(error[best])


def _fit_each(
    steps: FloatArray, losses: FloatArray, asymptotes: FloatArray
) -> tuple[tuple[FloatArray, FloatArray], FloatArray]:
    """(β0, β1) and the mean squared residual, each (m,), for each of `asymptotes` (m,)."""
    reach = float(steps[-1]) if steps[-1] > 0 else 1.0
    k = steps / reach  # of order one, for the sake of the normal equations
    inverse = 1.0 / np.maximum(losses - asymptotes[:, None], _SMALLEST)  # (m, n)
    slope, intercept = _nonnegative_lines(k, inverse)
    fitted = 1.0 / np.maximum(slope[:, None] * k + intercept[:, None], _SMALLEST) + asymptotes[:, None]
    error: FloatArray = np.mean((fitted - losses) ** 2, axis=1)
    return (slope / reach, intercept), error


def _nonnegative_lines(k: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Slopes and intercepts >= 0, each (m,), of the least-squares lines through each row of `values` (m, n)."""
    mean_k, mean_value = float(k.mean()), values.mean(axis=1)
    variance = float(np.mean((k - mean_k) ** 2))
    slope = np.maximum(values @ (k - mean_k) / len(k) / variance, 0.0) if variance > 0 else np.zeros(len(values))
    intercept = mean_value - slope * mean_k
    through_origin = values @ k / max(float(k @ k), _SMALLEST)
    below = intercept < 0
    return np.where(below, through_origin, slope), np.where(below, 0.0, intercept)


def step_of_small_decrease(law: InverseLaw, delta: float, epoch_steps: float, *, relative: bool) -> float:
    """First step k with l(k) - l(k + E) < δ (absolute), or < δ·l(k) (relative), E = `epoch_steps`; 0 < δ <= 1.

    With a = β0·E and u = β0·k + β1 the condition is a/(u·(u + a)) < δ, or with the relative rule
    a/(u·(u + a)) < δ·(1/u + β2): quadratics in u.
    """
    a = law.beta0 * epoch_steps
    if relative:
        # β2·u² + (1 + a·β2)·u - a·(1/δ - 1) = 0, solved in the form that stays exact as β2 goes to 0.
        linear, constant = 1.0 + a * law.beta2, a * (1.0 / delta - 1.0)
        u = 2.0 * constant / (linear + math.sqrt(linear * linear + 4.0 * law.beta2 * constant))
    else:
        u = (-a + math.sqrt(a * a + 4.0 * a / delta)) / 2.0
    return _step_at(u, law)


def step_of_loss(law: InverseLaw, target: float) -> float:
    """First step with l(k) <= `target` (normalised); inf when the curve never gets there."""
    return _step_at(1.0 / (target - law.beta2), law) if target > law.beta2 else math.inf


def _step_at(u: float, law: InverseLaw) -> float:
    """The step k >= 0 with β0·k + β1 = u; inf for a flat curve that is not there at the start."""
    distance = u - law.beta1
    if distance <= 0:
        return 0.0
    return distance / law.beta0 if law.beta0 > 0 else math.inf
