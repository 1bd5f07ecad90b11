"""Job figures for `/metrics`, read from the database at each scrape."""

from __future__ import annotations

from collections.abc import Callable

from optimus_scheduler.types import JobState
from optimus_service.metrics import MAX_JOBS, ClusterFigures, JobFigures
from optimus_service.store.errors import DatabaseNotAvailable
from optimus_service.store.records import DecisionRecord, JobRecord
from optimus_service.store.repository import Repository
from optimus_service.views import measured_speed, outlook

_SPEED_SAMPLES = 50
"""Newest samples of a job that its speed is taken from: enough for a curve in a dashboard."""


def figures_reader(repository: Repository, clock: Callable[[], float]) -> Callable[[], ClusterFigures | None]:
    """A function that reads the figures; it gives None while the database cannot be reached."""

    def read() -> ClusterFigures | None:
        try:
            return _read(repository, clock())
        except DatabaseNotAvailable:
            return None

    return read


def _read(repository: Repository, now: float) -> ClusterFigures:
    jobs = repository.active_jobs()
    shown = jobs[:MAX_JOBS]
    decisions = repository.latest_decisions([job.id for job in shown])
    figures = tuple(_of_job(job, decisions.get(job.id), _speed(repository, job, now)) for job in shown)
    return ClusterFigures(repository.count_jobs_by_state(), figures, n_active_jobs=len(jobs))


def _speed(repository: Repository, job: JobRecord, now: float) -> float | None:
    if job.state is not JobState.RUNNING:
        return None
    return measured_speed(repository.newest_samples(job.id, _SPEED_SAMPLES), now)


def _of_job(job: JobRecord, decision: DecisionRecord | None, steps_per_second: float | None) -> JobFigures:
    remaining = outlook(job, decision).remaining_seconds
    return JobFigures(
        job_id=job.id,
        name=job.name,
        workers=job.running.workers,
        servers=job.running.servers,
        step=job.step,
        loss=job.loss,
        steps_per_second=steps_per_second,
        remaining_seconds=None if remaining is None else remaining.mean,
        rescales=job.rescales,
    )
