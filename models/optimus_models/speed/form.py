"""The formula of a training step's time, its fit, and what it leaves unexplained.

Synchronous (paper, Eq. 4):   1/f = θ0·M/w + θ1 + θ2·w/p + θ3·w + θ4·p
Asynchronous (paper, Eq. 3):  w/f = θ0 + θ1·w/p + θ2·w + θ3·p

f is in steps per second, w workers, p servers, M the global batch size. Our own two forms add a term 1/p: a server
applies one combined update a step, which takes the longer the larger its range of the parameters is, however many
workers there are. They differ in what is sent at the same time:

* `shared`: w/p, as in the paper: w workers share the links of p servers;
* `flat`: max(w/p, 1): with flat sharding and full-duplex links each worker still pushes the whole vector through its
  own link, so more servers than workers do not help.

Coefficients are fitted by non-negative least squares on relative errors. The rest is a Gaussian process over (w, p):
real clusters deviate from any short formula in a way that neighbouring sizes share, and that all sizes with the same
number of servers share: how evenly the parameters happen to fall on exactly p servers.

References: Peng et al., "Optimus", EuroSys 2018, section 3.2; Rasmussen and Williams, Gaussian Processes for Machine
Learning, MIT Press 2006, section 2.7.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from optimus_models.history import FloatArray
from optimus_models.speed.measurements import SpeedPoints

Mode = Literal["sync", "async"]
Terms = Literal["paper", "shared", "flat"]

_PRIOR_SHARES: dict[Mode, FloatArray] = {
    "sync": np.array([0.60, 0.15, 0.18, 0.005, 0.002, 0.05]),
    "async": np.array([0.79, 0.15, 0.005, 0.002, 0.02]),
}
"""Which part of the step time at 1 + 1 each term is believed to make up before anything is known; as coefficients.

A step that somebody bothers to distribute is mostly computing (60 %), with a part that does not shrink with more
workers (15 %); sending takes about as much as that (18 %), updating less (5 %). Overheads per task are small, but they
are what finally ends scaling: a job measured at 1 + 1 is believed to gain up to about 10 workers, and real clusters
stop at 8 to 16 (paper, figures 4 and 9). Larger overheads suit a 1 GbE testbed and mislead on faster networks, where
jobs scale to 128 workers (docs/studies/speeds.md). Asynchronous steps do not share the batch: computing and the
constant part are one term.
"""


def step_terms(workers: FloatArray, servers: FloatArray, mode: Mode, terms: Terms, batch: float) -> FloatArray:
    """(n, t): what each coefficient is multiplied with, for `workers` (n,) and `servers` (n,)."""
    w, p = workers, servers
    sending = np.maximum(w / p, 1.0) if terms == "flat" else w / p
    columns: list[FloatArray | float] = [1.0, sending, w, p]
    if mode == "sync":
        columns.insert(0, batch / w)
    if terms != "paper":
        columns.append(1.0 / p)
    found = np.empty((len(w), len(columns)))
    for number, column in enumerate(columns):
        found[:, number] = column
    return found


def prior_shares(mode: Mode, terms: Terms) -> FloatArray:
    """(t,) shares of the step time at 1 + 1, summing to 1."""
    shares = _PRIOR_SHARES[mode]
    shares = shares[:-1] if terms == "paper" else shares
    normalised: FloatArray = shares / shares.sum()
    return normalised


def step_seconds(workers: FloatArray, speeds: FloatArray, mode: Mode) -> FloatArray:
    """The step time that the terms add up to: 1/f (sync), w/f (async: the job's speed is that of w workers)."""
    return workers / speeds if mode == "async" else 1.0 / speeds


def speed(workers: FloatArray, seconds: FloatArray, mode: Mode) -> FloatArray:
    """The inverse of `step_seconds`: steps per second."""
    return workers / seconds if mode == "async" else 1.0 / seconds


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

    def seconds(self, workers: FloatArray, servers: FloatArray) -> FloatArray:
        """(n,) step times, above 0."""
        x = step_terms(workers, servers, self.mode, self.terms, self.batch)
        return np.asarray(np.maximum(x @ self.coefficients, 1e-12))

    def seconds_with_covariance(self, workers: FloatArray, servers: FloatArray) -> tuple[FloatArray, FloatArray]:
        """`seconds`, and (n, n) what comes from the coefficients' uncertainty, each relative to its step time."""
        x = step_terms(workers, servers, self.mode, self.terms, self.batch)
        seconds = np.asarray(np.maximum(x @ self.coefficients, 1e-12))
        relative = x * self.unit / seconds[:, None]
        return seconds, relative @ self.covariance @ relative.T


def fit_plain(points: SpeedPoints, mode: Mode, batch: float) -> SpeedForm:
    """Exactly the paper's forms: minimise Σ v·(Xθ/T - 1)² over θ >= 0, and nothing else."""
    rows = _rows(points, mode, "paper", batch)
    unit = prior_shares(mode, "paper") / rows[points.most_central]  # only sets what is large and small
    return _least_squares(rows, points.weights, unit, np.zeros(len(unit))).form(mode, "paper", batch)


def fit_with_prior(points: SpeedPoints, mode: Mode, batch: float) -> SpeedForm:
    """That of our two forms that explains the measurements better, each with a weak prior.

    `flat` wins ties: it predicts less of more servers.
    """
    flat, shared = _with_prior(points, mode, "flat", batch), _with_prior(points, mode, "shared", batch)
    if flat.cost <= shared.cost + 1e-6:
        return flat.form(mode, "flat", batch)
    return shared.form(mode, "shared", batch)


def _with_prior(points: SpeedPoints, mode: Mode, terms: Terms, batch: float) -> _LeastSquares:
    """Least squares with one pseudo-measurement per coefficient: it is its prior value, to within its spread.

    Twice: how stiff the prior is compared with the measurements depends on the noise of the measurements.
    """
    rows = _rows(points, mode, terms, batch)
    unit, shares = _prior(points, rows, mode, terms, batch)
    stiffness = shares / np.maximum(_PRIOR_SPREAD * shares, _LEAST_SPREAD)
    noise = _least_squares(rows, points.weights, unit, stiffness * NOISE).noise
    return _least_squares(rows, points.weights, unit, stiffness * noise)


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
    values, shares = _unscaled_prior(mode, terms, batch)
    if not len(points):
        return _Prior(values, shares)
    values = values * np.exp(-_average(np.log(rows @ values)[:, None], points.weights)[0])
    return _Prior(values, _average(rows * values, points.weights))


@lru_cache(maxsize=256)  # of few batches, in every fit
def _unscaled_prior(mode: Mode, terms: Terms, batch: float) -> _Prior:
    shares = prior_shares(mode, terms)
    return _Prior(shares / step_terms(np.ones(1), np.ones(1), mode, terms, batch)[0], shares)


def _average(values: FloatArray, weights: FloatArray) -> FloatArray:
    """(t,) weighted averages over the rows of `values` (n, t): those of `np.average`, in a third of its time."""
    column = weights[:, None]
    return np.asarray((values * column).sum(axis=0) / column.sum(axis=0))


class _LeastSquares(NamedTuple):
    stacked: FloatArray
    """(n + t, t) the rows of the problem."""
    multiples: FloatArray
    """(t,) coefficients / unit."""
    unit: FloatArray
    stiffness: FloatArray
    """(t,) of the prior."""
    evidence: float
    noise: float

    @property
    def cost(self) -> float:
        """Negative log plausibility, up to a constant: mismatch with measurements and prior together."""
        misfit = float(((self.stiffness * (self.multiples - 1.0)) ** 2).sum())
        return self.evidence * float(np.log(self.noise)) + misfit / self.noise**2 / 2.0

    def form(self, mode: Mode, terms: Terms, batch: float) -> SpeedForm:
        """With how sure it is: only what is chosen needs that."""
        gram = self.stacked.T @ self.stacked
        ridge = (1e-6 + 1e-12 * np.trace(gram)) * np.eye(len(self.unit))
        covariance = np.linalg.inv(gram + ridge) * self.noise**2
        return SpeedForm(mode, terms, batch, self.multiples * self.unit, self.unit, covariance, self.noise)


def _least_squares(rows: FloatArray, weights: FloatArray, unit: FloatArray, stiffness: FloatArray) -> _LeastSquares:
    """Weighted NNLS on `rows` (n, t) with targets 1, and for each coefficient a row `stiffness * (θ/unit - 1) = 0`."""
    from scipy.optimize import nnls  # takes as long as all else of this package

    root = np.sqrt(weights)
    n, t = rows.shape
    stacked = np.zeros((n + t, t))
    stacked[:n] = rows * unit * root[:, None]
    stacked[n:].flat[:: t + 1] = stiffness  # its diagonal
    multiples, _ = nnls(stacked, np.concatenate([root, stiffness]))
    squared_error = float(weights @ (rows @ (multiples * unit) - 1.0) ** 2)
    evidence = float(weights.sum()) + _NOISE_EVIDENCE
    noise = float(np.sqrt((squared_error + _NOISE_EVIDENCE * NOISE**2) / evidence))
    return _LeastSquares(stacked, multiples, unit, stiffness, evidence, noise)


MEASUREMENT_NOISE = 0.03
"""Relative error of one measured speed by itself."""
_NEARBY, _NEARBY_REACH = 0.18, 0.36
"""Size of the deviation that sizes share which are within about this distance in log w and log p."""
_SAME_SERVERS, _SAME_SERVERS_REACH = 0.13, 2.2
"""Size of the deviation that sizes with the same p share, and its distance in log w."""
_VARIANCE = _NEARBY**2 + _SAME_SERVERS**2
"""Prior variance of the deviation at any size."""


class SpeedResidual(NamedTuple):
    """The process after n measurements (n may be 0) of log(measured / fitted step time)."""

    workers: FloatArray
    servers: FloatArray
    inverse: FloatArray
    """(n, n) of the covariance of the measurements."""
    weights: FloatArray
    """(n,) `inverse` times the measured residuals."""

    @classmethod
    def fit(cls, points: SpeedPoints, residuals: FloatArray) -> SpeedResidual:
        """`residuals` (n,): one for each of `points`."""
        noise = MEASUREMENT_NOISE**2 / points.weights
        covariance = _kernel(points.workers, points.servers, points.workers, points.servers) + np.diag(noise)
        inverse = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
        return cls(points.workers, points.servers, inverse, inverse @ residuals)

    def mean(self, workers: FloatArray, servers: FloatArray) -> FloatArray:
        """(n,) expected log(true / fitted step time)."""
        mean: FloatArray = _kernel(workers, servers, self.workers, self.servers) @ self.weights
        return mean

    def mean_with_variance(self, workers: FloatArray, servers: FloatArray) -> tuple[FloatArray, FloatArray]:
        """`mean`, and (n,) the variance of the same: before anything is measured all sizes have the same."""
        cross = _kernel(workers, servers, self.workers, self.servers)
        return cross @ self.weights, _VARIANCE - (cross @ self.inverse @ cross.T).diagonal()


def _kernel(w1: FloatArray, p1: FloatArray, w2: FloatArray, p2: FloatArray) -> FloatArray:
    """(n, m) prior covariance of the deviations at n and at m sizes."""
    return shared_deviation(np.log(w1)[:, None] - np.log(w2), np.log(p1)[:, None] - np.log(p2))


def shared_deviation(apart_w: FloatArray, apart_p: FloatArray) -> FloatArray:
    """Prior covariance of the deviations at two sizes, by how far apart they are in log w and in log p."""
    nearby = _NEARBY**2 * np.exp(-(apart_w**2 + apart_p**2) / (2.0 * _NEARBY_REACH**2))
    same = _SAME_SERVERS**2 * np.exp(-(apart_w**2) / (2.0 * _SAME_SERVERS_REACH**2))
    kernel: FloatArray = nearby + np.where(np.abs(apart_p) < 1e-9, same, 0.0)
    return kernel


def along_workers(apart_w: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The part that the distance in log w has in the two terms of `shared_deviation`, which is the sum of products."""
    nearby: FloatArray = _NEARBY**2 * np.exp(-(apart_w**2) / (2.0 * _NEARBY_REACH**2))
    same: FloatArray = _SAME_SERVERS**2 * np.exp(-(apart_w**2) / (2.0 * _SAME_SERVERS_REACH**2))
    return nearby, same


def along_servers(apart_p: FloatArray) -> tuple[FloatArray, FloatArray]:
    """... and the part of the distance in log p."""
    nearby: FloatArray = np.exp(-(apart_p**2) / (2.0 * _NEARBY_REACH**2))
    return nearby, (np.abs(apart_p) < 1e-9).astype(np.float64)
