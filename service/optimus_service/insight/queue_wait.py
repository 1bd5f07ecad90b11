"""When will a waiting job start? An estimate from what is predicted of the jobs that run. Pure.

Running jobs can be shrunk to their minima, so what stands in the way of a waiting job are the minima of the others:
it starts when enough of those have ended. Waiting jobs are taken in the order of submission, and smaller ones may pass
one that does not fit. The scheduler's own order also weighs how long jobs are and how long they waited, and new jobs
may come: the answer is what to expect, not a promise.

A project that may not borrow has a room of its own: its jobs wait for each other there, whatever else is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from optimus_contract import answers
from optimus_scheduler.allocate.allocate_with_quotas import guarantees, may_not_borrow
from optimus_scheduler.model import Quota, Resources
from optimus_service.observe.spec import readable_spec
from optimus_service.store.records import JobRecord


@dataclass(frozen=True, slots=True)
class Start:
    """When a job is expected to start."""

    ahead: tuple[str, ...]
    """Jobs that wait and were submitted before, oldest first."""
    seconds: answers.Interval | None
    """From now; None: nobody can tell."""
    after: str | None
    """The job whose end makes the room; None: there is room now, or nobody can tell."""
    has_room: bool = False
    """Whether the minima of the others leave room for it now."""


def expected_start(
    job_id: str,
    active: Iterable[JobRecord],
    left: Mapping[str, answers.Interval | None],
    capacity: Resources,
    quotas: Sequence[Quota] = (),
) -> Start:
    """`active` has the job itself; `left` says how many seconds each job has left with what it has."""
    jobs = sorted(active, key=lambda job: (job.created_at, job.id))
    waiting = [job for job in jobs if job.waits]
    ids = [job.id for job in waiting]
    ahead = tuple(ids[: ids.index(job_id)])
    held = [job for job in jobs if not job.wanted.is_empty]
    confined = may_not_borrow(quotas)
    rights = {project: right for project, right in guarantees(quotas, capacity).items() if project in confined}
    room = _Room(capacity, rights)
    for job in held:
        room = room.without(job)
    waiting, room = _admitted(waiting, room)
    if all(job.id != job_id for job in waiting):
        return Start(ahead, answers.Interval(mean=0.0, low=0.0, high=0.0), None, has_room=True)
    ends = [(seconds, job) for job in held if (seconds := left.get(job.id)) is not None]
    for seconds, job in sorted(ends, key=lambda end: (end[0].mean, end[1].id)):
        waiting, room = _admitted(waiting, room.with_that_of(job))
        if all(each.id != job_id for each in waiting):
            return Start(ahead, seconds, job.id)
    return Start(ahead, None, None)


@dataclass(frozen=True, slots=True)
class _Room:
    """What is left for minima, in the cluster and in each project that may not borrow."""

    cluster: Resources
    projects: Mapping[str, Resources]

    def holds(self, job: JobRecord) -> bool:
        """Whether the job's minimum fits, in its project as well."""
        least = _minimum(job)
        own = self.projects.get(job.project)
        return least.fits_in(self.cluster) and (own is None or least.fits_in(own))

    def without(self, job: JobRecord) -> _Room:
        """What is left beside the minimum of this job."""
        return self._changed(job.project, lambda amount: amount - _minimum(job))

    def with_that_of(self, job: JobRecord) -> _Room:
        """What is left once it has ended."""
        return self._changed(job.project, lambda amount: amount + _minimum(job))

    def _changed(self, project: str, change: Callable[[Resources], Resources]) -> _Room:
        projects = {name: change(left) if name == project else left for name, left in self.projects.items()}
        return replace(self, cluster=change(self.cluster), projects=projects)


def _admitted(waiting: list[JobRecord], room: _Room) -> tuple[list[JobRecord], _Room]:
    """Who still waits after those that fit have started, and the room that is left."""
    still = []
    for job in waiting:
        if room.holds(job):
            room = room.without(job)
        else:
            still.append(job)
    return still, room


def _minimum(job: JobRecord) -> Resources:
    spec = readable_spec(job)
    if spec is None:
        return Resources()
    return spec.worker.resources * spec.worker.minimum + spec.server.resources * spec.server.minimum


ORDERS: Mapping[str, str] = {
    "optimus": "those that are soon done and have a high priority come first, and one that has waited long before all",
    "optimus-paper": "those to whom their first tasks save most time come first",
    "fifo": "the oldest comes first",
    "tiresias": "the one that has had least so far comes first",
    "drf": "each gets its minimum before any gets more, the oldest first",
    "max-min": "each gets its minimum before any gets more, the oldest first",
    "tetris": "those that pack well and are short come first",
    "predictable": "small ones come first, and among those of a size the oldest",
    "srtf": "the one with the shortest time left comes first",
}
"""By which order policies let waiting jobs start, in words."""
