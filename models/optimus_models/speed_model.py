"""The resource-speed model of one job: steps per second as a function of workers and parameter servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import nnls

from optimus_models.history import FloatArray
from optimus_models.speed_terms import PRIOR_SHARES, CommunicationTerm, Mode, speed, step_seconds, terms

Form = Literal["auto", "paper"]

NOISE = 0.05
"""Relative error of one measured speed, before the residuals say more (sync points of the paper: 3 to 5 %)."""
_NOISE_EVIDENCE = 4.0
"""How many points' worth of belief stand behind `NOISE`."""
_PRIOR_SPREAD = 1.0
"""A term's true share of the step time is believed to lie within this fraction of its prior share (one sigma)."""
_LEAST_SPREAD = 0.15
"""... and never more exactly than this share of the step time."""
_REPEATS = 4.0
"""Repeating one (w, p) ever again counts as at most so many measurements: its error is partly systematic."""


class _Points(NamedTuple):
    """Distinct measured (w, p), each with its speed and weight; arrays (n,)."""

    workers: FloatArray
    servers: FloatArray
    speeds: FloatArray
    weights: FloatArray


class _Fit(NamedTuple):
    coefficients: FloatArray
    """(t,) non-negative."""
    scale: FloatArray
    """(t,) the coefficients' order of magnitude: the unit of `precision`, which keeps it well-conditioned."""
    precision: FloatArray
    """(t, t) inverse covariance of coefficients / scale."""
    noise: float
    """Relative error of a single measurement."""
    cost: float
    """Negative log plausibility, up to a constant: mismatch with measurements and prior together."""


@dataclass(frozen=True, slots=True, eq=False)
class SpeedModel:
    """Eq. 3 (async) or Eq. 4 (sync) of the paper with fitted coefficients. See `speed_terms` for the formulas.

    Even one measurement, or many at the same (w, p), gives a usable model: a weak prior says how the step time splits
    into its terms, and measurements override it as they come. With none, speeds are relative (1 step/s at 1 + 1) and
    `confidence` is 0.
    """

    mode: Mode
    communication: CommunicationTerm
    """`paper`: transfers grow as w/p; `flat`: as max(w/p, 1)."""
    batch: float
    coefficients: Mapping[str, float]
    """theta0, theta1, ... in the order of the equations; seconds (theta0 of Eq. 4: seconds per example)."""
    n_points: int
    """Distinct (w, p) with at least one usable measurement."""
    confidence: float
    """0 (no measurement) to 1."""
    error: float
    """Relative error of one measurement round the model."""
    measured: frozenset[tuple[int, int]] = field(repr=False)
    _theta: FloatArray = field(repr=False)
    _scale: FloatArray = field(repr=False)
    _precision: FloatArray = field(repr=False)

    @classmethod
    def fit(
        cls,
        workers: ArrayLike,
        servers: ArrayLike,
        speeds: ArrayLike,
        *,
        weights: ArrayLike | None = None,
        mode: Mode = "sync",
        global_batch_size: float | None = None,
        form: Form = "auto",
    ) -> SpeedModel:
        """Fit to parallel arrays of measurements, `speeds` in steps per second. Never raises on data.

        Measurements that are not finite and above 0 are ignored. `weights` (default all 1) may fade old ones.
        `form="paper"` is the paper's form and nothing but relative-error NNLS; `auto` adds the prior and takes the
        communication term that explains the measurements better.
        """
        points = _distinct_points(workers, servers, speeds, weights)
        batch = float(global_batch_size) if global_batch_size and global_batch_size > 0 else 1.0
        if form == "paper" and len(points.workers):
            fit, communication = _fit_plain(points, mode, batch), _PAPER
        else:
            fit, communication = _fit_best(points, mode, batch)
        return cls(
            mode=mode,
            communication=communication,
            batch=batch,
            coefficients=MappingProxyType({f"theta{i}": float(theta) for i, theta in enumerate(fit.coefficients)}),
            n_points=len(points.workers),
            confidence=_confidence(len(points.workers), fit.noise),
            error=fit.noise,
            measured=frozenset((int(w), int(p)) for w, p in zip(points.workers, points.servers, strict=True)),
            _theta=fit.coefficients,
            _scale=fit.scale,
            _precision=fit.precision,
        )

    def predict(self, workers: ArrayLike, servers: ArrayLike) -> FloatArray:
        """Steps per second of the whole job at each (w, p), w and p >= 1; above 0."""
        w, p = _pairs(workers, servers)
        return speed(w, self._seconds(w, p), self.mode)

    def predict_interval(
        self, workers: ArrayLike, servers: ArrayLike, coverage: float = 0.8
    ) -> tuple[FloatArray, FloatArray]:
        """Bounds (low, high) that hold a measured speed at each (w, p) with probability `coverage`."""
        w, p = _pairs(workers, servers)
        sigma = np.sqrt(self._relative_variance(w, p) + self.error**2)
        factor = np.exp(NormalDist().inv_cdf(0.5 + coverage / 2.0) * np.minimum(sigma, 3.0))
        mean = speed(w, self._seconds(w, p), self.mode)
        return mean / factor, mean * factor

    def next_measurement(self, candidates: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
        """Which of the (workers, servers) `candidates` would teach most; None when there are none.

        D-optimal: the determinant of the coefficients' precision grows by the factor 1 + x'A⁻¹x with a measurement
        with terms x, which is largest where the prediction is least certain. Ties go to the first.
        """
        if not candidates:
            return None
        w, p = _pairs([w for w, _ in candidates], [p for _, p in candidates])
        return candidates[int(np.argmax(self._relative_variance(w, p)))]

    def _seconds(self, workers: FloatArray, servers: FloatArray) -> FloatArray:
        x = terms(workers, servers, self.mode, self.communication, self.batch)
        seconds: FloatArray = x @ self._theta
        return np.asarray(np.maximum(seconds, 1e-12))

    def _relative_variance(self, workers: FloatArray, servers: FloatArray) -> FloatArray:
        """Variance of the predicted step time from the coefficients' uncertainty, relative to its square."""
        x = terms(workers, servers, self.mode, self.communication, self.batch)
        x = x * self._scale / self._seconds(workers, servers)[:, None]
        variance: FloatArray = np.einsum("ij,ij->i", x, np.linalg.solve(self._precision, x.T).T)
        return np.maximum(variance, 0.0)


_PAPER: CommunicationTerm = "paper"


def _pairs(workers: ArrayLike, servers: ArrayLike) -> tuple[FloatArray, FloatArray]:
    w, p = np.broadcast_arrays(np.asarray(workers, dtype=np.float64), np.asarray(servers, dtype=np.float64))
    return np.maximum(w.reshape(-1), 1.0), np.maximum(p.reshape(-1), 1.0)


def _distinct_points(workers: ArrayLike, servers: ArrayLike, speeds: ArrayLike, weights: ArrayLike | None) -> _Points:
    """Usable measurements, those at the same (w, p) merged to their weighted median."""
    w, p, f = (np.asarray(values, dtype=np.float64).reshape(-1) for values in (workers, servers, speeds))
    v = np.ones_like(f) if weights is None else np.asarray(weights, dtype=np.float64).reshape(-1)
    n = min(len(w), len(p), len(f), len(v))
    w, p, f, v = w[:n], p[:n], f[:n], v[:n]
    usable = np.isfinite(w) & np.isfinite(p) & np.isfinite(v) & (w >= 1) & (p >= 1) & (v > 0)
    usable &= (f > 1e-100) & (f < 1e100)  # NaN compares false
    w, p, f, v = w[usable], p[usable], f[usable], v[usable]
    if not len(f):
        return _Points(w, p, f, v)
    v = v / v.max()
    pairs, group = np.unique(np.column_stack([w, p]), axis=0, return_inverse=True)
    group = group.reshape(-1)
    medians = [_weighted_median(f[group == g], v[group == g]) for g in range(len(pairs))]
    totals = np.minimum(np.bincount(group, weights=v), _REPEATS)
    return _Points(pairs[:, 0], pairs[:, 1], np.array(medians), totals)


def _weighted_median(values: FloatArray, weights: FloatArray) -> float:
    """The middle of the values: one stalled interval must not move it."""
    order = np.argsort(values)
    cumulated = np.cumsum(weights[order])
    half = cumulated[-1] / 2.0
    low = int(np.searchsorted(cumulated, half * (1 - 1e-9)))
    high = int(np.searchsorted(cumulated, half * (1 + 1e-9)))
    ranked = values[order]
    return float((ranked[low] + ranked[min(high, len(ranked) - 1)]) / 2.0)


def _fit_best(points: _Points, mode: Mode, batch: float) -> tuple[_Fit, CommunicationTerm]:
    """The communication term with the more plausible fit. The flat one wins ties: it promises less."""
    flat, paper = (_fit_with_prior(points, mode, batch, term) for term in ("flat", "paper"))
    return (flat, "flat") if flat.cost <= paper.cost + 1e-6 else (paper, "paper")


def _fit_plain(points: _Points, mode: Mode, batch: float) -> _Fit:
    """Relative-error NNLS: minimise Σ v·(Xθ/T - 1)² over θ >= 0, exactly the paper's forms."""
    rows, unit = _rows(points, mode, batch, _PAPER)
    return _solve(rows, points.weights, unit, np.zeros(len(unit)))


def _fit_with_prior(points: _Points, mode: Mode, batch: float, communication: CommunicationTerm) -> _Fit:
    """The same with one pseudo-measurement per coefficient: it is its prior value, to within its spread.

    Twice: how stiff the prior is compared with the measurements depends on the noise of the measurements.
    """
    rows, unit = _rows(points, mode, batch, communication)
    shares = PRIOR_SHARES[mode]
    stiffness = shares / np.maximum(_PRIOR_SPREAD * shares, _LEAST_SPREAD)
    noise = _solve(rows, points.weights, unit, stiffness * NOISE).noise
    return _solve(rows, points.weights, unit, stiffness * noise)


def _rows(points: _Points, mode: Mode, batch: float, communication: CommunicationTerm) -> tuple[FloatArray, FloatArray]:
    """(n, t) terms over measured step time, so that a row times the coefficients should give 1; (t,) prior values."""
    x = terms(points.workers, points.servers, mode, communication, batch)
    return x / step_seconds(points.workers, points.speeds, mode)[:, None], _reference(
        points, mode, batch, communication
    )


def _reference(points: _Points, mode: Mode, batch: float, communication: CommunicationTerm) -> FloatArray:
    """(t,) prior coefficients: the step time of the most central measurement, split by the prior shares."""
    if not len(points.workers):
        w, p, seconds = np.ones(1), np.ones(1), 1.0
    else:
        position = np.log(np.column_stack([points.workers, points.servers]))
        centre = np.average(position, axis=0, weights=points.weights)
        nearest = int(np.argmin(((position - centre) ** 2).sum(axis=1)))
        w, p = points.workers[nearest : nearest + 1], points.servers[nearest : nearest + 1]
        seconds = float(step_seconds(w, points.speeds[nearest : nearest + 1], mode)[0])
    prior: FloatArray = PRIOR_SHARES[mode] * seconds / terms(w, p, mode, communication, batch)[0]
    return prior


def _solve(rows: FloatArray, weights: FloatArray, unit: FloatArray, stiffness: FloatArray) -> _Fit:
    """Weighted NNLS on `rows` (n, t) with targets 1, with a row for each coefficient: `stiffness * (θ / unit - 1) = 0`.

    Working in multiples of `unit` keeps the problem well-conditioned whatever the unit of time.
    """
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
    return _Fit(multiples * unit, unit, (gram + ridge) / noise**2, noise, cost)


def _confidence(n_points: int, noise: float) -> float:
    """Half with two points, three quarters with six; less where the form does not describe the job."""
    return n_points / (n_points + 2.0) * float(np.exp(-4.0 * max(noise - NOISE, 0.0)))
