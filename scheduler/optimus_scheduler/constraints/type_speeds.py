"""How fast each job is on each GPU type, relative to the others: measured where it was, predicted where it was not.

What jobs did with different numbers of workers is first brought to one worker by an assumed scaling, so that only the
type is left to explain. See `optimus_models.gpu_types` for the regression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from optimus_models.gpu_types import MAX_POINTS, GpuTypeModel, KindOfJob, TypeSpeed
from optimus_scheduler.settings import Settings
from optimus_scheduler.types import EndedJob, Job, SpeedSample

MAX_ENDED = 200
"""Measurements of ended jobs that are looked at, the newest: half of what the regression keeps."""


class RelativeSpeeds:
    """Speeds on one worker by GPU type, asked for one job after the other."""

    def __init__(self, model: GpuTypeModel, measured: frozenset[str], gpu_types: Sequence[str]) -> None:
        """`measured`: names of the jobs that the model knows; `gpu_types`: those that are likely to be asked for."""
        self._model, self._measured, self._gpu_types = model, measured, list(gpu_types)
        self._known: dict[tuple[str, str, float], dict[str, float]] = {}

    def of(self, job: Job) -> Callable[[str], float]:
        """Steps per second of the job on a type, above 0; only the ratio between types means something."""
        kind = _kind(job)
        # Jobs that were never measured differ by nothing but their family and batch.
        name = kind.name if kind.name in self._measured else ""
        known = self._known.setdefault((name, kind.family, kind.batch_size), {})

        def speed(gpu_type: str) -> float:
            if gpu_type not in known:
                asked = list(dict.fromkeys([*self._gpu_types, gpu_type]))
                known.update(zip(asked, self._model.predict(kind, asked).tolist(), strict=True))
            return known[gpu_type]

        return speed


def relative_speeds(jobs: Sequence[Job], settings: Settings) -> RelativeSpeeds:
    """Fitted to what these jobs, and ended ones like them, measured. Independent of the order of `jobs`."""
    ordered = sorted(jobs, key=lambda job: job.id)
    ended = {one.id: one for job in ordered for one in job.similar}
    rows = list(_rows_of_ended(ended, settings))[-MAX_ENDED:]
    for job in ordered:
        rows += _rows(_kind(job), job.speed_samples, settings)
    rows = rows[-MAX_POINTS:]
    types = sorted({row.gpu_type for row in rows} | {kind for job in ordered for kind in job.spec.gpu_types})
    return RelativeSpeeds(GpuTypeModel.fit(rows), frozenset(row.job.name for row in rows), types)


def _rows_of_ended(ended: Mapping[str, EndedJob], settings: Settings) -> Iterator[TypeSpeed]:
    for one in ended.values():
        kind = KindOfJob(one.id, one.task, float(one.global_batch_size or 1))
        yield from _rows(kind, one.speed_samples, settings)


def _rows(kind: KindOfJob, samples: Iterable[SpeedSample], settings: Settings) -> Iterator[TypeSpeed]:
    """One row for each type that the job was measured on: the geometric mean, brought to one worker."""
    logs: dict[str, list[float]] = {}
    for sample in samples:
        if sample.gpu_type is not None and sample.steps_per_second > 0:
            speed = sample.steps_per_second * (sample.batch or 1)  # of a batch that varies: examples per second
            alone = np.log(speed) - settings.gpu_scaling * np.log(max(sample.workers, 1))
            logs.setdefault(sample.gpu_type, []).append(float(alone))
    for gpu_type in sorted(logs):
        yield TypeSpeed(kind, gpu_type, float(np.exp(np.mean(logs[gpu_type]))))


def _kind(job: Job) -> KindOfJob:
    return KindOfJob(job.id, job.spec.family, float(job.spec.global_batch_size or 1))
