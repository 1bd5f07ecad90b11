"""Ends all tasks of a cluster when the service is stopped for good."""

from __future__ import annotations

import time
from threading import Event

import structlog

from optimus_scheduler.model import TaskKey, TaskPhase
from optimus_service.clusters.base import Cluster, ClusterUnavailable

_LEAVE_SECONDS = 5.0
"""Time that tasks have to end after SIGTERM: a step, not a checkpoint of everything."""
_DIE_SECONDS = 5.0
_POLL_SECONDS = 0.1

_log = structlog.get_logger(__name__)


def stop_all_tasks(cluster: Cluster) -> bool:
    """SIGTERM to every task, SIGKILL to those that stay. Whether all are gone. No job is blamed for it."""
    try:
        return _stop(cluster, _LEAVE_SECONDS, force=False) or _stop(cluster, _DIE_SECONDS, force=True)
    except ClusterUnavailable as error:
        _log.warning("tasks could not be stopped", error=str(error))
        return False


def _stop(cluster: Cluster, patience_seconds: float, *, force: bool) -> bool:
    for key in _alive(cluster):
        cluster.stop(key, force=force, with_all=True)
    pause, give_up_at = Event(), time.monotonic() + patience_seconds
    while (alive := _alive(cluster)) and time.monotonic() < give_up_at:
        pause.wait(_POLL_SECONDS)
    return not alive


def _alive(cluster: Cluster) -> list[TaskKey]:
    return [task.key for task in cluster.tasks() if task.phase is not TaskPhase.EXITED]
