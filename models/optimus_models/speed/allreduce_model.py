"""The speed of one all-reduce job as a function of nodes, workers and batch per worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from optimus_models.history import FloatArray
from optimus_models.speed.allreduce_form import NOISE, SCHEMES, AllReduceForm, SyncScheme, fit_form
from optimus_models.speed.allreduce_points import AllReducePoints

_DEVIATION, _DEVIATION_REACH = 0.15, 0.6
"""Size of what the form leaves unexplained and sizes share that are within about this distance in the logarithms of
nodes, workers and batch; measured, see docs/models.md."""
_MEASUREMENT_NOISE, _NOISE_SHARE = 0.05, 0.6
"""Relative error of one measured step time by itself: this, or if it is more, this share of the form's error (a noisy
network deviates from the form at random as well)."""
_WIDEST = 3.0
"""Intervals are not wider than e to this many sigmas: beyond it they only say `unknown`."""


class _Deviation(NamedTuple):
    """A Gaussian process of log(measured / fitted step time) after n measurements."""

    at: FloatArray
    """(n, 3) logarithms of the measured sizes."""
    inverse: FloatArray
    """(n, n) of the measurements' covariance."""
    noise: float
    """Relative error of one measurement by itself."""
    weights: FloatArray
    """(n,) `inverse` times the measured deviations."""

    @classmethod
    def fit(cls, points: AllReducePoints, form: AllReduceForm) -> _Deviation:
        at = np.log(points.sizes)
        noise = max(_MEASUREMENT_NOISE, _NOISE_SHARE * form.noise)
        covariance = _kernel(at, at) + np.diag(noise**2 / points.weights)
        inverse = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
        deviations = np.log(points.seconds) - form.log_seconds(points.sizes)
        return cls(at, inverse, noise, inverse @ np.clip(deviations, -1.0, 1.0))

    def mean(self, sizes: FloatArray) -> FloatArray:
        return np.asarray(_kernel(np.log(sizes), self.at) @ self.weights)

    def variance(self, sizes: FloatArray) -> FloatArray:
        cross = _kernel(np.log(sizes), self.at)
        return np.asarray(_DEVIATION**2 - np.einsum("ni,ij,nj->n", cross, self.inverse, cross))


def _kernel(a: FloatArray, b: FloatArray) -> FloatArray:
    """(n, m) prior covariance of the deviations at `a` (n, 3) and `b` (m, 3)."""
    apart = ((a[:, None] - b[None]) ** 2).sum(axis=2)
    return np.asarray(_DEVIATION**2 * np.exp(-apart / (2.0 * _DEVIATION_REACH**2)))


@dataclass(frozen=True, slots=True, eq=False)
class AllReduceModel:
    """A fitted form of the step time (see `allreduce_form`), corrected by what it leaves unexplained nearby.

    With one measurement a prior says how the step time splits into its terms; with none, speeds are relative and
    `confidence` is 0.
    """

    coefficients: Mapping[str, float]
    """alpha, beta (per example), lambda_ and sigma_ intra and inter (per round, per gradient), in seconds; gamma."""
    scheme: SyncScheme
    """The exchange that explains the measurements best."""
    n_points: int
    """Distinct sizes with at least one usable measurement."""
    confidence: float
    """0 (no measurement) to 1."""
    error: float
    """Relative error of one measurement round the formula alone."""
    form: AllReduceForm = field(repr=False)
    deviation: _Deviation | None = field(repr=False)
    """None with `form="pollux"`, which has no correction."""

    @classmethod
    def fit(
        cls,
        nodes: ArrayLike,
        workers: ArrayLike,
        local_batches: ArrayLike,
        step_seconds: ArrayLike,
        sync_seconds: ArrayLike | None = None,
        *,
        scheme: SyncScheme | Literal["auto"] = "auto",
        form: Literal["auto", "pollux"] = "auto",
    ) -> AllReduceModel:
        """Fit to parallel arrays of measurements. Never raises on data.

        `local_batches` are examples per worker and step. `sync_seconds`, where measured (NaN elsewhere), are the part
        of the step in which workers waited for the exchange. What is not finite and above 0 is ignored.
        `form="pollux"` is that paper's linear exchange, without correction.
        """
        points = AllReducePoints.of(nodes, workers, local_batches, step_seconds, sync_seconds)
        plain = form == "pollux"
        schemes: tuple[SyncScheme, ...] = ("linear",) if plain else SCHEMES if scheme == "auto" else (scheme,)
        fitted = min((fit_form(points, name) for name in schemes), key=lambda candidate: round(candidate.cost, 6))
        return cls(
            coefficients=MappingProxyType(fitted.coefficients()),
            scheme=fitted.scheme,
            n_points=len(points),
            confidence=_confidence(len(points), fitted.noise),
            error=fitted.noise,
            form=fitted,
            deviation=None if plain or not len(points) else _Deviation.fit(points, fitted),
        )

    def predict(
        self, nodes: ArrayLike, workers: ArrayLike, local_batches: ArrayLike, *, compression: float = 1.0
    ) -> FloatArray:
        """Steps per second at each size, above 0.

        Strong scaling: `local_batches` = global batch / workers; weak scaling: constant. `compression` is sent bytes
        over the bytes that were sent when it was measured (float32 gradients then sent as bfloat16: 0.5).
        """
        return np.exp(-self._log_seconds(_sizes(nodes, workers, local_batches), compression))

    def predict_interval(
        self,
        nodes: ArrayLike,
        workers: ArrayLike,
        local_batches: ArrayLike,
        coverage: float = 0.8,
        *,
        compression: float = 1.0,
    ) -> tuple[FloatArray, FloatArray]:
        """Bounds (low, high) that hold a measured speed at each size with probability `coverage`."""
        sizes = _sizes(nodes, workers, local_batches)
        variance = self.form.variance(sizes, compression)
        if self.deviation is None:
            variance = variance + self.error**2
        else:
            variance = variance + np.maximum(self.deviation.variance(sizes), 0.0) + self.deviation.noise**2
        sigma = np.minimum(np.sqrt(np.maximum(variance, 0.0)), _WIDEST)
        factor = np.exp(NormalDist().inv_cdf(0.5 + coverage / 2.0) * sigma)
        mean = self.predict(nodes, workers, local_batches, compression=compression)
        return mean / factor, mean * factor

    def sync_seconds(
        self, nodes: ArrayLike, workers: ArrayLike, local_batches: ArrayLike, *, compression: float = 1.0
    ) -> FloatArray:
        """The visible part of the exchange at each size, in seconds: what the step takes beyond its gradient."""
        sizes = _sizes(nodes, workers, local_batches)
        visible = np.exp(self.form.log_seconds(sizes, compression)) - self.form.gradient_seconds(sizes)
        return np.asarray(np.maximum(visible, 0.0))

    def _log_seconds(self, sizes: FloatArray, compression: float) -> FloatArray:
        logs = self.form.log_seconds(sizes, compression)
        return logs if self.deviation is None else logs + self.deviation.mean(sizes)


def _sizes(nodes: ArrayLike, workers: ArrayLike, local_batches: ArrayLike) -> FloatArray:
    """(n, 3): nodes (at most one per worker), workers >= 1, batch per worker."""
    n, w, m = np.broadcast_arrays(*(np.asarray(values, dtype=np.float64) for values in (nodes, workers, local_batches)))
    w = np.maximum(w.reshape(-1), 1.0)
    return np.column_stack([np.clip(n.reshape(-1), 1.0, w), w, np.maximum(m.reshape(-1), 1e-9)])


def _confidence(n_points: int, noise: float) -> float:
    """A quarter with one size, half with three, three quarters with nine; less where no form describes the job."""
    return n_points / (n_points + 3.0) * float(np.exp(-4.0 * max(noise - NOISE, 0.0)))
