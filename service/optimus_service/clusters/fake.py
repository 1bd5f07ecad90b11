"""A cluster in memory: what the loop is tested and simulated against. Behaves as the conformance test demands."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from optimus_scheduler.model import Node, Role, Task, TaskKey, TaskPhase
from optimus_service.clusters.base import STOPPED_WITH_ALL, ClusterUnavailable, TaskLaunch, TaskObjection

_TERMINATED = 143
_KILLED = 137


class FakeCluster:
    """A `Cluster` whose tasks do nothing by themselves: the test says when they exit.

    A task that is asked to stop exits with 143 at once, unless its name is in `stubborn`: then only `force` ends it.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._tasks: dict[TaskKey, Task] = {}
        self._logs: dict[TaskKey, str] = {}
        self.retained: frozenset[str] = frozenset()
        """The jobs that `retain` was last called with."""
        self._lock = threading.RLock()
        self.launches: list[TaskLaunch] = []
        """Every task that was really started, in order."""
        self.stopped: list[tuple[TaskKey, bool]] = []
        """Every stop that was asked for: key and force."""
        self._with_all: set[TaskKey] = set()
        self.available = True
        """False: every call raises `ClusterUnavailable`."""
        self.refuses_to_start: set[str] = set()
        """Names of tasks whose start fails."""
        self.stubborn: set[str] = set()
        self.broken_tasks: dict[str, str] = {}
        """Import path → why `check_task` refuses it."""
        self.removed: list[str] = []
        """Where `remove_checkpoints` has removed something."""
        self.store_away: str | None = None
        """Why nothing can be removed there."""

    # --- the seam ---------------------------------------------------------------------------------------------------

    def nodes(self) -> tuple[Node, ...]:
        with self._asked():
            return tuple(self._nodes[name] for name in sorted(self._nodes))

    def tasks(self) -> tuple[Task, ...]:
        with self._asked():
            return tuple(self._tasks[key] for key in sorted(self._tasks))

    def start(self, launch: TaskLaunch) -> None:
        with self._asked():
            if launch.key.name in self.refuses_to_start:
                raise ClusterUnavailable(f"{launch.key.name} was refused")
            if launch.key in self._tasks:
                return
            self._tasks[launch.key] = Task(launch.key, launch.node, TaskPhase.RUNNING, resources=launch.resources)
            self.launches.append(launch)

    def stop(self, key: TaskKey, *, force: bool = False, with_all: bool = False) -> None:
        with self._asked():
            task = self._tasks.get(key)
            if task is None or task.phase is TaskPhase.EXITED:
                return
            self.stopped.append((key, force))
            if with_all:
                self._with_all.add(key)
            if force:
                self.exit(key, _KILLED)
            elif key.name not in self.stubborn:
                self.exit(key, _TERMINATED)

    def forget(self, keys: Iterable[TaskKey]) -> None:
        with self._asked():
            for key in keys:
                task = self._tasks.get(key)
                if task is not None and task.phase is TaskPhase.EXITED:
                    del self._tasks[key]

    def forget_logs(self, before: float) -> None:  # noqa: ARG002 - when a line was printed is not known here
        with self._asked():
            pass

    def log_tail(self, key: TaskKey, max_bytes: int) -> str:
        with self._asked():
            return self._logs.get(key, "").encode()[-max_bytes:].decode(errors="replace") if max_bytes > 0 else ""

    def try_task(self, job: Mapping[str, Any]) -> TaskObjection | None:  # noqa: ARG002 - the seam's
        return None

    def remove_checkpoints(self, job: Mapping[str, Any], job_id: str) -> str | None:
        if self.store_away is None:
            self.removed.append(f"{job['checkpoint_url']}/{job_id}")
        return self.store_away

    def check_task(self, import_path: str, working_directory: str | None) -> str | None:  # noqa: ARG002 - the seam's
        with self._asked():
            return self.broken_tasks.get(import_path)

    def check_command(self, job: Mapping[str, Any]) -> TaskObjection | None:  # noqa: ARG002 - the seam's
        return None  # what its image has, only a pod can tell

    def coordinator_address(self, job_id: str) -> str | None:
        with self._asked():
            for launch in self.launches:
                key = launch.key
                task = self._tasks.get(key) if key.job_id == job_id and key.role is Role.COORDINATOR else None
                if task is not None and task.phase is not TaskPhase.EXITED:
                    return launch.environment.get("OPTIMUS_COORDINATOR_ADDRESS")
            return None

    def retain(self, job_ids: Collection[str]) -> None:
        with self._asked():
            self.retained = frozenset(job_ids)

    def close(self) -> None:
        """Nothing is held."""

    # --- what a test does to it -------------------------------------------------------------------------------------

    def exit(self, key: TaskKey, code: int | None) -> None:
        """The task ends by itself with this exit code (None: not known)."""
        with self._lock:
            task = replace(self._tasks[key], phase=TaskPhase.EXITED, exit_code=code)
            self._tasks[key] = (
                replace(task, exit_code=None, trouble=STOPPED_WITH_ALL) if key in self._with_all else task
            )

    def print_line(self, key: TaskKey, line: str) -> None:
        with self._lock:
            self._logs[key] = self._logs.get(key, "") + line + "\n"

    def lose_node(self, name: str) -> None:
        """The node is gone, and its tasks with it: their exit codes are unknown."""
        with self._lock:
            self._nodes[name] = replace(self._nodes[name], schedulable=False)
            for task in [task for task in self._tasks.values() if task.node == name]:
                self.exit(task.key, None)

    def empty_node(self, name: str) -> None:
        """An operator drains the node."""
        with self._lock:
            self._nodes[name] = replace(self._nodes[name], schedulable=False, emptied=True)

    def return_node(self, name: str) -> None:
        """The node is back, empty."""
        with self._lock:
            self._nodes[name] = replace(self._nodes[name], schedulable=True, emptied=False)

    def running(self) -> tuple[TaskKey, ...]:
        with self._lock:
            return tuple(sorted(key for key, task in self._tasks.items() if task.phase is not TaskPhase.EXITED))

    def environment(self, key: TaskKey) -> Mapping[str, str]:
        """What the task was started with."""
        return next(launch.environment for launch in self.launches if launch.key == key)

    def _asked(self) -> threading.RLock:
        if not self.available:
            raise ClusterUnavailable("the fake cluster is switched off")
        return self._lock
