"""The step time of all-reduce training over nodes, and its fit.

    T        = (T_grad^γ + T_sync^γ)^(1/γ)          γ = 1: one after the other; γ -> ∞: fully overlapped
    T_grad   = α + β·m                              m examples per worker
    T_sync   = λ·rounds(r) + σ·κ·gradients(r)       r workers; 0 for one worker

`rounds` and `gradients` (bytes through the busiest link, in units of the gradient) are those of the scheme, see
`analytic.communication`; κ is the compression factor. λ (latency per round) and σ (seconds to send the gradient once)
are one pair within a node and another as soon as the exchange crosses nodes: a ring over all workers is as slow as
its slowest link. The scheme `linear` is the one of Pollux: T_sync = λ + σ·(r - 2).

All seven parameters are logarithms (γ - 1 too), each with a normal prior, so a few measurements suffice and none fails.

References: Qiao et al., "Pollux", OSDI 2021, section 3.2; Qi et al., "Paleo", ICLR 2017, section 3.2.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from optimus_models.analytic.communication import Scheme, busiest_link_bytes, rounds
from optimus_models.history import FloatArray
from optimus_models.speed.allreduce_points import AllReducePoints

SyncScheme = Literal["ring", "tree", "butterfly", "one_to_all", "linear"]
SCHEMES: tuple[SyncScheme, ...] = ("ring", "linear", "butterfly", "tree", "one_to_all")
"""What `auto` chooses from, in the order in which ties are decided."""

PARAMETERS = ("alpha", "beta", "lambda_intra", "sigma_intra", "lambda_inter", "sigma_inter", "gamma")
NOISE = 0.08
"""Relative error of one measured step time round the form, before the residuals say more."""
_NOISE_EVIDENCE = 4.0
"""How many measurements' worth of belief stand behind `NOISE`."""
_PRIOR = np.log([0.3, 0.7, 0.002, 0.05, 0.01, 0.5, 0.5])
"""Medians of the parameters in units of a typical step (β: at the typical batch): a step is mostly its gradient;
a network is several times slower than the links within a node; half-way overlapped."""
_PRIOR_SPREAD = np.array([1.5, 1.5, 2.0, 2.0, 2.0, 2.0, 1.0])
"""One sigma of each, in logarithms: factors of 4 to 7."""
_GRADIENT_SHARE = 0.5
"""A measured gradient time counts as so much of a step time: overlap hides part of it."""
_REACH = 12.0
"""Parameters stay within this many e-folds of their prior medians, so that nothing overflows whatever the data."""
_LEAST_EXCHANGE = -60.0
"""Logarithm that stands for "no exchange" (one worker)."""


class AllReduceForm(NamedTuple):
    """A fitted form."""

    scheme: SyncScheme
    logs: FloatArray
    """(7,) logarithms of `PARAMETERS` (of γ - 1 for the last) in units of `unit_seconds` and `unit_batch`."""
    covariance: FloatArray
    """(7, 7) of `logs`."""
    unit_seconds: float
    unit_batch: float
    noise: float
    """Relative error of a single measurement round the form."""
    cost: float
    """Negative log plausibility, up to a constant."""

    def log_seconds(self, sizes: FloatArray, compression: float = 1.0) -> FloatArray:
        """(n,) logarithms of the step times at `sizes` (n, 3): nodes, workers, batch per worker."""
        split = _Split.of(self.logs, sizes, self.scheme, self.unit_batch, compression)
        return np.asarray(split.step + np.log(self.unit_seconds), dtype=np.float64)

    def gradient_seconds(self, sizes: FloatArray) -> FloatArray:
        return np.exp(_Split.of(self.logs, sizes, self.scheme, self.unit_batch).gradient) * self.unit_seconds

    def variance(self, sizes: FloatArray, compression: float = 1.0) -> FloatArray:
        """(n,) of the log step times, as far as it comes from the parameters."""
        slopes = _Split.of(self.logs, sizes, self.scheme, self.unit_batch, compression).slopes()
        return np.asarray(np.einsum("ni,ij,nj->n", slopes, self.covariance, slopes))

    def coefficients(self) -> dict[str, float]:
        """The parameters in seconds (β: seconds per example) and γ."""
        values = np.exp(self.logs)
        values[:6] *= self.unit_seconds
        values[1] /= self.unit_batch
        values[6] += 1.0
        return dict(zip(PARAMETERS, values.tolist(), strict=True))


class _Split(NamedTuple):
    """Logarithms of a step time's parts; arrays (n,)."""

    step: FloatArray
    gradient: FloatArray
    exchange: FloatArray
    gamma: float
    of_alpha: FloatArray
    """Which part of the gradient time is α."""
    of_latency: FloatArray
    """Which part of the exchange is latency."""
    crosses: FloatArray
    """1 where the exchange crosses nodes."""

    @classmethod
    def of(
        cls, logs: FloatArray, sizes: FloatArray, scheme: SyncScheme, unit_batch: float, compression: float = 1.0
    ) -> _Split:
        nodes, workers, batches = sizes.T
        crosses = (nodes > 1).astype(np.float64)
        messages, gradients = _exchange_terms(scheme, workers)
        constant, proportional = np.full(len(sizes), logs[0]), logs[1] + np.log(batches / unit_batch)
        gradient = np.logaddexp(constant, proportional)
        latency = np.where(crosses > 0, logs[4], logs[2]) + messages
        sending = np.where(crosses > 0, logs[5], logs[3]) + gradients + np.log(max(compression, 1e-9))
        exchange = np.logaddexp(latency, sending)
        gamma = 1.0 + float(np.exp(logs[6]))
        step = np.logaddexp(gamma * gradient, gamma * exchange) / gamma
        return cls(step, gradient, exchange, gamma, np.exp(constant - gradient), np.exp(latency - exchange), crosses)

    def slopes(self) -> FloatArray:
        """(n, 7): ∂ log T / ∂ log parameter."""
        of_gradient = np.exp(self.gamma * (self.gradient - self.step))
        of_exchange = np.exp(self.gamma * (self.exchange - self.step))
        latency, sending = of_exchange * self.of_latency, of_exchange * (1.0 - self.of_latency)
        within = 1.0 - self.crosses
        overlap = (of_gradient * self.gradient + of_exchange * self.exchange - self.step) / self.gamma
        columns = [
            of_gradient * self.of_alpha,
            of_gradient * (1.0 - self.of_alpha),
            within * latency,
            within * sending,
            self.crosses * latency,
            self.crosses * sending,
            overlap * (self.gamma - 1.0),
        ]
        return np.column_stack(columns)

    def gradient_slopes(self) -> FloatArray:
        """(n, 7): ∂ log T_grad / ∂ log parameter."""
        slopes = np.zeros((len(self.step), len(PARAMETERS)))
        slopes[:, 0], slopes[:, 1] = self.of_alpha, 1.0 - self.of_alpha
        return slopes


def _exchange_terms(scheme: SyncScheme, workers: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Logarithms of rounds and of gradients through the busiest link, each (n,), for `workers` (n,)."""
    if scheme == "linear":
        terms = {w: (float(w > 1), max(w - 2.0, 0.0)) for w in np.unique(workers).tolist()}
    else:
        kind = Scheme(scheme)
        whole = {w: max(round(w), 1) for w in np.unique(workers).tolist()}
        terms = {w: (float(rounds(kind, r)), busiest_link_bytes(kind, r, 1.0)) for w, r in whole.items()}
    table = np.array([terms[w] for w in workers.tolist()]).reshape(-1, 2)
    logs = np.where(table > 0, np.log(np.maximum(table, 1e-300)), _LEAST_EXCHANGE)
    return logs[:, 0], logs[:, 1]


def fit_form(points: AllReducePoints, scheme: SyncScheme) -> AllReduceForm:
    """The most plausible parameters: weighted least squares of the log step times and of the logs' distance to the
    prior. Twice: how stiff the prior is compared with the measurements depends on the noise of the measurements.
    """
    unit_seconds = _typical(points.seconds, points.weights)
    unit_batch = _typical(points.batches, points.weights)
    problem = _Problem(points, scheme, unit_seconds, unit_batch)
    noise = problem.noise(problem.solve(_PRIOR, NOISE))
    logs = problem.solve(_PRIOR, noise)
    return problem.finished(logs, noise)


class _Problem(NamedTuple):
    points: AllReducePoints
    scheme: SyncScheme
    unit_seconds: float
    unit_batch: float

    def split(self, logs: FloatArray) -> _Split:
        return _Split.of(logs, self.points.sizes, self.scheme, self.unit_batch)

    def solve(self, start: FloatArray, noise: float) -> FloatArray:
        """(7,) parameters' logs."""
        if not len(self.points):
            return start
        solution = least_squares(
            self.mismatch,
            start,
            self.slopes,
            bounds=(_PRIOR - _REACH, _PRIOR + _REACH),
            max_nfev=50,
            xtol=1e-6,
            ftol=1e-6,
            args=(noise,),
        )
        return np.asarray(solution.x, dtype=np.float64)

    def mismatch(self, logs: FloatArray, noise: float) -> FloatArray:
        """(2n + 7,): steps, gradients, prior; each in its standard deviations."""
        split, root = self.split(logs), np.sqrt(self.points.weights) / noise
        steps = split.step - np.log(self.points.seconds / self.unit_seconds)
        known = ~np.isnan(self.points.gradient_seconds)
        measured = np.log(np.where(known, self.points.gradient_seconds, self.unit_seconds) / self.unit_seconds)
        gradients = np.where(known, split.gradient - measured, 0.0)
        return np.concatenate([root * steps, _GRADIENT_SHARE * root * gradients, (logs - _PRIOR) / _PRIOR_SPREAD])

    def slopes(self, logs: FloatArray, noise: float) -> FloatArray:
        """(2n + 7, 7) derivatives of `mismatch`."""
        split, root = self.split(logs), np.sqrt(self.points.weights)[:, None] / noise
        known = ~np.isnan(self.points.gradient_seconds)[:, None]
        gradients = _GRADIENT_SHARE * root * np.where(known, split.gradient_slopes(), 0.0)
        return np.vstack([root * split.slopes(), gradients, np.diag(1.0 / _PRIOR_SPREAD)])

    def noise(self, logs: FloatArray) -> float:
        """Relative error of a measurement, pulled towards `NOISE` while there are few."""
        errors = self.split(logs).step - np.log(self.points.seconds / self.unit_seconds)
        squares = float(self.points.weights @ errors**2) + _NOISE_EVIDENCE * NOISE**2
        return float(np.sqrt(squares / (self.points.weights.sum() + _NOISE_EVIDENCE)))

    def finished(self, logs: FloatArray, noise: float) -> AllReduceForm:
        slopes = self.slopes(logs, noise)
        covariance = np.linalg.inv(slopes.T @ slopes).astype(np.float64)
        squares = float((self.mismatch(logs, noise) ** 2).sum()) / 2.0
        cost = squares + float(self.points.weights.sum()) * float(np.log(noise))
        final = self.noise(logs)
        return AllReduceForm(self.scheme, logs, covariance, self.unit_seconds, self.unit_batch, final, cost)


def _typical(values: FloatArray, weights: FloatArray) -> float:
    """The weighted geometric mean; 1 when there is nothing."""
    return float(np.exp(np.average(np.log(values), weights=weights))) if len(values) else 1.0
