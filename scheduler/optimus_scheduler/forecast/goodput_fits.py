"""Models of a job with an elastic batch: its step times by workers and batch, the noise of its gradients, its goodput.

| what is missing | rule |
|---|---|
| speeds | those of ended jobs of the same task; else the prior of `optimus_models.speed.batch` |
| its noise scale | that of ended jobs of the same task at the same step; else none: it trains with its smallest batch |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimus_models.speed.batch import BatchSamples, BatchSpeed
from optimus_models.speed.goodput import ElasticBatch, Goodput, NoiseScale, StepTimes, cut
from optimus_scheduler.model import EndedJob, Job, SpeedSample
from optimus_scheduler.settings import Settings

_READINGS = 8
"""Noise scales of the job itself that are looked at, the newest."""


class ElasticData(NamedTuple):
    """What goodput depends on beside speeds."""

    limits: ElasticBatch
    fixed: int | None
    """The one batch that it has if batches are not to be chosen."""
    noise_steps: tuple[float, ...] = ()
    noise_scales: tuple[float, ...] = ()

    @classmethod
    def of(cls, job: Job, settings: Settings) -> ElasticData | None:
        """None for a job with a fixed batch."""
        limits = job.spec.elastic_batch
        if limits is None:
            return None
        fixed = None if settings.scale_batches else job.spec.global_batch_size
        return cls(limits, fixed, job.noise_steps[-_READINGS:], job.noise_scales[-_READINGS:])

    def without_noise(self) -> ElasticData:
        return self._replace(noise_steps=(), noise_scales=())


def is_elastic(ended: EndedJob) -> bool:
    """Whether its speeds were measured with batches that it was given."""
    return any(sample.batch is not None for sample in ended.speed_samples)


def fit_step_times(
    samples: Sequence[SpeedSample],
    similar: Sequence[EndedJob],
    limits: ElasticBatch,
    arguments: NDArray[np.float64] | None = None,
) -> StepTimes:
    """Step times from what the job and ended ones of its task measured. `arguments`: see `BatchSpeed.fit`."""
    others = [_samples(ended.speed_samples, limits) for ended in similar]
    return StepTimes(BatchSpeed.fit(_samples(samples, limits), limits.per_pass, others, arguments), limits)


def fit_goodput(times: StepTimes, elastic: ElasticData, similar: Sequence[EndedJob], trust: float) -> Goodput:
    """`trust`: what is left of the confidence in the step times."""
    others = [(ended.noise_steps, ended.noise_scales) for ended in similar]
    noise = NoiseScale.fit(elastic.noise_steps, elastic.noise_scales, others)
    return Goodput(times, noise, times.speed.confidence * trust, elastic.fixed)


def _samples(samples: Sequence[SpeedSample], limits: ElasticBatch) -> BatchSamples:
    """The samples with a batch and an exchange time."""
    usable = [one for one in samples if one.batch is not None and one.exchange_seconds is not None]
    workers = np.array([one.workers for one in usable], dtype=np.float64)
    passes, local = cut(limits, workers, np.array([one.batch for one in usable], dtype=np.float64))
    speeds = np.array([one.steps_per_second for one in usable], dtype=np.float64)
    exchange = np.array([one.exchange_seconds for one in usable], dtype=np.float64)
    return BatchSamples(workers, local, passes, 1.0 / np.where(speeds > 0, speeds, np.nan), exchange)
