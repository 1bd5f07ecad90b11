"""When will a waiting job start? An estimate from what is predicted of the jobs that run. Pure.

Running jobs can be shrunk to their minima, so what stands in the way of a waiting job are the minima of the others:
it starts when enough of those have ended. Waiting jobs are taken in the order of submission, and smaller ones may pass
one that does not fit. The scheduler's own order also weighs how long jobs are and how long they waited, and new jobs
may come: the answer is what to expect, not a promise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from optimus_contract import answers
from optimus_scheduler.model import Resources
from optimus_service.observe.spec import readable_spec
from optimus_service.store.records import JobRecord


@dataclass(frozen=True, slots=True)
class Start:
    """When a job is expected to start."""

    n_ahead: int
    """Jobs that wait and were submitted before."""
    seconds: answers.Interval | None
    """From now; None: nobody can tell."""
    after: str | None
    """The job whose end makes the room; None: there is room now, or nobody can tell."""


def expected_start(
    job_id: str, active: Iterable[JobRecord], left: Mapping[str, answers.Interval | None], capacity: Resources
) -> Start:
    """`active` has the job itself; `left` says how many seconds each job has left with what it has."""
    jobs = sorted(active, key=lambda job: (job.created_at, job.id))
    waiting = [job for job in jobs if job.is_without_tasks]
    n_ahead = [job.id for job in waiting].index(job_id)
    held = [job for job in jobs if not job.wanted.is_empty]
    room = capacity
    for job in held:
        room = room - _minimum(job)
    waiting, room = _admitted(waiting, room)
    if all(job.id != job_id for job in waiting):
        return Start(n_ahead, answers.Interval(mean=0.0, low=0.0, high=0.0), None)
    ends = [(seconds, job) for job in held if (seconds := left.get(job.id)) is not None]
    for seconds, job in sorted(ends, key=lambda end: (end[0].mean, end[1].id)):
        waiting, room = _admitted(waiting, room + _minimum(job))
        if all(each.id != job_id for each in waiting):
            return Start(n_ahead, seconds, job.id)
    return Start(n_ahead, None, None)


def _admitted(waiting: list[JobRecord], room: Resources) -> tuple[list[JobRecord], Resources]:
    """Who still waits after those that fit have started, and the room that is left."""
    still = []
    for job in waiting:
        if _minimum(job).fits_in(room):
            room = room - _minimum(job)
        else:
            still.append(job)
    return still, room


def _minimum(job: JobRecord) -> Resources:
    spec = readable_spec(job)
    if spec is None:
        return Resources()
    return spec.worker.resources * spec.worker.minimum + spec.server.resources * spec.server.minimum
