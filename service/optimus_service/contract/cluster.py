"""Nodes, projects, rounds, health and problems."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from optimus_service.contract.basics import Body
from optimus_service.contract.job_spec import GpuType, SizeText, parse_size
from optimus_service.contract.jobs import JobStateName
from optimus_service.contract.predictions import PredictionsBody


class QuotaBody(Body):
    """What a project is guaranteed of the cluster (`PUT /v1/projects/{name}`).

    A `share` of everything, amounts of single resources, or both: an amount overrules the share for its resource.
    Cores and memory that are not named follow the largest part that is.
    """

    share: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False, examples=[0.25])
    cpu: float | None = Field(default=None, ge=0, le=1e9, allow_inf_nan=False, description="CPU cores")
    memory_bytes: int | None = Field(
        default=None, ge=0, le=2**60, description="bytes, or a string like 512Gi", examples=["512Gi"]
    )
    gpus: dict[GpuType, Annotated[int, Field(ge=0, le=10**6)]] = Field(
        default_factory=dict,
        max_length=50,
        description="by type",
        examples=[{"a100": 8}],
        json_schema_extra={"propertyNames": {"maxLength": 63}},
    )
    may_borrow: bool = Field(default=True, description="whether it may have more than that while others leave it idle")

    @field_validator(
        "memory_bytes", mode="before", json_schema_input_type=Annotated[int, Field(ge=0, le=2**60)] | SizeText | None
    )
    @classmethod
    def _parse_size(cls, value: object) -> object:
        return parse_size(value)

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.share is None and self.cpu is None and self.memory_bytes is None and not self.gpus:
            raise ValueError("give at least one of share, cpu, memory_bytes, gpus")
        return self


class ProjectBody(Body):
    """A project with its quota, and what that comes to on the cluster as it is."""

    name: str
    quota: QuotaBody
    guaranteed: NodeResourcesBody = Field(description="what the quota comes to now")
    used: NodeResourcesBody = Field(description="what its jobs have been given")
    borrowed: NodeResourcesBody = Field(description="of that, what is beyond the guarantee")
    jobs: dict[JobStateName, int] = Field(description="its active jobs by state")
    updated_at: datetime


class ProjectListBody(Body):
    projects: list[ProjectBody]


class NodeResourcesBody(Body):
    cpu: float
    memory_bytes: int
    gpus: dict[str, int]


class NodeBody(Body):
    name: str
    schedulable: bool
    capacity: NodeResourcesBody
    used: NodeResourcesBody
    tasks: list[str]


class NodeListBody(Body):
    nodes: list[NodeBody]


class UnknownTaskBody(Body):
    """A running task whose job the database does not know (docs/operate.md, backup and restore)."""

    task: str
    job_id: str
    node: str


class ClusterBody(Body):
    """The cluster in one look (`GET /v1/cluster`)."""

    capacity: NodeResourcesBody
    used: NodeResourcesBody
    jobs: dict[JobStateName, int]
    unknown_tasks: list[UnknownTaskBody] = Field(
        description="running tasks whose job the database does not know; `used` counts them"
    )
    last_round_at: datetime | None
    policy: str
    version: str


class RoundBody(Body):
    id: int
    at: datetime
    trigger: str
    seconds: float
    phase_seconds: dict[str, float]
    n_jobs: int
    n_actions: int
    error: str | None


class RoundListBody(Body):
    rounds: list[RoundBody]
    next_cursor: str | None


class LogBody(Body):
    task: str
    text: str


class LogListBody(Body):
    logs: list[LogBody]


class HealthBody(Body):
    """`/healthz` and `/readyz` when all is well; otherwise there is a problem document that says what is wrong."""

    status: Literal["alive", "ready"]
    version: str


class ProblemErrorBody(Body):
    field: str
    message: str


class ProblemBody(Body):
    """RFC 9457 problem document (`application/problem+json`)."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[ProblemErrorBody] = Field(default=[])
    request_id: str | None = None


PredictionsBody.model_rebuild()
