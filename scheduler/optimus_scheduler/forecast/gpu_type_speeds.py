"""How fast each job is on each GPU type, relative to the others: measured where it was, predicted where it was not.

What jobs did with different numbers of workers is first brought to one worker by an assumed scaling, so that only the
type is left to explain. See `optimus_models.gpu_types` for the regression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from optimus_models.gpu_types import MAX_POINTS, GpuTypeModel, JobFeatures, TypeSpeed
from optimus_scheduler.model import EndedJob, Job, SpeedSample
from optimus_scheduler.settings import Settings

MAX_ENDED = 200
"""Measurements of ended jobs that are looked at, the newest: half of what the regression keeps."""


_STEP = 0.05
"""Logarithm by which speeds of ended jobs are scaled, or a multiple of it: half of it is the noise of one speed."""


class RelativeSpeeds:
    """Speeds on one worker by GPU type, asked for one job after the other."""

    def __init__(self, model: GpuTypeModel, measured: frozenset[str], gpu_types: Sequence[str]) -> None:
        """`measured`: names of the jobs that the model knows; `gpu_types`: those that are likely to be asked for."""
        self._model, self._measured, self._gpu_types = model, measured, list(gpu_types)
        self._known: dict[tuple[str, str, float], dict[str, float]] = {}
        self._ended: dict[tuple[int, str], tuple[EndedJob, ...]] = {}
        """By the identity of the samples of the jobs of one round, and the type."""

    def of(self, job: Job) -> Callable[[str], float]:
        """Steps per second of the job on a type, above 0; only the ratio between types means something."""
        return self._of(_features(job))

    def samples_on(self, job: Job, gpu_type: str) -> tuple[SpeedSample, ...]:
        """What the job measured, as it would be on that type."""
        return _on(job.speed_samples, gpu_type, self._factors(job.speed_samples, self.of(job), gpu_type))

    def similar_on(self, job: Job, gpu_type: str) -> tuple[EndedJob, ...]:
        """What ended jobs like it measured, as it would be on that type."""
        if (key := (id(job.similar), gpu_type)) not in self._ended:
            ended = tuple([self._ended_on(one, gpu_type) for one in job.similar])
            is_same = all(a is b for a, b in zip(ended, job.similar, strict=True))
            self._ended[key] = job.similar if is_same else ended
        return self._ended[key]

    def _ended_on(self, one: EndedJob, gpu_type: str) -> EndedJob:
        exact = self._factors(one.speed_samples, self._of(_features_of_ended(one)), gpu_type)
        if not exact:
            return one
        # In steps, so that what is fitted to them changes only when it matters; the id says what was done to them.
        steps = {kind: round(np.log(factor) / _STEP) for kind, factor in exact.items()}
        factors = tuple([(kind, float(np.exp(_STEP * count))) for kind, count in sorted(steps.items())])
        samples = _remembered_on(one.speed_samples, gpu_type, factors)
        return replace(one, id=f"{one.id} on {gpu_type} by {sorted(steps.items())}", speed_samples=samples)

    def _factors(self, samples: Sequence[SpeedSample], of: Callable[[str], float], gpu_type: str) -> dict[str, float]:
        """How many times as fast the job is on that type as on each other one that it was measured on."""
        others = {sample.gpu_type for sample in samples} - {None, gpu_type}
        return {kind: of(gpu_type) / of(kind) for kind in others if kind is not None}

    def _of(self, features: JobFeatures) -> Callable[[str], float]:
        # Jobs that were never measured differ by nothing but their family and batch.
        name = features.name if features.name in self._measured else ""
        known = self._known.setdefault((name, features.family, features.batch_size), {})

        def speed(gpu_type: str) -> float:
            if gpu_type not in known:
                asked = list(dict.fromkeys([*self._gpu_types, gpu_type]))
                known.update(zip(asked, self._model.predict(features, asked).tolist(), strict=True))
            return known[gpu_type]

        return speed


def relative_speeds(jobs: Sequence[Job], settings: Settings) -> RelativeSpeeds:
    """Fitted to what these jobs, and ended ones like them, measured. Independent of the order of `jobs`."""
    ordered = sorted(jobs, key=lambda job: job.id)
    ended = {one.id: one for job in ordered for one in job.similar}
    rows = list(_rows_of_ended(ended, settings))[-MAX_ENDED:]
    for job in ordered:
        rows += _rows(_features(job), job.speed_samples, settings)
    rows = rows[-MAX_POINTS:]
    types = sorted({row.gpu_type for row in rows} | {kind for job in ordered for kind in job.spec.gpu_types})
    return RelativeSpeeds(GpuTypeModel.fit(rows), frozenset(row.job.name for row in rows), types)


def _rows_of_ended(ended: Mapping[str, EndedJob], settings: Settings) -> Iterator[TypeSpeed]:
    for one in ended.values():
        yield from _rows(_features_of_ended(one), one.speed_samples, settings)


def _rows(features: JobFeatures, samples: Iterable[SpeedSample], settings: Settings) -> Iterator[TypeSpeed]:
    """One row for each type that the job was measured on: the geometric mean, brought to one worker."""
    logs: dict[str, list[float]] = {}
    for sample in samples:
        if sample.gpu_type is not None and sample.steps_per_second > 0:
            speed = sample.steps_per_second * (sample.batch or 1)  # of a batch that varies: examples per second
            alone = np.log(speed) - settings.gpu_scaling * np.log(max(sample.workers, 1))
            logs.setdefault(sample.gpu_type, []).append(float(alone))
    for gpu_type in sorted(logs):
        yield TypeSpeed(features, gpu_type, float(np.exp(np.mean(logs[gpu_type]))))


def _features(job: Job) -> JobFeatures:
    return JobFeatures(job.id, job.spec.family, float(job.spec.global_batch_size or 1))


def _features_of_ended(job: EndedJob) -> JobFeatures:
    return JobFeatures(job.id, job.task, float(job.global_batch_size or 1))


@lru_cache(maxsize=4096)
def _remembered_on(
    samples: tuple[SpeedSample, ...], gpu_type: str, factors: tuple[tuple[str, float], ...]
) -> tuple[SpeedSample, ...]:
    return _on(samples, gpu_type, dict(factors))


def _on(samples: tuple[SpeedSample, ...], gpu_type: str, factors: Mapping[str, float]) -> tuple[SpeedSample, ...]:
    """The samples with speeds of other types times `factors`; all are of that type then."""
    if not factors:
        return samples
    return tuple([replace(_faster(one, factors.get(one.gpu_type or "", 1.0)), gpu_type=gpu_type) for one in samples])


def _faster(sample: SpeedSample, factor: float) -> SpeedSample:
    """Everything in a step so many times as fast."""
    exchange = None if sample.exchange_seconds is None else sample.exchange_seconds / factor
    return replace(sample, steps_per_second=sample.steps_per_second * factor, exchange_seconds=exchange)
