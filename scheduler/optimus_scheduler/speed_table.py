"""The speeds of many jobs at once: a round asks for those of thousands of jobs, a few sizes of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from optimus_models.speed_model import SpeedModel
from optimus_models.speed_residual import shared_deviation
from optimus_models.speed_terms import Mode, Terms, speed, step_terms
from optimus_scheduler.speeds import Speeds
from optimus_scheduler.types import Allocation

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class SpeedTable:
    """Predicts what `Speeds.at` predicts, up to rounding, for arrays of jobs and sizes."""

    def __init__(self, speeds: Sequence[Speeds]) -> None:
        self._speeds = speeds
        kinds: dict[tuple[Mode, Terms], list[int]] = {}
        for job, each in enumerate(speeds):
            if isinstance(each.model, SpeedModel):
                kinds.setdefault((each.model.form.mode, each.model.form.terms), []).append(job)
        self._forms = [_Form(*kind, [speeds[job].model for job in jobs]) for kind, jobs in kinds.items()]
        self._form = np.full(len(speeds), -1)
        self._row = np.zeros(len(speeds), dtype=np.int64)
        for number, jobs in enumerate(kinds.values()):
            self._form[jobs], self._row[jobs] = number, np.arange(len(jobs))

    def at(self, jobs: IntArray, workers: IntArray, servers: IntArray) -> FloatArray:
        """(n,) steps per second of job number `jobs[i]` with so many workers, at least 1, and servers."""
        found = np.empty(len(jobs))
        for number, form in enumerate(self._forms):
            here = (self._form[jobs] == number).nonzero()[0]
            if len(here):
                w, p = workers[here].astype(np.float64), np.maximum(servers[here], 1).astype(np.float64)
                found[here] = form.at(self._row[jobs[here]], w, p)
        for other in (self._form[jobs] < 0).nonzero()[0].tolist():
            size = Allocation(int(workers[other]), int(servers[other]))
            found[other] = self._speeds[int(jobs[other])].at(size)
        return found


class _Form:
    """The fitted models of one form of the step time, as arrays of a row each."""

    def __init__(self, mode: Mode, terms: Terms, models: Sequence[object]) -> None:
        fitted = [model for model in models if isinstance(model, SpeedModel)]
        self._mode, self._terms = mode, terms
        self._coefficients = np.array([model.form.coefficients for model in fitted])  # (m, t)
        if mode == "sync":
            self._coefficients[:, 0] *= [model.form.batch for model in fitted]  # of the batch by the workers
        measured = [model.residual for model in fitted]
        most = max((len(each.weights) for each in measured if each is not None), default=0)
        self._log_workers, self._log_servers, self._weights = (np.zeros((len(fitted), most)) for _ in range(3))
        for row, each in enumerate(measured):
            if each is not None:
                n = len(each.weights)
                self._log_workers[row, :n], self._log_servers[row, :n] = np.log(each.workers), np.log(each.servers)
                self._weights[row, :n] = each.weights

    def at(self, rows: IntArray, workers: FloatArray, servers: FloatArray) -> FloatArray:
        terms = step_terms(workers, servers, self._mode, self._terms, 1.0)  # (n, t)
        seconds = np.maximum((terms * self._coefficients[rows]).sum(axis=1), 1e-12)
        apart_w = np.log(workers)[:, None] - self._log_workers[rows]
        apart_p = np.log(servers)[:, None] - self._log_servers[rows]
        residual = (shared_deviation(apart_w, apart_p) * self._weights[rows]).sum(axis=1)
        return speed(workers, seconds * np.exp(residual), self._mode)
