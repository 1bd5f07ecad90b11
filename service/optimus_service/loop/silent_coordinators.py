"""Coordinators of which nothing is heard any more, although their processes are there: they are ended, and replaced.

A coordinator says every few seconds what it uses. One whose process is stopped, or hangs, does not, and its tasks wait
for it: after two minutes they would leave, and the steps since the last checkpoint would be lost. Its replacement reads
the journal and takes over what runs, so that ending one by mistake costs a moment and no step. Two never act both: the
next one is started when the cluster says that this one is gone, and where it cannot know that, the journal tells the
older one that it has no say any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from optimus_scheduler.model import Directive, Role, Task, TaskKey, TaskPhase
from optimus_scheduler.model.format import lasted
from optimus_service.clusters.base import Cluster, ClusterUnavailable
from optimus_service.loop.silent_tasks import SilentTasks
from optimus_service.store.records import TaskRecord
from optimus_service.store.repository import LeaderRepository

COORDINATOR_SILENT = "CoordinatorSilent"
"""The event of its job."""
SILENT_SECONDS = 45.0
"""Nine reports missed. Tasks wait for their coordinator for two minutes; its replacement needs some seconds."""
LOOK_SECONDS = 10.0
"""Between two looks."""
BREAK_SECONDS = 20.0
"""When no look was made for so long, this process may have stood still, and could hear of nobody."""
_MOST_PART = 0.5
"""When more than this part of at least `_MANY` coordinators are silent, the trouble is not theirs."""
_MANY = 4

_log = structlog.get_logger(__name__)


class SilentCoordinators:
    """What the leader does about them, between rounds. Used by one thread."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        """`clock`: POSIX seconds that go on while this process stands still."""
        self._cluster = cluster
        self._clock = clock
        self._looked_at: float | None = None
        self._listens_since = 0.0
        """From when on this process could hear without a break."""
        self._ended: frozenset[TaskKey] = frozenset()
        """Those that were told, as long as they are there."""
        self._many_told = False
        self._tasks = SilentTasks(cluster, clock)

    def look(self, leader: LeaderRepository) -> None:
        """End those that are silent, and tasks that do not answer theirs, if it is time to look again. Must be called
        every second or so.

        Raises:
            DatabaseNotAvailable: who is silent is not known.
            StaleLeader: somebody else leads by now.
        """
        now, before = self._clock(), self._looked_at
        if before is not None and 0.0 <= now - before < LOOK_SECONDS:
            return
        self._looked_at = None  # a look that fails is a break: tasks are not heard without the database
        if before is None or not 0.0 <= now - before < BREAK_SECONDS:
            self._listens_since = now
        heard_before = now - SILENT_SECONDS
        if self._listens_since <= heard_before:
            self._end_all(leader.tasks.silent_coordinators(heard_before), now, leader)
            self._tasks.look(leader)
        self._looked_at = now

    def _end_all(self, silent: Iterable[TaskRecord], now: float, leader: LeaderRepository) -> None:
        silent = list(silent)
        self._ended &= {record.key for record in silent}
        if not silent or self._are_most(silent, leader):
            return
        jobs = leader.jobs.by_id({record.key.job_id for record in silent})
        try:
            tasks = self._cluster.tasks()
            for record in silent:
                if jobs[record.key.job_id].directive is not Directive.CANCEL and _is_waited_for(record, tasks):
                    self._end(record, now, leader)
        except (ClusterUnavailable, OSError) as error:
            _log.warning("a silent coordinator could not be ended", error=str(error))

    def _are_most(self, silent: list[TaskRecord], leader: LeaderRepository) -> bool:
        n_all = leader.tasks.n_heard_coordinators()
        are_most = n_all >= _MANY and len(silent) > _MOST_PART * n_all
        if are_most and not self._many_told:
            _log.warning("most coordinators are silent: is the network between them and the service in order?")
        self._many_told = are_most
        return are_most

    def _end(self, record: TaskRecord, now: float, leader: LeaderRepository) -> None:
        leader.check_fence()
        key = record.key
        if key not in self._ended:
            seconds = now - (record.usage_at or now)
            message = (
                f"{key.name} has not been heard of for {lasted(seconds)}: its process is stopped, or its machine "
                "stands still or cannot be reached. Its tasks wait for it. It is ended, and another takes its place."
            )
            _log.warning("a coordinator is silent", task=key.name, seconds=round(seconds))
            leader.events.add(key.job_id, COORDINATOR_SILENT, message, {"task": key.name, "node": record.node}, now)
            self._ended |= {key}
        self._cluster.stop(key, force=True)


def _is_waited_for(record: TaskRecord, tasks: Iterable[Task]) -> bool:
    """Whether the cluster knows nothing of what ails it (else it sees to that itself), and other tasks of its job are
    there."""
    of_job = [task for task in tasks if task.key.job_id == record.key.job_id and task.phase is not TaskPhase.EXITED]
    own = [task for task in of_job if task.key == record.key]
    others = any(task.key.role is not Role.COORDINATOR for task in of_job)
    return others and any(task.phase is TaskPhase.RUNNING and task.trouble is None for task in own)
