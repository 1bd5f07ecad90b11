"""Workers and servers that do not answer their coordinator, although their processes are there: they are ended, and
replaced.

A coordinator tells of each as soon as its lease is over, and lets the others go on where they suffice. Where they do
not, the job would stand still for as long as the process is stopped. So that one which is only slow is not ended, it is
waited for as long as its code may hang (`patience_seconds`). What it computes after its lease does not count, so that
ending it costs no step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import structlog

from optimus_scheduler.model import Directive, Role, Task, TaskKey, TaskPhase
from optimus_scheduler.model.format import lasted
from optimus_service.clusters.base import Cluster, ClusterUnavailable
from optimus_service.insight.jobs.reasons import WORKER_SILENT
from optimus_service.store.records import EventRecord, JobRecord, TaskRecord
from optimus_service.store.repository import LeaderRepository

LEAST_SECONDS, USUAL_SECONDS = 60.0, 600.0
"""From the word of its coordinator on a task is waited for so long at least; and where no `hang_seconds` are set: as
long as the first steps of a worker may take."""
HEARD_SECONDS = 45.0
"""A coordinator tells what it uses each 5 s. Of one that was heard of longer ago nothing is known of its tasks."""
_ANSWERS = "answers again"

_log = structlog.get_logger(__name__)


def patience_seconds(job: JobRecord) -> float:
    """How long after its coordinator's word a task of this job is waited for."""
    seconds = job.asked.hang_seconds
    return USUAL_SECONDS if seconds is None else max(seconds, LEAST_SECONDS)


def silent_since(events: Iterable[EventRecord]) -> dict[str, float]:
    """The tasks that do not answer by these events (`WorkerSilent` of one job, oldest first), by name, and when each
    was first told of, POSIX seconds."""
    found: dict[str, float] = {}
    for event in events:
        name, _, words = event.message.partition(" ")
        if words.startswith(_ANSWERS):
            found.pop(name, None)
        else:
            found.setdefault(name, event.at)
    return found


class SilentTasks:
    """What the leader does about them, between rounds. Used by one thread."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        """`clock`: POSIX seconds that go on while this process stands still."""
        self._cluster = cluster
        self._clock = clock
        self._ended: frozenset[TaskKey] = frozenset()
        """Those that were told, as long as they are there."""

    def look(self, leader: LeaderRepository) -> None:
        """End those whose time is over. To be called when coordinators could be heard of for `HEARD_SECONDS`.

        Raises:
            DatabaseNotAvailable: who is silent is not known.
            StaleLeader: somebody else leads by now.
        """
        now = self._clock()
        due = self._due(leader, now)
        self._ended &= due.keys()
        if not due:
            return
        try:
            there = {task.key: task for task in self._cluster.tasks()}
            for key, seconds in due.items():
                if _is_running(there.get(key)):
                    self._end(key, seconds, now, leader)
        except (ClusterUnavailable, OSError) as error:
            _log.warning("a silent task could not be ended", error=str(error))

    def _due(self, leader: LeaderRepository, now: float) -> Mapping[TaskKey, float]:
        """Those that were waited for long enough, and for how many seconds."""
        events: dict[str, list[EventRecord]] = {}
        for event in leader.events.of_type(WORKER_SILENT, leader.jobs.not_as_wanted(now - LEAST_SECONDS)):
            if event.job_id is not None:
                events.setdefault(event.job_id, []).append(event)
        if not events:
            return {}
        jobs, tasks = leader.jobs.by_id(set(events)), leader.tasks.select(job_ids=set(events))
        memberships = leader.memberships.of_jobs(list(events))
        coordinators = {
            task.key.job_id: task for task in tasks if task.key.role is Role.COORDINATOR and task.unwanted_since is None
        }
        due = {}
        for task in tasks:
            job, coordinator = jobs.get(task.key.job_id), coordinators.get(task.key.job_id)
            since = silent_since(events[task.key.job_id]).get(task.key.name)
            if since is None or job is None or job.directive is not Directive.RUN or task.unwanted_since is not None:
                continue
            newest = memberships.get(job.id, ())[-1:]
            is_back = any(each.at > since and task.key.name in (*each.workers, *each.servers) for each in newest)
            if not is_back and _is_told(coordinator, since, now) and now - since >= patience_seconds(job):
                due[task.key] = now - since
        return due

    def _end(self, key: TaskKey, seconds: float, now: float, leader: LeaderRepository) -> None:
        leader.check_fence()
        if key not in self._ended:
            message = f"{key.name} did not answer for {lasted(seconds)}: it is ended, and another takes its place."
            _log.warning("a task is silent", task=key.name, seconds=round(seconds))
            leader.events.add(key.job_id, WORKER_SILENT, message, {"task": key.name}, now)
            self._ended |= {key}
        self._cluster.stop(key, force=True)


def _is_told(coordinator: TaskRecord | None, since: float, now: float) -> bool:
    """Whether the coordinator that told of it is there, and would tell that it answers again: a later one would not
    know that it had been silent."""
    if coordinator is None or coordinator.usage_at is None:
        return False
    return coordinator.created_at <= since and coordinator.usage_at >= now - HEARD_SECONDS


def _is_running(task: Task | None) -> bool:
    """Whether the cluster knows nothing of what ails it: else it sees to that itself."""
    return task is not None and task.phase is TaskPhase.RUNNING and task.trouble is None
