"""Why a job has what it has, and what a plan would change."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from optimus_service.contract.basics import Body
from optimus_service.contract.jobs import AllocationBody, IntervalBody, JobStateName


class MarginalBody(Body):
    """Of the other jobs in the same round: the one that was granted a task with the least gain."""

    job_id: str
    name: str
    gain: float


class ExpectedBody(Body):
    """When a job is expected to start and to end; null where nothing can be said."""

    start_seconds: IntervalBody | None = Field(description="from now, of a job that waits; 0: with the next round")
    finish_seconds: IntervalBody | None = Field(description="from now, if it keeps what it has")
    finish_at: datetime | None = Field(description="null beyond the year 9999, too")


class RescaleEffectBody(Body):
    """What the newest change of size cost, and what it bought."""

    at: datetime
    before: AllocationBody
    after: AllocationBody
    stopped_seconds: float
    lost_steps: int
    steps_per_second_before: float | None = Field(description="measured with the size before")
    steps_per_second_after: float | None = Field(description="measured with the size after")
    saved_seconds: float | None = Field(description="training time saved so far, the stop taken off; may be negative")


class ExplanationBody(Body):
    """Why a job has what it has (`GET /v1/jobs/{id}/explanation`), from its latest decision. For ended jobs as well."""

    job_id: str
    state: JobStateName
    at: datetime | None = Field(description="when it was decided; null before the first round")
    reason: str | None = Field(description="reason code", examples=["BetterUsedElsewhere"])
    message: str = Field(description="one sentence for the job's owner")
    what_would_change_it: str = Field(description="what would have to happen for the job to get more")
    sentences: list[str] = Field(description="the whole explanation, to be read in this order")
    allocation: AllocationBody
    previous: AllocationBody
    gain: float | None = Field(description="marginal gain of the last task that it was granted")
    next_gain: float | None = Field(description="marginal gain that its next task would have had")
    marginal: MarginalBody | None
    confidence: float | None = Field(description="of the forecast behind the decision, 0 to 1")
    expected: ExpectedBody
    last_rescale: RescaleEffectBody | None
    troubles: list[str] = Field(
        default_factory=list,
        description="what keeps its tasks from running, as the cluster says",
        examples=[["digits-x7k2p-worker-1-0: ImagePull: no such image"]],
    )


class EffectBody(Body):
    """What a new job would do to one that is there."""

    job_id: str
    name: str
    before: AllocationBody = Field(description="what the next round would give it without the new job")
    after: AllocationBody
    finish_seconds_before: IntervalBody | None
    finish_seconds_after: IntervalBody | None


class PlanBody(Body):
    """What would happen if a job were submitted now (`POST /v1/plan`). Nothing has been stored."""

    allocation: AllocationBody = Field(description="what the next round would give it; it may grow later")
    reason: str
    message: str
    what_would_change_it: str
    sentences: list[str] = Field(description="all of this, to be read in this order")
    expected: ExpectedBody
    cost: IntervalBody | None = Field(description="from start to end with this size; null without prices or forecast")
    speed_from: str | None = Field(description="what the speed was predicted from; null: no speed is known")
    finished_runs: int = Field(description="finished jobs of the same task that the forecast learned from")
    confidence: float
    effects: list[EffectBody] = Field(description="jobs that would get another size")


class AllocationPointBody(Body):
    """The job's membership from this moment on."""

    at: datetime
    at_seconds: float = Field(description="since submission")
    membership_epoch: int
    step: int
    workers: int
    servers: int
    gpu_type: str | None
    global_batch: int | None = Field(default=None, description="of a job with an elastic batch")
    cause: str
    pause_seconds: float | None
    lost_steps: int


class AllocationListBody(Body):
    allocations: list[AllocationPointBody]
