"""The machines of the cluster as a model, behind the service's own seam (`optimus_service.clusters.base.Cluster`).

Tasks are processes of the simulation that are started here; the models of workers, servers and coordinators run in
them. Each replica of the service has a view of its own, which may be cut off, and whose answers may be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from optimus_scheduler.model import Node, Resources, Task, TaskKey, TaskPhase, Trouble
from optimus_service.clusters.base import ClusterUnavailable, TaskLaunch, TaskObjection
from optimus_world.kernel import Crashed, Kernel, Process

KILLED, TERMINATED = 137, 143
GRACE_SECONDS = 30.0
"""Between SIGTERM and SIGKILL."""


@dataclass
class RunningTask:
    """A task and the process that it is."""

    launch: TaskLaunch
    process: Process
    task: Task
    started_at: float
    terminate: Callable[[], None] = lambda: None
    """What it does on SIGTERM."""
    is_stopping: bool = False


@dataclass
class Machines:
    """Nodes and tasks, which all replicas see."""

    kernel: Kernel
    all_nodes: dict[str, Node]
    run_task: Callable[[RunningTask], None]
    """Begins what the task does."""
    say: Callable[[str], None]
    started: Callable[[Process | None, TaskLaunch], None] = lambda *_: None
    """Is told of each task that is about to be started, and by which process."""
    exited: Callable[[RunningTask], None] = lambda _: None
    """Is told of each task that has ended."""
    tasks: dict[TaskKey, RunningTask] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    """Nodes that are lost."""
    unavailable: bool = False
    loses_answers: bool = False
    """Starts and stops are done, and say that they failed."""
    stale_seconds: float = 0.0
    """How old what `tasks` says may be: a watch that lags."""
    _seen: tuple[float, tuple[Task, ...]] = (-1e9, ())

    def nodes(self) -> tuple[Node, ...]:
        ordered = (self.all_nodes[name] for name in sorted(self.all_nodes))
        return tuple(replace(node, schedulable=node.name not in self.down) for node in ordered)

    def alive(self) -> list[RunningTask]:
        return [self.tasks[key] for key in sorted(self.tasks) if self.tasks[key].task.phase is not TaskPhase.EXITED]

    def used(self, node: str) -> Resources:
        """What tasks take there that have not exited."""
        total = Resources()
        for each in self.alive():
            if each.task.node == node:
                total += each.launch.resources
        return total

    def start(self, launch: TaskLaunch, by: Process | None) -> None:
        if launch.key in self.tasks:
            return
        self.started(by, launch)
        task = Task(launch.key, launch.node, TaskPhase.RUNNING, resources=launch.resources)
        running = RunningTask(launch, Process(launch.key.name), task, self.kernel.now)
        self.tasks[launch.key] = running
        if launch.node in self.down:
            self.exit(launch.key, None)
        elif not (self.used(launch.node)).fits_in(self.all_nodes[launch.node].capacity):
            self.exit(launch.key, None, Trouble("RefusedByNode", "the node has no room for it"))
        else:
            self.run_task(running)

    def stop(self, key: TaskKey, *, force: bool) -> None:
        running = self.tasks.get(key)
        if running is None or running.task.phase is TaskPhase.EXITED:
            return
        if force:
            self.exit(key, KILLED)
        elif not running.is_stopping:
            running.is_stopping = True
            self.kernel.after(GRACE_SECONDS, lambda: self.exit(key, KILLED))
            self.kernel.after(0.0, running.terminate, running.process)

    def exit(self, key: TaskKey, code: int | None, trouble: Trouble | None = None) -> None:
        """The task ends now. Nothing if it has ended."""
        running = self.tasks.get(key)
        if running is None or running.task.phase is TaskPhase.EXITED:
            return
        running.task = replace(running.task, phase=TaskPhase.EXITED, exit_code=code, trouble=trouble)
        self.kernel.kill(running.process)
        self.exited(running)

    def lose_node(self, name: str) -> None:
        """With all tasks on it, whose exit codes nobody knows."""
        self.down.add(name)
        for each in self.alive():
            if each.task.node == name:
                self.exit(each.task.key, None)

    def seen(self) -> tuple[Task, ...]:
        """What a watch shows: as of some time ago, if it lags."""
        at, tasks = self._seen
        if self.kernel.now - at >= self.stale_seconds:
            tasks = tuple(self.tasks[key].task for key in sorted(self.tasks))
            self._seen = self.kernel.now, tasks
        return tasks


class ClusterSeen:
    """A replica's `Cluster`."""

    def __init__(self, machines: Machines, strike: Callable[[], None]) -> None:
        """`strike`: called at each call that changes something; what was armed happens then."""
        self._machines = machines
        self._strike = strike

    def nodes(self) -> tuple[Node, ...]:
        self._asked()
        return self._machines.nodes()

    def tasks(self) -> tuple[Task, ...]:
        self._asked()
        return self._machines.seen()

    def start(self, launch: TaskLaunch) -> None:
        self._asked()
        self._strike()
        fiber = self._machines.kernel.current()
        self._machines.start(launch, None if fiber is None else fiber.process)
        self._answered()

    def stop(
        self,
        key: TaskKey,
        *,
        force: bool = False,
        with_all: bool = False,  # noqa: ARG002 - no service of this world does
    ) -> None:
        self._asked()
        self._strike()
        self._machines.stop(key, force=force)
        self._answered()

    def forget(self, keys: Iterable[TaskKey]) -> None:
        self._asked()
        for key in keys:
            running = self._machines.tasks.get(key)
            if running is not None and running.task.phase is TaskPhase.EXITED:
                del self._machines.tasks[key]

    def forget_logs(self, before: float) -> None:  # noqa: ARG002 - the seam's
        self._asked()

    def log_tail(self, key: TaskKey, max_bytes: int) -> str:  # noqa: ARG002 - the seam's
        self._asked()
        return "the model of a task prints nothing"

    def check_task(self, import_path: str, working_directory: str | None) -> str | None:  # noqa: ARG002 - the seam's
        return None

    def try_task(self, job: Mapping[str, Any]) -> TaskObjection | None:  # noqa: ARG002 - the seam's
        return None

    def remove_checkpoints(self, job: Mapping[str, Any], job_id: str) -> str | None:  # noqa: ARG002 - the seam's
        return None  # no job of a world keeps any at a URL

    def check_command(self, job: Mapping[str, Any]) -> TaskObjection | None:  # noqa: ARG002 - the seam's
        return None

    def coordinator_address(self, job_id: str) -> str | None:
        return f"{job_id}.jobs:1"

    def retain(self, job_ids: Collection[str]) -> None:  # noqa: ARG002 - the seam's
        self._asked()

    def close(self) -> None:
        """Nothing is held."""

    def _asked(self) -> None:
        self._machines.kernel.check_alive()
        if self._machines.unavailable:
            raise ClusterUnavailable("the cluster does not answer")

    def _answered(self) -> None:
        fiber = self._machines.kernel.current()
        if fiber is not None and not fiber.process.is_alive:
            raise Crashed
        if self._machines.loses_answers:
            raise ClusterUnavailable("the answer was lost")
