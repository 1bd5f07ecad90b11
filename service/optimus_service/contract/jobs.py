"""Jobs as they are answered, their events and decisions."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from optimus_service.contract.basics import MAX_COUNT, Body, Count, Measured
from optimus_service.contract.job_spec import JobSpecBody

JobStateName = Literal["queued", "running", "paused", "succeeded", "failed", "cancelled"]


class AllocationBody(Body):
    workers: int
    servers: int
    gpu_type: str | None = None


class IntervalBody(Body):
    """A prediction with its 80 % interval."""

    mean: float
    low: float | None
    high: float | None


class JobProfileBody(Body):
    """What the job's tasks know about it (`PUT /v1/jobs/{id}/profile`)."""

    n_parameters: Count
    n_examples: Count = Field(description="training examples in one epoch")
    global_batch_size: int = Field(ge=1, le=MAX_COUNT)
    steps_per_epoch: float = Field(gt=0, le=MAX_COUNT, allow_inf_nan=False)


class NetworkBody(Body):
    """The layers of what a job trains (`PUT /v1/jobs/{id}/network`): speeds are calculated from them at first."""

    format: Literal["optimus-network/1"]
    name: str = Field(default="network", max_length=300)
    layers: list[dict[str, Any]] = Field(min_length=1, max_length=10_000, description="see docs/study.md")


class JobResultBody(Body):
    """How the job ended (`POST /v1/jobs/{id}/result`)."""

    outcome: Literal["succeeded", "failed"]
    step: Count
    final_loss: Measured | None = Field(default=None, description="may be NaN or infinite, and is null in answers then")
    metrics: dict[str, Measured | None] = Field(
        default_factory=dict, max_length=100, examples=[{"test_accuracy": 0.97}]
    )
    checkpoint: str | None = Field(default=None, max_length=4096)
    model: str | None = Field(default=None, max_length=4096, description="path of the trained model's state_dict")
    error: str | None = Field(default=None, max_length=20_000, description="with `failed`: what went wrong")
    permanent: bool = Field(default=False, description="with `failed`: a retry would fail likewise, so none is made")
    attempt: int | None = Field(
        default=None,
        ge=0,
        le=MAX_COUNT,
        description="which attempt ended (`OPTIMUS_ATTEMPT`): the end of an older one is ignored; default: the present",
    )


class JobUsageBody(Body):
    """What a job's workers take of their machines, all together; `/v1/jobs/{id}/tasks` has each task."""

    workers: int = Field(description="that told it")
    cpu_cores: float
    memory_bytes: float
    gpu_utilization: float | None = Field(description="mean over workers, 0 to 1")
    gpu_memory_bytes: float | None


class TaskUsageBody(Body):
    """What one task took of its machine when it told it last."""

    at: datetime = Field(description="when the service heard it")
    cpu_cores: float = Field(description="mean since the time before")
    memory_bytes: float = Field(description="resident")
    gpu_utilization: float | None = Field(default=None, description="0 to 1; of a shared GPU the whole")
    gpu_memory_bytes: float | None = None


class TaskBody(Body):
    """One task of a job that has not ended."""

    name: str
    role: Literal["worker", "server", "coordinator"]
    rank: int = Field(description="the one in its name; a worker's in the membership may be another")
    node: str
    gpu_type: str | None
    started_at: datetime
    usage: TaskUsageBody | None = Field(description="none: it has told nothing lately")


class TaskListBody(Body):
    tasks: list[TaskBody]


class JobBody(Body):
    """A job as the API shows it."""

    id: str
    name: str
    project: str
    state: JobStateName
    directive: Literal["run", "pause", "finish", "cancel"]
    spec: JobSpecBody
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    jct_seconds: float | None = Field(description="job completion time: submission to end; None while active")
    first_step: int | None
    step: int
    epoch: float | None
    loss: float | None
    steps_per_second: float | None = Field(description="measured over the last half minute")
    wanted: AllocationBody
    running: AllocationBody = Field(description="what the current membership has")
    membership_epoch: int
    global_batch: int | None = Field(default=None, description="of a job with an elastic batch: what it is to have")
    progress: float | None = Field(description="step / predicted total steps, 0 to 1")
    remaining_steps: IntervalBody | None
    remaining_seconds: IntervalBody | None
    reason: str | None = Field(description="reason code of the last decision")
    message: str | None
    profile: JobProfileBody | None
    result: JobResultBody | None
    failure: str | None
    attempt: int = Field(default=0, description="how often training began anew from a checkpoint")
    retries: int = Field(default=0, description="how many of these were retries after an error, since the last resume")
    retry_at: datetime | None = Field(default=None, description="paused after an error: when it may go on")
    last_error: str | None = Field(default=None, description="what the job's code raised last, in one line")
    rescales: int = Field(description="membership changes while training")
    usage: JobUsageBody | None = None
    noise_scale: float | None = Field(default=None, description="of its gradients, in examples; see docs/training.md")


class JobListBody(Body):
    jobs: list[JobBody]
    next_cursor: str | None


class EventBody(Body):
    id: int
    at: datetime
    type: str = Field(examples=["JobSubmitted", "MembershipChanged", "TaskExited"])
    message: str
    data: dict[str, Any]


class EventListBody(Body):
    events: list[EventBody]
    next_cursor: str | None


class DecisionBody(Body):
    round_id: int
    at: datetime
    allocation: AllocationBody
    previous: AllocationBody
    reason: str
    message: str
    gain: float | None
    next_gain: float | None
    batch: int | None = Field(default=None, description="the global batch, of a job with an elastic one")
    forecast: dict[str, Any]


class DecisionListBody(Body):
    decisions: list[DecisionBody]
    next_cursor: str | None
