"""The paper's loss curve, Eq. 1: l(k) = 1 / (β0·k + β1) + β2 with β0, β1, β2 >= 0.

Losses here are normalised (largest loss = 1).

References: Peng et al., "Optimus", EuroSys 2018, sections 2.1 and 3.1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from optimus_models.history import FloatArray, LossBatch

_GRID = 1.0 - np.geomspace(1.0, 1e-3, 33)
"""Trial asymptotes as fractions of the smallest loss: 0 up to just below it, denser near it."""
_FINE = np.linspace(0.0, 1.0, 9)
"""Trial asymptotes between the two neighbours of the best one; the middle one is about as good as that one was."""
_REFINEMENTS = 4
"""Times the grid is narrowed round its best point; each narrows it four times."""
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


class InverseFit(NamedTuple):
    """Eq. 1 for each of j histories; arrays (j,), or (j, m) for m trial β2."""

    beta0: FloatArray
    beta1: FloatArray
    beta2: FloatArray
    residual: FloatArray
    """Root mean squared, normalised."""


def fit_inverse_laws(batch: LossBatch) -> InverseFit:
    """Fit Eq. 1 to each history of `batch`.

    Eq. 1 is not linear in β, but for a fixed β2 it is: 1/(l - β2) = β0·k + β1, which is non-negative least squares in
    two unknowns, here solved in closed form for a whole grid of β2 at once. The grid, narrowed round its best point
    a few times, keeps the β2 with the smallest residual of the loss itself.
    """
    every = np.arange(len(batch.counts))
    k = batch.steps / batch.reach[:, None]  # of order one, for the sake of the normal equations
    grid = np.where(batch.inside, batch.losses, np.inf).min(axis=1)[:, None] * _GRID
    trials = _fit_each(k, batch, grid)
    for _ in range(_REFINEMENTS):
        best = np.argmin(trials.residual, axis=1)
        low = trials.beta2[every, np.maximum(best - 1, 0)]
        high = trials.beta2[every, np.minimum(best + 1, trials.residual.shape[1] - 1)]
        trials = _fit_each(k, batch, low[:, None] + (high - low)[:, None] * _FINE)
    best = np.argmin(trials.residual, axis=1)
    slope, intercept, asymptote, residual = (values[every, best] for values in trials)
    return InverseFit(slope / batch.reach, intercept, asymptote, residual)


def _fit_each(k: FloatArray, batch: LossBatch, asymptotes: FloatArray) -> InverseFit:
    """Fit with each of `asymptotes` (j, m); `k` (j, n), whose unit β0 is for."""
    share = (batch.inside / batch.counts[:, None])[:, :, None]  # (j, n, 1)
    inverse = batch.losses[:, None, :] - asymptotes[:, :, None]  # (j, m, n), reused in place for the sake of speed
    np.divide(1.0, np.maximum(inverse, _SMALLEST, out=inverse), out=inverse)
    slope, intercept = _nonnegative_lines(k, inverse, share)
    fitted = np.multiply(slope[:, :, None], k[:, None, :], out=inverse)
    fitted += intercept[:, :, None]
    np.divide(1.0, np.maximum(fitted, _SMALLEST, out=fitted), out=fitted)
    fitted -= batch.losses[:, None, :]
    fitted += asymptotes[:, :, None]
    error = np.square(fitted, out=fitted) @ share
    return InverseFit(slope, intercept, asymptotes, np.sqrt(error[:, :, 0]))


def _nonnegative_lines(k: FloatArray, values: FloatArray, share: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Slopes and intercepts >= 0, each (j, m), of the least-squares lines through each row of `values` (j, m, n)."""
    mean_k = (k[:, None, :] @ share)[:, 0]  # (j, 1)
    deviation = k - mean_k
    variance = (np.square(deviation)[:, None, :] @ share)[:, 0]
    square_k = variance + mean_k**2
    sums = values @ (share * np.stack([np.ones_like(k), deviation, k], axis=2))  # (j, m, 3)
    mean_value, covariance, product = sums[:, :, 0], sums[:, :, 1], sums[:, :, 2]
    slope = np.where(variance > 0, np.maximum(covariance / np.maximum(variance, _SMALLEST), 0.0), 0.0)
    intercept = mean_value - slope * mean_k
    below = intercept < 0
    return np.where(below, product / np.maximum(square_k, _SMALLEST), slope), np.where(below, 0.0, intercept)


def step_of_loss(law: InverseLaw, target: float) -> float:
    """First step with l(k) <= `target` (normalised); inf when the curve never gets there."""
    distance = 1.0 / (target - law.beta2) - law.beta1 if target > law.beta2 else math.inf
    if distance <= 0:
        return 0.0
    return distance / law.beta0 if law.beta0 > 0 else math.inf
