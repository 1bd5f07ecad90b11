"""Nodes, projects, rounds, logs, health and problems."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from optimus_contract.answers.jobs import JobState
from optimus_contract.message import About, Message
from optimus_contract.people import ProjectQuota


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResources(Message):
    cpu: float
    memory_bytes: int
    gpus: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Project(Message):
    """A project with its quota, and what that comes to on the cluster as it is."""

    name: str
    quota: ProjectQuota
    guaranteed: Annotated[NodeResources, About("what the quota comes to now")]
    used: Annotated[NodeResources, About("what its jobs have been given")]
    borrowed: Annotated[NodeResources, About("of that, what is beyond the guarantee")]
    jobs: Annotated[dict[JobState, int], About("its active jobs by state")]
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectList(Message):
    projects: list[Project]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Message):
    name: str
    schedulable: Annotated[bool, About("whether new tasks are placed there")]
    drained: Annotated[bool, About("whether an operator wants it empty: its tasks move elsewhere")] = False
    capacity: NodeResources
    used: NodeResources
    tasks: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeList(Message):
    nodes: list[Node]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownTask(Message):
    """A running task whose job the database does not know (docs/data-directory.md, backup and restore)."""

    task: str
    job_id: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster(Message):
    """The cluster in one look (`GET /v1/cluster`)."""

    capacity: Annotated[NodeResources, About("of all nodes, those that take no new tasks among them")]
    used: NodeResources
    jobs: dict[JobState, int]
    unknown_tasks: Annotated[
        list[UnknownTask], About("running tasks whose job the database does not know; `used` counts them")
    ]
    last_round_at: datetime | None
    policy: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Round(Message):
    id: int
    at: datetime
    trigger: str
    seconds: float
    phase_seconds: dict[str, float]
    n_jobs: int
    n_actions: int
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundList(Message):
    rounds: list[Round]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Log(Message):
    task: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogList(Message):
    logs: list[Log]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health(Message):
    """`/healthz` and `/readyz` when all is well; otherwise there is a problem document that says what is wrong."""

    status: Literal["alive", "ready"]
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageAmounts(Message):
    """What was used."""

    worker_hours: float
    core_hours: Annotated[float, About("of workers and servers, in CPU cores; on one machine these are its slots")]
    gpu_hours: float
    cost: Annotated[float | None, About("at the prices that the service is set to now; null: nothing has a price")]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageLine(UsageAmounts):
    """What the jobs of one owner in one project were given on one GPU type."""

    owner: Annotated[str | None, About("null: not known")]
    project: str
    gpu_type: Annotated[str | None, About("null: none")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage(Message):
    """Who used how much of the cluster in one month (`GET /v1/usage`)."""

    month: Annotated[str, About("in UTC", examples=("2026-11",))]
    until: Annotated[datetime, About("what is used after that is not in it")]
    total: UsageAmounts
    lines: Annotated[list[UsageLine], About("by project, owner and GPU type")]
