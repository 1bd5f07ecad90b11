"""What a form of the step time leaves unexplained: a Gaussian process over (w, p).

Real clusters deviate from any short formula in a way that neighbouring sizes share, and that all sizes with the same
number of servers share: how evenly the parameters happen to fall on exactly p servers.

References: Rasmussen and Williams, Gaussian Processes for Machine Learning, MIT Press 2006, section 2.7.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from optimus_models.history import FloatArray
from optimus_models.speed.points import SpeedPoints

MEASUREMENT_NOISE = 0.03
"""Relative error of one measured speed by itself."""
_NEARBY, _NEARBY_REACH = 0.18, 0.36
"""Size of the deviation that sizes share which are within about this distance in log w and log p."""
_SAME_SERVERS, _SAME_SERVERS_REACH = 0.13, 2.2
"""Size of the deviation that sizes with the same p share, and its distance in log w."""


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

    def covariance(self, workers: FloatArray, servers: FloatArray) -> FloatArray:
        """(n, n) of the same."""
        cross = _kernel(workers, servers, self.workers, self.servers)
        covariance: FloatArray = _kernel(workers, servers, workers, servers) - cross @ self.inverse @ cross.T
        return covariance


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
