"""Clusters to test, each behind the same small harness."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Protocol

from optimus_scheduler.model import Node, Resources, Role, Task, TaskKey, TaskPhase
from optimus_service.clusters.base import Cluster, TaskLaunch
from optimus_service.clusters.fake import FakeCluster
from optimus_service.clusters.local import LocalCluster, LocalClusterOptions

WAIT_SECONDS = 150.0
"""Longest wait for a condition: this only bounds a hang."""

OBEDIENT = ("/bin/sh", "-c", 'echo "started $OPTIMUS_TASK_NAME"; read -r code < "$FIFO"; exit "$code"')
"""A task that ends with the exit code that the test writes into its pipe."""


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    pause = Event()
    for _ in range(int(WAIT_SECONDS * 50)):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError(f"still not true: {what}")


def key_of(rank: int, role: Role = Role.WORKER, incarnation: int = 0, job_id: str = "job-1") -> TaskKey:
    return TaskKey(job_id, role, rank, incarnation)


class Harness(Protocol):
    """A cluster and what a test needs besides the seam."""

    cluster: Cluster

    def launch(self, key: TaskKey) -> TaskLaunch: ...

    def end(self, key: TaskKey, code: int) -> None:
        """The task ends by itself."""

    def close(self) -> None: ...


def phase_of(cluster: Cluster, key: TaskKey) -> TaskPhase | None:
    return next((task.phase for task in cluster.tasks() if task.key == key), None)


def task_of(cluster: Cluster, key: TaskKey) -> Task:
    return next(task for task in cluster.tasks() if task.key == key)


def wait_for_phase(cluster: Cluster, key: TaskKey, phase: TaskPhase | None) -> None:
    wait_until(f"{key.name} is {phase}", lambda: phase_of(cluster, key) == phase)


class FakeHarness:
    def __init__(self) -> None:
        self.fake = FakeCluster([Node("local-0", Resources(4.0, 2**30)), Node("local-1", Resources(4.0, 2**30))])
        self.cluster: Cluster = self.fake

    def launch(self, key: TaskKey) -> TaskLaunch:
        self.fake.print_line(key, f"started {key.name}")
        return TaskLaunch(key, "local-0", Resources(1.0, 2**20), {"OPTIMUS_TASK_NAME": key.name})

    def end(self, key: TaskKey, code: int) -> None:
        self.fake.exit(key, code)

    def close(self) -> None:
        self.cluster.close()


@dataclass
class LocalHarness:
    """A local cluster whose tasks are small shell scripts."""

    directory: Path
    command: tuple[str, ...] = OBEDIENT
    n_slots: int = 8
    n_nodes: int = 2
    n_cores: float | None = None
    clusters: list[LocalCluster] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cluster: Cluster = self.open()

    def open(self, command: tuple[str, ...] | None = None) -> LocalCluster:
        """Another instance on the same directory, as after a restart of the service."""
        options = LocalClusterOptions(
            self.directory / "cluster",
            n_slots=self.n_slots,
            n_nodes=self.n_nodes,
            task_command=command or self.command,
            n_cores=self.n_cores,
        )
        cluster = LocalCluster(options)
        self.clusters.append(cluster)
        return cluster

    def fifo(self, key: TaskKey) -> Path:
        path = self.directory / f"{key.name}.fifo"
        if not path.exists():
            os.mkfifo(path)
        return path

    def launch(self, key: TaskKey, **environment: str) -> TaskLaunch:
        variables = {"OPTIMUS_TASK_NAME": key.name, "FIFO": str(self.fifo(key)), **environment}
        return TaskLaunch(key, "local-0", Resources(1.0, 2**20), variables, str(self.directory))

    def end(self, key: TaskKey, code: int) -> None:
        wait_for_phase(self.cluster, key, TaskPhase.RUNNING)
        self.fifo(key).write_text(f"{code}\n")

    def close(self) -> None:
        """End every task that the test left, and collect all processes."""
        last = self.open()

        def all_ended() -> bool:
            alive = [task.key for task in last.tasks() if task.phase is not TaskPhase.EXITED]
            for key in alive:
                last.stop(key, force=True)
            return not alive

        def all_collected() -> bool:
            for cluster in self.clusters:
                cluster.tasks()

            # Not zombies alone: a supervisor that has not ended yet would become one when nobody asks any more.
            return not zombies() and not any(cluster._children for cluster in self.clusters)

        wait_until("all tasks of the test are gone", all_ended)
        # A supervisor lives a moment longer than its task: it has to be asked for again.
        wait_until("no zombie is left", all_collected)


def zombies() -> list[str]:
    """Ended children of this process that nobody asked for."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            fields = stat.rpartition(")")[2].split()
            if fields[0] == "Z" and int(fields[1]) == os.getpid():
                found.append(stat)
    return found
