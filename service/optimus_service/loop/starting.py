"""Many tasks are started at a time where the cluster is a network away: each start waits for answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from optimus_service.clusters.base import Cluster, ClusterUnavailable, TaskLaunch

StartError = ClusterUnavailable | OSError
_ONE_BY_ONE = 64
"""Tasks of one batch where each is started at once by this machine: some milliseconds each."""
_PER_THREAD = 4
"""Tasks of one batch for each thread. A batch follows one look at who leads, so it must not take long."""


class Starter:
    """Starts tasks on one cluster, `at_once` at a time (1: one after the other, in the caller's thread)."""

    def __init__(self, cluster: Cluster, at_once: int = 1) -> None:
        self._cluster = cluster
        self._at_once = at_once

    @property
    def batch_size(self) -> int:
        return _ONE_BY_ONE if self._at_once == 1 else self._at_once * _PER_THREAD

    def prepare(self, job_ids: Sequence[str]) -> None:
        """Have the cluster make at once what these jobs need before their tasks. What fails, fails again, and is told,
        when a task of the job is started."""
        if self._at_once == 1:
            return
        with self._threads(len(job_ids)) as pool:
            list(pool.map(self._prepare, job_ids))

    def start(self, launches: Sequence[TaskLaunch]) -> Iterator[StartError | None]:
        """Start them; what went wrong with each, in their order."""
        if self._at_once == 1 or len(launches) == 1:
            yield from map(self._start, launches)
            return
        with self._threads(len(launches)) as pool:
            yield from pool.map(self._start, launches)

    def _threads(self, n_calls: int) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max(min(self._at_once, n_calls), 1), thread_name_prefix="start")

    def _prepare(self, job_id: str) -> None:
        with suppress(ClusterUnavailable, OSError):
            self._cluster.coordinator_address(job_id)

    def _start(self, launch: TaskLaunch) -> StartError | None:
        try:
            self._cluster.start(launch)
        except (ClusterUnavailable, OSError) as error:
            return error
        return None
