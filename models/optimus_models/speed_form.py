"""Fitting the coefficients of one form of the step time: non-negative least squares on relative errors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from optimus_models.history import FloatArray
from optimus_models.speed_points import SpeedPoints
from optimus_models.speed_terms import Mode, Terms, prior_shares, step_seconds, step_terms

NOISE = 0.07
"""Relative error of one measured speed round a form, before the residuals say more."""
_NOISE_EVIDENCE = 4.0
"""How many points' worth of belief stand behind `NOISE`."""
_PRIOR_SPREAD, _LEAST_SPREAD = 2.0, 0.14
"""One sigma of a term's share of the step time: this multiple of its prior share, but at least so much."""


class SpeedForm(NamedTuple):
    """A fitted form; t terms."""

    mode: Mode
    terms: Terms
    batch: float
    coefficients: FloatArray
    """(t,) >= 0."""
    unit: FloatArray
    """(t,) the coefficients' order of magnitude: the unit of `covariance`, which keeps it well-conditioned."""
    covariance: FloatArray
    """(t, t) of coefficients / unit."""
    noise: float
    """Relative error of a single measurement round the form."""
    cost: float
    """Negative log plausibility, up to a constant: mismatch with measurements and prior together."""

    def seconds(self, workers: FloatArray, servers: FloatArray) -> FloatArray:
        """(n,) step times, above 0."""
        x = step_terms(workers, servers, self.mode, self.terms, self.batch)
        return np.asarray(np.maximum(x @ self.coefficients, 1e-12))

    def relative_covariance(self, workers: FloatArray, servers: FloatArray) -> FloatArray:
        """(n, n) of the step times that come from the coefficients' uncertainty, each relative to its step time."""
        x = step_terms(workers, servers, self.mode, self.terms, self.batch) * self.unit
        relative = x / self.seconds(workers, servers)[:, None]
        covariance: FloatArray = relative @ self.covariance @ relative.T
        return covariance


def fit_plain(points: SpeedPoints, mode: Mode, batch: float) -> SpeedForm:
    """Exactly the paper's forms: minimise Σ v·(Xθ/T - 1)² over θ >= 0, and nothing else."""
    rows, unit = _rows(points, mode, "paper", batch)
    return _solve(rows, points.weights, unit, np.zeros(len(unit)), (mode, "paper", batch))


def fit_with_prior(points: SpeedPoints, mode: Mode, terms: Terms, batch: float) -> SpeedForm:
    """The same with one pseudo-measurement per coefficient: it is its prior value, to within its spread.

    Twice: how stiff the prior is compared with the measurements depends on the noise of the measurements.
    """
    rows, unit = _rows(points, mode, terms, batch)
    shares = prior_shares(mode, terms)
    stiffness = shares / np.maximum(_PRIOR_SPREAD * shares, _LEAST_SPREAD)
    noise = _solve(rows, points.weights, unit, stiffness * NOISE, (mode, terms, batch)).noise
    return _solve(rows, points.weights, unit, stiffness * noise, (mode, terms, batch))


def _rows(points: SpeedPoints, mode: Mode, terms: Terms, batch: float) -> tuple[FloatArray, FloatArray]:
    """(n, t) terms over measured step time, so that a row times the coefficients should give 1; (t,) prior values.

    The prior values split the step time of the most central measurement (1 s at 1 + 1 if there is none).
    """
    shares = prior_shares(mode, terms)
    if not len(points):
        here = step_terms(np.ones(1), np.ones(1), mode, terms, batch)
        return np.zeros((0, len(shares))), shares / here[0]
    x = step_terms(points.workers, points.servers, mode, terms, batch)
    rows = x / step_seconds(points.workers, points.speeds, mode)[:, None]
    return rows, shares / rows[points.most_central]


def _solve(
    rows: FloatArray, weights: FloatArray, unit: FloatArray, stiffness: FloatArray, form: tuple[Mode, Terms, float]
) -> SpeedForm:
    """Weighted NNLS on `rows` (n, t) with targets 1, and for each coefficient a row `stiffness * (θ/unit - 1) = 0`."""
    root = np.sqrt(weights)
    stacked = np.vstack([rows * unit * root[:, None], np.diag(stiffness)])
    multiples, _ = nnls(stacked, np.concatenate([root, stiffness]))
    squared_error = float(weights @ (rows @ (multiples * unit) - 1.0) ** 2)
    evidence = float(weights.sum()) + _NOISE_EVIDENCE
    noise = float(np.sqrt((squared_error + _NOISE_EVIDENCE * NOISE**2) / evidence))
    gram = stacked.T @ stacked
    ridge = (1e-6 + 1e-12 * np.trace(gram)) * np.eye(len(unit))
    misfit = float(((stiffness * (multiples - 1.0)) ** 2).sum())
    cost = evidence * float(np.log(noise)) + misfit / noise**2 / 2.0
    return SpeedForm(*form, multiples * unit, unit, np.linalg.inv(gram + ridge) * noise**2, noise, cost)
