"""Fitting the coefficients of one form of the step time: non-negative least squares on relative errors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from optimus_models.history import FloatArray
from optimus_models.speed.points import SpeedPoints
from optimus_models.speed.terms import Mode, Terms, prior_shares, step_seconds, step_terms

NOISE = 0.07
"""Relative error of one measured speed round a form, before the residuals say more."""
_NOISE_EVIDENCE = 4.0
"""How many points' worth of belief stand behind `NOISE`."""
_PRIOR_SPREAD, _LEAST_SPREAD = 1.0, 0.08
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
    rows = _rows(points, mode, "paper", batch)
    unit = prior_shares(mode, "paper") / rows[points.most_central]  # only sets what is large and small
    return _solve(rows, points.weights, unit, np.zeros(len(unit)), (mode, "paper", batch))


def fit_with_prior(points: SpeedPoints, mode: Mode, terms: Terms, batch: float) -> SpeedForm:
    """The same with one pseudo-measurement per coefficient: it is its prior value, to within its spread.

    Twice: how stiff the prior is compared with the measurements depends on the noise of the measurements.
    """
    rows = _rows(points, mode, terms, batch)
    unit, shares = _prior(points, rows, mode, terms, batch)
    stiffness = shares / np.maximum(_PRIOR_SPREAD * shares, _LEAST_SPREAD)
    noise = _solve(rows, points.weights, unit, stiffness * NOISE, (mode, terms, batch)).noise
    return _solve(rows, points.weights, unit, stiffness * noise, (mode, terms, batch))


class _Prior(NamedTuple):
    """What is believed of t coefficients before the measurements are looked at, but for their common scale."""

    values: FloatArray
    """(t,)"""
    shares: FloatArray
    """(t,) of the step time at the sizes measured, on average."""


def _rows(points: SpeedPoints, mode: Mode, terms: Terms, batch: float) -> FloatArray:
    """(n, t) terms over measured step time, so that a row times the coefficients should give 1."""
    x = step_terms(points.workers, points.servers, mode, terms, batch)
    rows: FloatArray = x / step_seconds(points.workers, points.speeds, mode)[:, None]
    return rows


def _prior(points: SpeedPoints, rows: FloatArray, mode: Mode, terms: Terms, batch: float) -> _Prior:
    """Coefficients that split the step time at 1 + 1 as `prior_shares` says, in the right order of magnitude.

    They are scaled to the measurements, on geometric average; without any, a step takes 1 s at 1 + 1.
    """
    shares = prior_shares(mode, terms)
    values = shares / step_terms(np.ones(1), np.ones(1), mode, terms, batch)[0]
    if not len(points):
        return _Prior(values, shares)
    values = values * np.exp(-np.average(np.log(rows @ values), weights=points.weights))
    return _Prior(values, np.average(rows * values, axis=0, weights=points.weights))


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
