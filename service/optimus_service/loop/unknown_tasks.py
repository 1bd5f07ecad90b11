"""Tasks that run although the database knows nothing of their job: most likely an older backup of it was restored.

They are named (event, log, metric, `GET /v1/cluster`), and what they take is not given to anybody else. They are kept
by default: that a database does not know a job says as much of the database (an old backup, a wrong URL) as of the job,
and training that was stopped by mistake is lost, while tasks that were kept by mistake can still be stopped.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import structlog

from optimus_scheduler.model import Task, TaskKey
from optimus_service.clusters.base import Cluster
from optimus_service.store.repository import LeaderRepository

UNKNOWN_TASKS = "UnknownTasks"
"""The event of the cluster."""
UnknownTasksPolicy = Literal["keep", "stop"]
_MOST_NAMED = 20
"""Tasks that one event names."""

_log = structlog.get_logger(__name__)


class UnknownTasks:
    """What the leader does about them in each round. Used by one thread."""

    def __init__(self, cluster: Cluster, policy: UnknownTasksPolicy, drain_seconds: float) -> None:
        """`drain_seconds`: with the policy `stop`, a task that was asked to leave is killed after twice that."""
        self._cluster = cluster
        self._policy = policy
        self._drain_seconds = drain_seconds
        self._since: dict[TaskKey, float] = {}
        """When each was first seen (POSIX seconds), so that it is reported once (again after a restart)."""
        self.found: tuple[Task, ...] = ()
        """Those of the last round."""

    def handle(self, without_record: Collection[Task], now: float, leader: LeaderRepository) -> frozenset[str]:
        """Report them and, by the policy, stop them; the jobs whose things on the cluster are to be kept.

        Raises:
            ClusterUnavailable: they could not be stopped.
            StaleLeader: somebody else leads by now.
        """
        known = leader.jobs.by_id({task.key.job_id for task in without_record}) if without_record else {}
        self.found = tuple(task for task in without_record if task.key.job_id not in known)
        new = [task for task in self.found if task.key not in self._since]
        self._since = {task.key: self._since.get(task.key, now) for task in self.found}
        if new:
            self._report(new, now, leader)
        if self._policy == "keep":
            return frozenset(task.key.job_id for task in self.found)
        for task in self.found:
            leader.check_fence()
            self._cluster.stop(task.key, force=now - self._since[task.key] >= 2 * self._drain_seconds)
        return frozenset()

    def _report(self, tasks: list[Task], now: float, leader: LeaderRepository) -> None:
        names = [task.key.name for task in tasks]
        done = "They are kept" if self._policy == "keep" else "They are being stopped"
        message = f"{len(names)} running tasks belong to jobs that the database does not know. {done}."
        data = {"tasks": names[:_MOST_NAMED], "n_tasks": len(names), "policy": self._policy}
        _log.warning("tasks of unknown jobs", **data)
        leader.events.add(None, UNKNOWN_TASKS, message, data, now)
