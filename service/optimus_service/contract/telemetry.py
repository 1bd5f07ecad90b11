"""What workers and coordinators send and ask."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from optimus_service.contract.basics import (
    MAX_COUNT,
    MAX_METRICS,
    MAX_SAMPLES_PER_POST,
    MAX_TASKS,
    Body,
    Count,
    Duration,
    Measured,
    MetricName,
    PosixSeconds,
    TaskName,
)


class UsageBody(Body):
    """What one task takes of its machine, since it told it last."""

    cpu_cores: float = Field(ge=0, le=1e6, allow_inf_nan=False, description="mean")
    memory_bytes: Count = Field(description="resident")
    gpu_utilization: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    gpu_memory_bytes: Count | None = Field(default=None, description="of this process")


class GradientsBody(Body):
    """Moving averages of unbiased estimates; negative while noise hides what is estimated."""

    square: float = Field(allow_inf_nan=False, description="|G|², the squared norm of the true gradient")
    variance: float = Field(allow_inf_nan=False, description="tr(Σ), the variance of one example's gradient")


class SampleBody(Body):
    """One telemetry record: `n_steps` consecutive steps of one worker that end with step `step`."""

    membership_epoch: int = Field(ge=1, le=MAX_COUNT)
    rank: int = Field(ge=0, lt=MAX_TASKS)
    sequence: Count = Field(description="counts the records of this rank in this membership epoch")
    workers: int = Field(ge=1, le=MAX_TASKS)
    servers: int = Field(ge=0, le=MAX_TASKS)
    at: PosixSeconds = Field(description="POSIX seconds at the end of the last step")
    step: Count = Field(description="steps of the job completed at the end of this record")
    n_steps: int = Field(default=1, ge=1, le=10**6)
    updates: int | None = Field(
        default=None, ge=1, le=10**6, description="elastic batch: updates of the parameters; `n_steps` is their worth"
    )
    global_batch: int | None = Field(
        default=None, ge=1, le=MAX_COUNT, description="elastic batch: examples of each update, over all workers"
    )
    data_epoch: float = Field(ge=0, le=MAX_COUNT, allow_inf_nan=False, description="passes over the data so far")
    loss: Measured = Field(description="mean over the examples of these steps; may be NaN or infinite")
    n_examples: Count
    seconds: Duration = Field(description="wall time of these steps")
    data_seconds: Duration = 0
    compute_seconds: Duration = 0
    push_seconds: Duration = 0
    wait_seconds: Duration = 0
    pull_seconds: Duration = 0
    sent_bytes: Count = 0
    received_bytes: Count = 0
    staleness: float | None = Field(
        default=None, ge=0, le=MAX_COUNT, allow_inf_nan=False, description="mean, in steps; async mode"
    )
    usage: UsageBody | None = None
    gradients: GradientsBody | None = Field(default=None, description="with `gradient_statistics`")
    metrics: dict[MetricName, Measured] | None = Field(
        default=None, max_length=MAX_METRICS, description="figures of an evaluation after the last of these steps"
    )

    @model_validator(mode="after")
    def _updates_have_a_batch(self) -> Self:
        if (self.updates is None) != (self.global_batch is None):
            raise ValueError("updates and global_batch go together")
        return self

    @model_validator(mode="after")
    def _rank_exists(self) -> Self:
        if self.rank >= self.workers:
            raise ValueError(f"rank ({self.rank}) must be below workers ({self.workers})")
        return self


class TaskUsageReportBody(Body):
    """What a server or the coordinator takes of its machine; workers tell it in their samples."""

    task: TaskName
    usage: UsageBody


class TelemetryBody(Body):
    """What workers measured (`samples`), or what other tasks use (`tasks`); at least one of either."""

    samples: list[SampleBody] | None = Field(default=None, min_length=1, max_length=MAX_SAMPLES_PER_POST)
    tasks: list[TaskUsageReportBody] | None = Field(
        default=None, min_length=1, max_length=MAX_TASKS + 1, description="the newest word of each counts"
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.samples is None and self.tasks is None:
            raise ValueError("samples or tasks are required")
        return self


class IgnoredSampleBody(Body):
    index: int
    why: Literal["duplicate", "old_membership", "unknown_membership"]


class TelemetryAnswerBody(Body):
    accepted: int
    ignored: list[IgnoredSampleBody]


class WantedTaskBody(Body):
    name: str
    role: Literal["worker", "server"]
    rank: int


class WantedBody(Body):
    """What a job's coordinator should have (`GET /v1/jobs/{id}/membership`, a long poll)."""

    generation: int = Field(description="grows with every change of what is wanted")
    directive: Literal["run", "pause", "finish", "cancel"]
    tasks: list[WantedTaskBody]
    global_batch: int | None = Field(default=None, description="of a job with an elastic batch: examples of a step")
    membership_epoch: int = Field(
        default=0,
        ge=0,
        description="the highest that was reported; a coordinator without a journal goes on after it",
    )


class MembershipReportBody(Body):
    """A membership epoch that a coordinator has formed (`POST /v1/jobs/{id}/membership`); again is harmless."""

    epoch: int = Field(ge=1, le=MAX_COUNT)
    generation: Count = Field(description="the wanted generation that it answers")
    at: PosixSeconds
    step: Count = Field(description="steps completed when it began")
    workers: list[TaskName] = Field(max_length=MAX_TASKS, description="task names by rank")
    servers: list[TaskName] = Field(max_length=MAX_TASKS)
    cause: Literal["start", "rescale", "batch", "worker_lost", "server_lost", "coordinator_restart", "resume", "pause"]
    global_batch: int | None = Field(
        default=None, ge=1, le=MAX_COUNT, description="elastic batch: examples of each of its steps"
    )
    pause_seconds: Duration | None = Field(default=None, description="training stood still")
    lost_steps: Count = Field(default=0, description="steps rolled back")
    message: str | None = Field(default=None, max_length=2000)
