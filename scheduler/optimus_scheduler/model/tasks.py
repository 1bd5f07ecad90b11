"""Workers and servers: how many a job has, which they are, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from optimus_scheduler.model.enums import Role, TaskPhase
from optimus_scheduler.model.resources import Resources


class Allocation(NamedTuple):
    """How many workers and parameter servers a job has, and on which GPU type (None: CPU only).

    A tuple, as rounds compare thousands of them and look them up.
    """

    workers: int
    servers: int
    gpu_type: str | None = None

    @property
    def is_empty(self) -> bool:
        return self.workers == 0 and self.servers == 0


NOTHING = Allocation(0, 0)


class TaskKey(NamedTuple):
    """Names one task. A replacement of the same role and rank has a higher incarnation.

    A tuple, as rounds look tens of thousands of them up and sort them.
    """

    job_id: str
    role: Role
    rank: int
    incarnation: int = 0

    @property
    def name(self) -> str:
        """Unique and stable, also a valid Kubernetes pod name for the job ids that the service gives out."""
        return f"{self.job_id}-{self.role.value}-{self.rank}-{self.incarnation}"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why the cluster cannot run a task, or what it did to it. Words for people; no decision depends on it."""

    code: str
    """One of a closed list of each cluster, such as `ImagePull` or `Evicted` (docs/kubernetes-failures.md)."""
    message: str


@dataclass(frozen=True, slots=True)
class Task:
    """One task as it was observed on the cluster."""

    key: TaskKey
    node: str
    phase: TaskPhase
    exit_code: int | None = None
    """With `EXITED`: what it exited with, None when unknown (a node that was lost)."""
    unwanted_since: float | None = None
    """When the task left the wanted set; None while it is wanted."""
    gpu_type: str | None = None
    """What its GPUs are; None: none, or not known."""
    trouble: Trouble | None = None
    resources: Resources | None = None
    """What it was started with, as the cluster reports; None: not known. Of jobs that are known, their specification
    says it."""


class PlacedTask(NamedTuple):
    """One task that should exist, and where. A tuple, like `TaskKey`."""

    key: TaskKey
    node: str
