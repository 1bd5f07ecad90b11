"""The speeds of many jobs at once: a round asks for those of thousands of jobs, a few sizes of each.

The logarithm of what a speed model corrects its formula by is a sum of products, one factor of w and one of p
(`optimus_models.speed_residual`). Few different w and p have been measured: the factors of every w and p beside each of
them are worked out beforehand, and a speed then takes a few multiplications.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from optimus_models.speed_model import SpeedModel
from optimus_models.speed_residual import along_servers, along_workers
from optimus_scheduler.speeds import Speeds
from optimus_scheduler.types import Allocation

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class SpeedTable:
    """Predicts what `Speeds.at` predicts, up to rounding, for arrays of jobs and sizes."""

    def __init__(self, speeds: Sequence[Speeds], most: IntArray) -> None:
        """`most` (n, 2): the largest sizes that will be asked for."""
        self._speeds = speeds
        models = [each.model if isinstance(each.model, SpeedModel) else None for each in speeds]
        self._has_form = np.array([model is not None for model in models], dtype=bool)
        self._all_have_one = bool(self._has_form.all())
        self._coefficients = np.array([_coefficients(model) for model in models]).reshape(-1, 7).T.copy()  # (7, n)
        self._is_async = np.array([model is not None and model.mode == "async" for model in models], dtype=bool)
        measured_workers, measured_servers, self._weights = _measured(models)
        largest = np.maximum(most, 1).max(axis=0, initial=1).tolist()
        self._by_workers = _Factors(along_workers, measured_workers, largest[0])
        self._by_servers = _Factors(along_servers, measured_servers, largest[1])

    def at(self, jobs: IntArray, workers: IntArray, servers: IntArray) -> FloatArray:
        """(n,) steps per second of job number `jobs[i]` with so many workers, at least 1, and servers."""
        servers = np.maximum(servers, 1)
        nearby_w, same_w = self._by_workers.of(jobs, workers)
        nearby_p, same_p = self._by_servers.of(jobs, servers)
        residual = ((nearby_w * nearby_p + same_w * same_p) * self._weights[jobs]).sum(axis=1)
        w, p = workers.astype(np.float64), servers.astype(np.float64)
        seconds = self._form_seconds(jobs, w, p) * np.exp(residual)
        speeds: FloatArray = np.asarray(np.where(self._is_async[jobs], w, 1.0) / seconds)
        if not self._all_have_one:
            for other in np.flatnonzero(~self._has_form[jobs]).tolist():
                size = Allocation(int(workers[other]), int(servers[other]))
                speeds[other] = self._speeds[int(jobs[other])].at(size)
        return speeds

    def _form_seconds(self, jobs: IntArray, w: FloatArray, p: FloatArray) -> FloatArray:
        """See `optimus_models.speed_terms`; a form that lacks a term has 0 there."""
        computing, fixed, shared, flat, workers, servers, updating = self._coefficients[:, jobs]
        ratio = w / p
        seconds = computing / w + fixed + shared * ratio + flat * np.maximum(ratio, 1.0)
        seconds += workers * w + servers * p + updating / p
        return np.asarray(np.maximum(seconds, 1e-12))


class _Factors:
    """The factors that the number of workers, or of servers, has in both terms of the residual."""

    def __init__(
        self, factors: Callable[[FloatArray], tuple[FloatArray, FloatArray]], measured: FloatArray, largest: int
    ) -> None:
        """`measured` (n, m) counts, at least 1."""
        different, place = np.unique(measured, return_inverse=True)
        self._width = len(different)
        self._place = place.reshape(measured.shape)
        counts = np.arange(1.0, largest + 1.0)
        self._nearby, self._same = (each.reshape(-1) for each in factors(np.log(counts)[:, None] - np.log(different)))

    def of(self, jobs: IntArray, counts: IntArray) -> tuple[FloatArray, FloatArray]:
        """(k, m) beside each measured size of the jobs."""
        place = self._place[jobs] + ((counts - 1) * self._width)[:, None]
        return self._nearby[place], self._same[place]


def _coefficients(model: SpeedModel | None) -> list[float]:
    """Of 1/w, 1, w/p, max(w/p, 1), w, p, 1/p."""
    if model is None:
        return [0.0] * 7
    form, theta = model.form, model.form.coefficients.tolist()
    computing = theta.pop(0) * form.batch if form.mode == "sync" else 0.0
    fixed, sending, workers, servers = theta[:4]
    shared, flat = (0.0, sending) if form.terms == "flat" else (sending, 0.0)
    return [computing, fixed, shared, flat, workers, servers, theta[4] if form.terms != "paper" else 0.0]


def _measured(models: Sequence[SpeedModel | None]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(n, m) w and p of what each job has measured, and its weight in the residual; padded with 1, 1 and weight 0."""
    residuals = [model.residual if model is not None else None for model in models]
    most = max((len(each.weights) for each in residuals if each is not None), default=0)
    workers, servers = (np.ones((len(models), most)) for _ in range(2))
    weights = np.zeros((len(models), most))
    for row, each in enumerate(residuals):
        if each is not None:
            n = len(each.weights)
            workers[row, :n], servers[row, :n], weights[row, :n] = each.workers, each.servers, each.weights
    return workers, servers, weights
