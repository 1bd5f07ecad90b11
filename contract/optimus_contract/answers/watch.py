"""What live views get: one line per job, the cluster in one look, and both over time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from optimus_contract.answers.cluster import NodeResources
from optimus_contract.answers.jobs import Interval, JobState
from optimus_contract.message import About, Message


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
    standstill: Annotated[str | None, About("why it makes no step now: it hangs, or a worker is replaced")] = None
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
    held: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHistory(Message):
    """Who had how much, at evenly spaced moments (`GET /v1/cluster/history`)."""

    unit: Annotated[str, About("what `held` counts: `cpu_cores` or, on a cluster with GPUs, `gpus`")]
    capacity: float
    at: Annotated[list[float], About("POSIX seconds")]
    series: Annotated[list[HistorySeries], About("the jobs that held most, largest first")]
    others: Annotated[list[float], About("what all other jobs held together")]
    training: Annotated[list[int], About("jobs with tasks")]
    waiting: Annotated[list[int], About("jobs without")]
