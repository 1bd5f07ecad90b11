"""The speed of a job on a type of GPU that it never ran on, from the types it did run on and from other jobs.

The logarithm of the speed of job j on type t is a Gaussian process,

    log f(j, t) = level(j) + peak(t) + own(t) + family(j, t) + size(j, t) + alone(j, t)

level(j): anything at all, the same on every type; peak(t): the data sheet's arithmetic speed, where it is known;
own(t): how the type deviates from its data sheet; family(j, t): how jobs of one family (one network) deviate there,
which they share; size(j, t): the same for similar batch sizes and numbers of workers within the family (small batches
leave a fast GPU idle); alone(j, t): what this job does not share with anybody. A matrix of jobs by types is completed
with the jobs' similarity known, as far as somebody knows it.

References: Rasmussen and Williams, Gaussian Processes for Machine Learning, MIT Press 2006, section 2.7; the task is
the one of Narayanan et al., "Gavel", OSDI 2020, section 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimus_models.analytic.step_time import DEVICES
from optimus_models.history import FloatArray

MAX_POINTS = 400
"""Measurements kept for one fit, the newest: it takes their number to the third power."""
_LEVEL = 3.0
_OWN = 0.8
"""Sizes of the terms above, one sigma in the logarithm. Those of the families were measured; see docs/models.md."""
_FAMILY = 0.5
_SIZE, _BATCH_REACH, _WORKERS_REACH = 0.45, 1.0, 1.5
"""... and how far apart batch sizes and workers may be, in logarithms, and still be similar."""
_ALONE = 0.1
_SCALE_EVIDENCE = 6.0
"""How many measurements' worth of belief stand behind the sizes above."""
_PEAKS = {name.lower(): float(np.log(device.flops_per_second / 1e12)) for name, device in DEVICES.items()}


class JobFeatures(NamedTuple):
    """What tells jobs apart and makes them similar."""

    name: str
    """The same job on several types has the same name."""
    family: str = ""
    """The network or the kind of task; empty: like no other."""
    batch_size: float = 1.0
    """Examples per worker."""
    workers: float = 1.0


class TypeSpeed(NamedTuple):
    """One measurement."""

    job: JobFeatures
    gpu_type: str
    steps_per_second: float


@dataclass(frozen=True, slots=True, eq=False)
class GpuTypeModel:
    """Measured speeds by job and GPU type, and what they say about the pairs that were not measured."""

    n_points: int
    """Usable measurements that the fit rests on."""
    confidence: float
    """0 (no measurement) to 1."""
    scale: float
    """How large the deviations are, compared with what was believed before."""
    _at: _Places = field(repr=False)
    """The measured pairs."""
    _mean: float = field(repr=False)
    """Of all jobs' levels."""
    _inverse: FloatArray = field(repr=False)
    """(n, n) of the covariance of the measurements."""
    _weights: FloatArray = field(repr=False)
    """(n,) `_inverse` times the measured deviations from mean and peak."""

    @classmethod
    def fit(cls, measured: Iterable[TypeSpeed]) -> GpuTypeModel:
        """Fit to measurements in any order, the newest last. Never raises on data; unusable speeds are ignored."""
        usable = tuple(row for row in measured if 1e-100 < row.steps_per_second < 1e100)[-MAX_POINTS:]
        logs = np.log([row.steps_per_second for row in usable]) - _peaks([row.gpu_type for row in usable])
        mean = float(logs.mean()) if len(usable) else 0.0
        at = _Places.of((row.job, row.gpu_type) for row in usable)
        inverse = np.asarray(np.linalg.inv(at.covariance(at) + 1e-6 * np.eye(len(usable))), dtype=np.float64)
        weights = inverse @ (logs - mean)
        scale = float(np.sqrt((weights @ (logs - mean) + _SCALE_EVIDENCE) / (len(usable) + _SCALE_EVIDENCE)))
        n = len(usable)
        return cls(n, n / (n + 6.0), scale, at, mean, inverse, weights)

    def predict(self, job: JobFeatures, gpu_types: Sequence[str]) -> FloatArray:
        """Steps per second of `job` on each of `gpu_types`, above 0."""
        _, cross = self._places(job, gpu_types)
        return np.exp(self._log_mean(gpu_types, cross))

    def predict_interval(
        self, job: JobFeatures, gpu_types: Sequence[str], coverage: float = 0.8
    ) -> tuple[FloatArray, FloatArray]:
        """Bounds (low, high) that hold a measured speed on each of `gpu_types` with probability `coverage`."""
        from scipy.special import stdtrit  # takes as long as all else of this package

        at, cross = self._places(job, gpu_types)
        mean = self._log_mean(gpu_types, cross)
        explained = np.einsum("ni,ij,nj->n", cross, self._inverse, cross)
        variance = np.maximum(at.variance() - explained, 0.0)  # unscaled
        reach = float(stdtrit(self.n_points + _SCALE_EVIDENCE, 0.5 + coverage / 2.0)) * self.scale * np.sqrt(variance)
        # Beyond this a double has no numbers: who measured nonsense is told an interval that says nothing.
        return np.exp(mean - reach), np.exp(np.minimum(mean + reach, 700.0))

    def _places(self, job: JobFeatures, gpu_types: Sequence[str]) -> tuple[_Places, FloatArray]:
        """The pairs that are asked for, n, and (n, m) their covariance with the m measurements."""
        at = _Places.of((job, gpu_type) for gpu_type in gpu_types)
        return at, at.covariance(self._at)

    def _log_mean(self, gpu_types: Sequence[str], cross: FloatArray) -> FloatArray:
        """(n,)"""
        mean: FloatArray = self._mean + _peaks(gpu_types) + cross @ self._weights
        return np.clip(mean, -300.0, 300.0)


class _Places(NamedTuple):
    """Pairs of job and type as arrays (n,) to compare."""

    jobs: NDArray[np.object_]
    families: NDArray[np.object_]
    types: NDArray[np.object_]
    log_batches: FloatArray
    log_workers: FloatArray

    @classmethod
    def of(cls, pairs: Iterable[tuple[JobFeatures, str]]) -> _Places:
        rows = list(pairs)
        jobs = np.array([job.name for job, _ in rows], dtype=object)
        families = np.array([job.family or f"only {job.name}" for job, _ in rows], dtype=object)
        types = np.array([gpu_type.lower() for _, gpu_type in rows], dtype=object)
        sizes = np.array([(job.batch_size, job.workers) for job, _ in rows], dtype=np.float64).reshape(-1, 2)
        logs = np.log(np.clip(np.nan_to_num(sizes, nan=1.0), 1e-9, 1e12))
        return cls(jobs, families, types, logs[:, 0], logs[:, 1])

    def variance(self) -> FloatArray:
        return np.full(len(self.jobs), _LEVEL**2 + _OWN**2 + _FAMILY**2 + _SIZE**2 + _ALONE**2)

    def covariance(self, other: _Places) -> FloatArray:
        """(n, m) prior covariance."""
        same_job = np.equal.outer(self.jobs, other.jobs)
        same_family = np.equal.outer(self.families, other.families)
        same_type = np.equal.outer(self.types, other.types)
        batches = np.subtract.outer(self.log_batches, other.log_batches) / _BATCH_REACH
        workers = np.subtract.outer(self.log_workers, other.log_workers) / _WORKERS_REACH
        size = _SIZE**2 * np.exp(-(batches**2 + workers**2) / 2.0)
        deviation = _OWN**2 + same_family * (_FAMILY**2 + size) + same_job * _ALONE**2
        return np.asarray(_LEVEL**2 * same_job + same_type * deviation, dtype=np.float64)


def _peaks(gpu_types: Sequence[str]) -> FloatArray:
    """(n,) logarithm of the data sheet's speed; of a type without one, the mean of those known."""
    middle = float(np.mean(list(_PEAKS.values())))
    return np.array([_PEAKS.get(gpu_type.lower(), middle) for gpu_type in gpu_types], dtype=np.float64)
