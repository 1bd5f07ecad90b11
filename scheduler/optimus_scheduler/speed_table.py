"""The speeds of many jobs at once: a round asks for those of thousands of jobs, a few sizes of each.

The logarithm of what a speed model corrects its formula by is a sum of products, one factor of w and one of p
(`optimus_models.speed_residual`). The factors of every w and of every p that a job may have are worked out beforehand:
a speed then takes a few multiplications.
"""

from __future__ import annotations

from collections.abc import Sequence

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

    def __init__(self, speeds: Sequence[Speeds], most_workers: IntArray, most_servers: IntArray) -> None:
        """`most_workers`, `most_servers` (n,): the largest sizes that will be asked for."""
        self._speeds = speeds
        models = [each.model if isinstance(each.model, SpeedModel) else None for each in speeds]
        self._has_form = np.array([model is not None for model in models], dtype=bool)
        self._all_have_one = bool(self._has_form.all())
        self._coefficients = np.array([_coefficients(model) for model in models]).reshape(-1, 7).T.copy()  # (7, n)
        self._is_async = np.array([model is not None and model.mode == "async" for model in models], dtype=bool)
        log_workers, log_servers, weights = _measured(models)
        counts = np.maximum(most_workers, 1), np.maximum(most_servers, 1)
        self._first_w, job, logs = _every(counts[0])
        nearby, same = along_workers(logs[:, None] - log_workers[job])
        self._by_workers = np.concatenate([nearby, same], axis=1)  # (rows, 2 measurements)
        self._first_p, job, logs = _every(counts[1])
        nearby, same = along_servers(logs[:, None] - log_servers[job])
        self._by_servers = np.concatenate([nearby * weights[job], same * weights[job]], axis=1)

    def at(self, jobs: IntArray, workers: IntArray, servers: IntArray) -> FloatArray:
        """(n,) steps per second of job number `jobs[i]` with so many workers, at least 1, and servers."""
        servers = np.maximum(servers, 1)
        by_workers = self._by_workers[self._first_w[jobs] + workers - 1]
        residual = np.einsum("ij,ij->i", by_workers, self._by_servers[self._first_p[jobs] + servers - 1])
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
    """(n, m) log w and log p of what each job has measured, and its weight in the residual; padded with weight 0."""
    residuals = [model.residual if model is not None else None for model in models]
    most = max((len(each.weights) for each in residuals if each is not None), default=0)
    log_workers, log_servers, weights = (np.zeros((len(models), most)) for _ in range(3))
    for row, each in enumerate(residuals):
        if each is not None:
            n = len(each.weights)
            log_workers[row, :n], log_servers[row, :n], weights[row, :n] = each.workers, each.servers, each.weights
    inside = weights != 0.0
    np.log(log_workers, where=inside, out=log_workers)
    np.log(log_servers, where=inside, out=log_servers)
    return log_workers, log_servers, weights


def _every(most: IntArray) -> tuple[IntArray, IntArray, FloatArray]:
    """The numbers 1 to `most` of every job below each other: where each job's begin, the job and log of each."""
    first = np.concatenate([[0], np.cumsum(most)[:-1]]).astype(np.int64)
    job = np.repeat(np.arange(len(most)), most)
    return first, job, np.log(np.arange(len(job)) - first[job] + 1.0)
