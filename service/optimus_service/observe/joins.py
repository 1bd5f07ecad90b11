"""How long new tasks take until they take part: of each active job, and of first tasks by the kind of their job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from optimus_scheduler.model import Architecture, JobSpec, StartUps
from optimus_service.observe.spec import readable_spec
from optimus_service.store.records import MembershipRecord, Observed, TaskRecord
from optimus_service.store.repository import Repository

_JOINS_KEPT = 4
"""Newest times of joining that are kept of a job: machines and their load change."""
_START_UPS_KEPT, _KINDS_KEPT = 8, 256
"""Likewise of start-ups of one kind of jobs, and of how many kinds."""
_ENDED_READ = 200
"""Jobs that ended last whose start-ups are read after the start of the service."""


class Join(NamedTuple):
    """New tasks that have taken part."""

    at: float
    """When they did."""
    seconds: float
    """From their start on."""
    is_start: bool
    """Whether the job had none before."""


class StartUp(NamedTuple):
    """First tasks of a job, or those after a pause, that have taken part."""

    at: float
    """When they did."""
    job_id: str
    kind: tuple[str, Architecture]
    """Task and architecture of the job."""
    seconds: float
    """From their start on."""


class Joins:
    """What is known of joining. The first time, start-ups of jobs that have ended are read from the database, so that a
    service that was restarted knows those that one knows which went on."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._joined: dict[str, tuple[int, tuple[float, ...]]] = {}
        """By job: the newest epoch that was looked at, and how long new tasks took."""
        self._starts: StartUps | None = None
        """None: nothing was read yet."""

    def update(self, observed: Observed) -> None:
        """Take in the memberships that are new since the last time; jobs that have ended are forgotten, but for how
        long their first tasks took."""
        newest = {job: each[-1].epoch for job, each in observed.memberships.items() if each}
        old = {job: self._joined.get(job, (-1, ())) for job in newest}
        changed = {job for job, epoch in newest.items() if old[job][0] < epoch}
        is_first = self._starts is None
        tasks: Iterable[TaskRecord] = observed.tasks if changed else ()
        began = _began(chain(self._replaced(observed.tasks, changed), tasks) if is_first else tasks, changed)
        started = list(self._of_ended()) if is_first else []
        specs = {job.id: readable_spec(job) for job in observed.jobs if job.id in changed}
        for job in changed:
            seen, known = old[job]
            joins = joins_of(observed.memberships[job], began[job], since=seen)
            old[job] = (newest[job], (*known, *[each.seconds for each in joins])[-_JOINS_KEPT:])
            started += _starts_among(joins, job, specs.get(job))
        self._joined = old
        self._starts = newest_start_ups(self._starts or {}, started)

    def seconds_of(self, job_id: str) -> tuple[float, ...]:
        """How long the newest new tasks of this active job took, oldest first."""
        return self._joined.get(job_id, (-1, ()))[1]

    @property
    def start_ups(self) -> StartUps:
        """How long first tasks took, of jobs that have ended, too."""
        return self._starts or {}

    def _replaced(self, tasks: Iterable[TaskRecord], jobs: Iterable[str]) -> list[TaskRecord]:
        """All tasks of those of these jobs of which some were replaced: a round sees the newest ones only."""
        of_jobs = set(jobs)
        some = {each.key.job_id for each in tasks if each.key.incarnation and each.key.job_id in of_jobs}
        return self._repository.tasks.select(active_only=False, job_ids=some) if some else []

    def _of_ended(self) -> Iterator[StartUp]:
        ended = self._repository.memberships.starts_of_ended(_ENDED_READ)
        ids = {job.id for job, _ in ended}
        began = _began(self._repository.tasks.select(active_only=False, job_ids=ids) if ids else (), ids)
        for job, starts in ended:
            joins = [join for start in starts for join in joins_of([start], began[job.id])]
            yield from _starts_among(joins, job.id, readable_spec(job))


def joins_of(memberships: Sequence[MembershipRecord], began: Mapping[str, float], since: int = -1) -> list[Join]:
    """How long the tasks that each epoch after `since` brought took from their start until they took part, in order.

    `began`: when tasks were started, by name; tasks of which that is not known any more count nothing.
    """
    found: list[Join] = []
    had: set[str] = set()
    for each in memberships:
        tasks = {*each.workers, *each.servers}
        starts = [began[name] for name in tasks - had if name in began]
        if each.epoch > since and starts:
            found.append(Join(each.at, max(each.at - max(starts), 0.0), is_start=not had))
        had = tasks
    return found


def newest_start_ups(before: StartUps, new: Iterable[StartUp]) -> StartUps:
    """The newest ones of each kind, beside those of before, of the kinds of which one started last."""
    found = dict(before)
    for each in sorted(new):
        found[each.kind] = (*found.pop(each.kind, ()), each.seconds)[-_START_UPS_KEPT:]
    return dict(list(found.items())[-_KINDS_KEPT:])


def _starts_among(joins: Iterable[Join], job_id: str, spec: JobSpec | None) -> list[StartUp]:
    if spec is None:
        return []
    kind = spec.family, spec.architecture
    return [StartUp(each.at, job_id, kind, each.seconds) for each in joins if each.is_start]


def _began(tasks: Iterable[TaskRecord], jobs: Iterable[str]) -> dict[str, dict[str, float]]:
    """When tasks of these jobs were started, by their names, by job."""
    began: dict[str, dict[str, float]] = {job: {} for job in jobs}
    for task in tasks:
        if task.key.job_id in began:
            began[task.key.job_id][task.key.name] = task.created_at
    return began
