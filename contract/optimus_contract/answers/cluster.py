"""Nodes, projects, rounds, logs, health, problems, and what live views get."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from optimus_contract.answers.jobs import Interval, JobState, ListedState
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
    shrunk: Annotated[str | None, About("that this is less than the quota names, and why; null: it is not")] = None
    used: Annotated[NodeResources, About("what its jobs have been given")]
    borrowed: Annotated[
        NodeResources, About("of that, what is beyond the guarantee; a project that may not borrow gives it back")
    ]
    jobs: Annotated[
        dict[ListedState, int], About("its active jobs by state; those that wait for tasks on their way are `starting`")
    ]
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


# --- what live views get: one line per job, the cluster in one look, and both over time ------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine(Message):
    """One job in a list: small, as thousands of them may be sent."""

    id: str
    name: str
    project: str
    labels: dict[str, str]
    owner: str | None
    state: JobState
    reason: str | None
    message: str | None
    workers: int
    servers: int
    wanted_workers: int
    wanted_servers: int
    step: int
    loss: float | None
    progress: float | None
    remaining_seconds: Interval | None
    start_seconds: Annotated[Interval | None, About("from now, of a job that waits")]
    longer_than_predicted: bool
    finishing: Annotated[bool, About("its rule holds, or all steps that it announced are made: it saves and ends")]
    standstill: Annotated[
        str | None, About("why it makes no step, or may make none soon: it hangs, hung or failed, or lost a worker")
    ] = None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLine(Message):
    """The cluster in one look."""

    capacity: Annotated[NodeResources, About("of all nodes, those that take no new tasks among them")]
    used: Annotated[NodeResources, About("by the memberships of active jobs")]
    nodes: int
    cordoned: Annotated[int, About("of these, those that take no new tasks")]
    jobs: dict[JobState, int]
    left_out: Annotated[int, About("older active jobs, of which no line is told: the newest are")] = 0
    waiting_by_reason: dict[str, int]
    last_round_at: datetime | None
    last_round_error: str | None
    policy: str
    version: str
    cluster_error: Annotated[str | None, About("what is wrong when the cluster cannot be asked")]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySeries(Message):
    """One job over time."""

    id: str
    name: str
    held: Annotated[list[float], About("what it had in the mean from each moment to the next, and now at the last")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHistory(Message):
    """Who had how much, at evenly spaced moments (`GET /v1/cluster/history`)."""

    unit: Annotated[str, About("what `held` counts: `cpu_cores` or, on a cluster with GPUs, `gpus`")]
    capacity: float
    at: Annotated[list[float], About("POSIX seconds")]
    series: Annotated[list[HistorySeries], About("the jobs that held most, largest first")]
    others: Annotated[list[float], About("what all other jobs held together")]
    training: Annotated[list[float], About("how many jobs had tasks, in the same means, ...")]
    waiting: Annotated[list[float], About("... and how many had none")]
