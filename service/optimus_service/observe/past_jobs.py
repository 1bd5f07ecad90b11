"""What earlier jobs tell of the queue ahead: how long they took, and which ones are likely to come.

It is read from the database whenever it is asked for, so that a service that was restarted, and each replica, knows
what one knows that has seen all rounds; what ended while no service was there counts, too.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import replace

from optimus_models.calibration import NO_EXPERIENCE
from optimus_scheduler.ahead.arrivals import LENGTHS, REMEMBERED, later_submissions
from optimus_scheduler.ahead.queue import Arrival
from optimus_scheduler.forecast.forecast import forecast
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import NOTHING, Directive, Interval, JobState
from optimus_scheduler.settings import Settings
from optimus_service.observe.histories import Histories
from optimus_service.observe.jobs import job_of
from optimus_service.observe.spec import readable_spec
from optimus_service.observe.telemetry import JobHistory
from optimus_service.store.records import JobRecord, MembershipRecord
from optimus_service.store.repository import Repository


class PastJobs:
    """Of ended jobs among the newest submissions it keeps what was made of their reports. Thread-safe."""

    def __init__(self, repository: Repository, settings: Settings) -> None:
        self._repository = repository.reading()
        self._settings = settings
        self._ended: dict[str, Outlook | None] = {}
        """None: nothing can be told of it."""
        self._turn = threading.Lock()

    @property
    def lengths(self) -> tuple[float, ...]:
        """Seconds from the first tasks to the end of the jobs that ended last, the newest last."""
        return self._repository.jobs.lengths_of_ended(LENGTHS)

    def arrivals(self, active: Sequence[Outlook], now: float) -> tuple[Arrival, ...]:
        """The next submissions, by the newest ones: see `later_submissions`. `active`: jobs that have not ended."""
        by_id = {one.id: one for one in active}
        with self._turn:
            newest = self._repository.jobs.newest(REMEMBERED)
            ended = {job_id for job_id, state in newest.items() if state.is_final and job_id not in by_id}
            self._ended = {job_id: one for job_id, one in self._ended.items() if job_id in newest}
            if unread := ended - self._ended.keys():
                self._ended |= dict.fromkeys(unread) | self._read(unread)
            found = [by_id.get(job_id) or self._ended.get(job_id) for job_id in newest]
        return later_submissions([one for one in found if one is not None], now)

    def _read(self, job_ids: Collection[str]) -> dict[str, Outlook | None]:
        repository = self._repository
        jobs, memberships = repository.jobs.by_id(job_ids), repository.memberships.of_jobs(job_ids)
        histories = Histories(repository).update(jobs.values(), memberships)
        return {
            job.id: _as_it_was(job, memberships.get(job.id, ()), histories[job.id], self._settings)
            for job in jobs.values()
        }


def _as_it_was(
    record: JobRecord, memberships: Sequence[MembershipRecord], history: JobHistory, settings: Settings
) -> Outlook | None:
    """An ended job, by its own reports alone, with the steps that it took: one like it takes as many."""
    spec = readable_spec(record)
    if spec is None:
        return None
    job = job_of(
        record,
        spec,
        memberships,
        history,
        backoff=settings.retry_backoff,
        similar=(),
        calculated_speeds=(),
        experience=NO_EXPERIENCE,
        spent=0.0,
        allocation=NOTHING,
        formed=NOTHING,
        batch=None,
    )
    job = replace(job, state=JobState.RUNNING, directive=Directive.RUN)
    found = forecast(job, record.finished_at or record.created_at, settings)
    took = Interval(record.step, record.step, record.step)
    return found._replace(forecast=found.forecast._replace(total_steps=took, remaining_steps=took, converged=False))
