"""Bodies for those who watch: one line per job, the cluster in one look, and both over time."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from optimus_service.contract import Body, IntervalBody, JobStateName, NodeResourcesBody


class JobLineBody(Body):
    """One job in a list: small, as thousands of them may be sent."""

    id: str
    name: str
    project: str
    state: JobStateName
    reason: str | None
    message: str | None
    workers: int
    servers: int
    wanted_workers: int
    wanted_servers: int
    step: int
    loss: float | None
    progress: float | None
    remaining_seconds: IntervalBody | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class ClusterLineBody(Body):
    """The cluster in one look."""

    capacity: NodeResourcesBody
    used: NodeResourcesBody = Field(description="by the memberships of active jobs")
    nodes: int
    cordoned: int
    jobs: dict[JobStateName, int]
    waiting_by_reason: dict[str, int]
    last_round_at: datetime | None
    last_round_error: str | None
    policy: str
    version: str
    cluster_error: str | None = Field(description="what is wrong when the cluster cannot be asked")


class HistorySeriesBody(Body):
    """One job over time."""

    id: str
    name: str
    held: list[float]


class ClusterHistoryBody(Body):
    """Who had how much, at evenly spaced moments (`GET /v1/cluster/history`)."""

    unit: str = Field(description="what `held` counts: `cpu_cores` or, on a cluster with GPUs, `gpus`")
    capacity: float
    at: list[float] = Field(description="POSIX seconds")
    series: list[HistorySeriesBody] = Field(description="the jobs that held most, largest first")
    others: list[float] = Field(description="what all other jobs held together")
    training: list[int] = Field(description="jobs with tasks")
    waiting: list[int] = Field(description="jobs without")
