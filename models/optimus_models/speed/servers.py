"""The resource-speed model of one job: steps per second as a function of workers and parameter servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from optimus_models.history import FloatArray
from optimus_models.speed import half_width
from optimus_models.speed.form import (
    MEASUREMENT_NOISE,
    NOISE,
    Mode,
    SpeedForm,
    SpeedResidual,
    fit_plain,
    fit_with_prior,
    speed,
    step_seconds,
)
from optimus_models.speed.measurements import SpeedPoints

_RESIDUAL_SHARE = 0.2
"""Share of the residual process's variance (and of the measurement noise) that intervals use. The process is wider than
what sizes really deviate by; measured."""
_FEW_SIZES = 0.3
"""Intervals are wider by this part of one over the number of measured sizes: with one, all depends on the prior, whose
errors are not normal. Between what a testbed of five jobs asks for (0.5) and eight on other systems (0).
"""
_WIDEST = 3.0
"""Intervals are not wider than e to this many sigmas: beyond it they only say `unknown`."""


@dataclass(frozen=True, slots=True, eq=False)
class SpeedModel:
    """A fitted form of the step time (see `form`), corrected by what it leaves unexplained nearby.

    Even one measurement, or many at the same (w, p), gives a usable model: a weak prior says how the step time splits
    into its terms, and measurements override it as they come. With none, speeds are relative (1 step/s at 1 + 1) and
    `confidence` is 0.
    """

    coefficients: Mapping[str, float]
    """theta0, theta1, ... in the order of the equations; seconds (theta0 of Eq. 4: seconds per example)."""
    n_points: int
    """Distinct (w, p) with at least one usable measurement."""
    confidence: float
    """0 (no measurement) to 1."""
    error: float
    """Relative error of one measurement round the formula alone."""
    form: SpeedForm = field(repr=False)
    residual: SpeedResidual | None = field(repr=False)
    """None: there is no correction."""

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
    ) -> Self:
        """Fit to parallel arrays of measurements, `speeds` in steps per second. Never raises on data.

        Measurements that are not finite and above 0 are ignored. `weights` (default all 1) may fade old ones. Where the
        whole job has become slower or faster since, `present_speeds` corrects them before.
        """
        points = SpeedPoints.of(workers, servers, speeds, weights)
        batch = float(global_batch_size) if global_batch_size and 0 < global_batch_size < np.inf else 1.0
        fitted, residual = cls._fit(points, mode, batch)
        return cls(
            coefficients=MappingProxyType({f"theta{i}": float(theta) for i, theta in enumerate(fitted.coefficients)}),
            n_points=len(points),
            confidence=_confidence(len(points), fitted.noise),
            error=fitted.noise,
            form=fitted,
            residual=residual,
        )

    @staticmethod
    def _fit(points: SpeedPoints, mode: Mode, batch: float) -> tuple[SpeedForm, SpeedResidual | None]:
        """The form, and the correction of it near the measurements."""
        form = fit_with_prior(points, mode, batch)
        measured = step_seconds(points.workers, points.speeds, mode)
        return form, SpeedResidual.fit(points, np.log(measured / form.seconds(points.workers, points.servers)))

    @property
    def mode(self) -> Mode:
        return self.form.mode

    def predict(self, workers: ArrayLike, servers: ArrayLike) -> FloatArray:
        """Steps per second of the whole job at each (w, p), w and p >= 1; above 0."""
        w, p = _pairs(workers, servers)
        seconds = self.form.seconds(w, p)
        if self.residual is not None:
            seconds = seconds * np.exp(self.residual.mean(w, p))
        return speed(w, seconds, self.mode)

    def predict_interval(
        self, workers: ArrayLike, servers: ArrayLike, coverage: float = 0.8
    ) -> tuple[FloatArray, FloatArray]:
        """Bounds (low, high) that hold a measured speed at each (w, p) with probability `coverage`."""
        _, low, high = self.predict_with_interval(workers, servers, coverage)
        return low, high

    def predict_with_interval(
        self, workers: ArrayLike, servers: ArrayLike, coverage: float = 0.8
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The mean with these bounds: see `SpeedLaw`."""
        w, p = _pairs(workers, servers)
        seconds, of_form = self.form.seconds_with_covariance(w, p)
        variance = of_form.diagonal()
        if self.residual is None:
            variance = variance + self.error**2
        else:
            log, of_residual = self.residual.mean_with_variance(w, p)
            seconds = seconds * np.exp(log)
            variance = variance + _RESIDUAL_SHARE * (of_residual + MEASUREMENT_NOISE**2)
        sigma = np.sqrt(np.maximum(variance, 0.0)) * (1.0 + _FEW_SIZES / max(self.n_points, 1))
        factor = np.exp(half_width(coverage) * np.minimum(sigma, _WIDEST))
        mean = speed(w, seconds, self.mode)
        return mean, mean / factor, mean * factor


@dataclass(frozen=True, slots=True, eq=False)
class PaperSpeedModel(SpeedModel):
    """The paper's equation, fitted by non-negative least squares on relative errors: no prior, no correction.

    Without any measurement it is the prior of `SpeedModel`.
    """

    @staticmethod
    def _fit(points: SpeedPoints, mode: Mode, batch: float) -> tuple[SpeedForm, SpeedResidual | None]:
        if not len(points):
            return SpeedModel._fit(points, mode, batch)
        return fit_plain(points, mode, batch), None


def _pairs(workers: ArrayLike, servers: ArrayLike) -> tuple[FloatArray, FloatArray]:
    w, p = np.asarray(workers, dtype=np.float64), np.asarray(servers, dtype=np.float64)
    if w.shape != p.shape:  # which takes as long as a prediction
        w, p = np.broadcast_arrays(w, p)
    return np.maximum(w.reshape(-1), 1.0), np.maximum(p.reshape(-1), 1.0)


def _confidence(n_points: int, noise: float) -> float:
    """A third with one point, half with two, three quarters with six; less where no form describes the job."""
    return n_points / (n_points + 2.0) * float(np.exp(-4.0 * max(noise - NOISE, 0.0)))
