"""The simulated cluster: nodes that may be down, and the tasks on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from optimus_scheduler.model import (
    JobSpec,
    Node,
    PlacedTask,
    Resources,
    Role,
    Task,
    TaskKey,
    TaskPhase,
)
from optimus_scheduler.place.free_capacity import rack_of
from optimus_simulator.truth.truth import Shape

KILLED = 137
"""Exit code of a task that failed: 128 + SIGKILL."""


class Cluster:
    """Nodes and tasks. Never holds more than its nodes offer: that is asserted whenever a job's tasks change."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._free = {node.name: node.capacity for node in self._nodes.values()}
        self._tasks: dict[str, dict[TaskKey, Task]] = {}
        self._specs: dict[str, JobSpec] = {}
        self._seen: tuple[Node, ...] | None = None
        self._listed: dict[str, tuple[Task, ...]] = {}

    # --- what can be seen ----------------------------------------------------------------------------------------

    @property
    def nodes(self) -> tuple[Node, ...]:
        if self._seen is None:
            self._seen = tuple(self._nodes.values())
        return self._seen

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Of all jobs; each as it is, exited or not."""
        return tuple(task for tasks in self._listed.values() for task in tasks)

    def racks_of(self, tasks: Iterable[PlacedTask]) -> frozenset[tuple[str, str]]:
        """Zone and rack of each node that these tasks are on, as far as it has labels for them."""
        return frozenset(rack_of(self._nodes[placed.node]) for placed in tasks)

    # --- tasks come and go ---------------------------------------------------------------------------------------

    def add_job(self, job_id: str, spec: JobSpec) -> None:
        self._specs[job_id] = spec
        self._tasks[job_id] = {}

    def put_on(self, job_id: str, gpu_type: str | None) -> None:
        """Workers that are started from now on take GPUs of this type; those there keep theirs."""
        self._specs[job_id] = self._specs[job_id].on(gpu_type)

    def remove_job(self, job_id: str) -> None:
        """The job has ended, and its tasks with it."""
        self._keep(job_id, lambda _: False)
        for mapping in (self._specs, self._tasks, self._listed):
            mapping.pop(job_id, None)

    def let_go(self, job_id: str, wanted: Iterable[PlacedTask]) -> None:
        """Tasks that are not wanted leave; the coordinator with the last of them."""
        keys = {placed.key for placed in wanted}
        self._keep(job_id, lambda key: key in keys or (bool(keys) and key.role is Role.COORDINATOR))

    def start(self, placed: PlacedTask) -> None:
        """Idempotent, as on a real cluster."""
        tasks = self._tasks[placed.key.job_id]
        if placed.key in tasks:
            return
        self._take(placed)
        gpu_type = self._specs[placed.key.job_id].gpu_type if placed.key.role is Role.WORKER else None
        tasks[placed.key] = Task(placed.key, placed.node, TaskPhase.RUNNING, gpu_type=gpu_type)
        self._list(placed.key.job_id)

    def stop(self, key: TaskKey) -> None:
        if key.job_id in self._tasks:
            self._keep(key.job_id, lambda known: known != key)

    def _keep(self, job_id: str, stays: Callable[[TaskKey], bool]) -> None:
        tasks = self._tasks.get(job_id, {})
        for key in [key for key in tasks if not stays(key)]:
            task = tasks.pop(key)
            if task.phase is not TaskPhase.EXITED:
                self._give_back(task)
        self._list(job_id)

    # --- faults --------------------------------------------------------------------------------------------------

    def fail_task(self, key: TaskKey) -> bool:
        """The process dies; False when it is not there any more."""
        task = self._tasks.get(key.job_id, {}).get(key)
        if task is None or task.phase is TaskPhase.EXITED:
            return False
        self._exit(task, KILLED)
        return True

    def fail_node(self, name: str) -> set[str]:
        """The node is lost with all its tasks; the jobs that had some."""
        self._set(name, schedulable=False)
        lost = [task for tasks in self._tasks.values() for task in tasks.values() if _is_live_on(task, name)]
        for task in lost:
            self._exit(task, None)
        return {task.key.job_id for task in lost}

    def drain_node(self, name: str) -> None:
        """The node will be lost soon: its tasks are to move."""
        self._set(name, schedulable=False, emptied=True)

    def repair_node(self, name: str) -> None:
        self._set(name, schedulable=True)

    def _exit(self, task: Task, code: int | None) -> None:
        self._give_back(task)
        self._tasks[task.key.job_id][task.key] = replace(task, phase=TaskPhase.EXITED, exit_code=code)
        self._list(task.key.job_id)

    def _set(self, name: str, *, schedulable: bool, emptied: bool = False) -> None:
        self._nodes[name] = replace(self._nodes[name], schedulable=schedulable, emptied=emptied)
        self._seen = None

    # --- room ----------------------------------------------------------------------------------------------------

    def _take(self, placed: PlacedTask) -> None:
        need = self._need(placed.key)
        available = self._free[placed.node]
        assert need.fits_in(available), f"{placed.node} has no room for {placed.key.name}"
        self._free[placed.node] = available - need

    def _give_back(self, task: Task) -> None:
        self._free[task.node] = self._free[task.node] + self._need(task.key, task.gpu_type)

    def _need(self, key: TaskKey, gpu_type: str | None = None) -> Resources:
        return self._specs[key.job_id].on(gpu_type).need(key.role)

    def _list(self, job_id: str) -> None:
        self._listed[job_id] = tuple(self._tasks.get(job_id, {}).values())


def _is_live_on(task: Task, node: str) -> bool:
    return task.node == node and task.phase is not TaskPhase.EXITED


def shape_of(tasks: Iterable[PlacedTask]) -> Shape:
    """How many tasks of each kind share a node, the fullest node first: rings and servers do not know node names."""
    counts: dict[str, list[int]] = {}
    for placed in tasks:
        counts.setdefault(placed.node, [0, 0])[placed.key.role is Role.SERVER] += 1
    return tuple(sorted(((workers, servers) for workers, servers in counts.values()), key=_size, reverse=True))


def _size(counts: tuple[int, int]) -> tuple[int, int]:
    return counts[0] + counts[1], counts[0]
