"""Bodies of the REST API: what is accepted and what is answered. Field names are the vocabulary of docs/glossary.md.

Everything here is data and validation: no decisions, no database. Unknown fields are refused everywhere.
JSON has no NaN: in requests a loss may also be one of the strings "NaN", "Infinity", "-Infinity"; in answers a number
that is not finite is null.
"""

from __future__ import annotations

import json
import math
import re
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, field_validator, model_validator

MAX_TASKS = 1024
"""Workers (or servers) that one job may ask for."""
MAX_SAMPLES_PER_POST = 1000
MAX_BODY_BYTES = 1_048_576
MAX_COUNT = 2**53
"""Largest step, byte count and the like: beyond it a JSON reader with doubles would round."""
MAX_POSIX_SECONDS = 1e11
"""Latest moment that is accepted, in the year 5138: within what dates can say."""
MAX_SPEC_BYTES = 100_000
"""A job's specification as JSON: tasks get it in one environment variable, which Linux limits to 128 KiB."""

_SIZE = re.compile(r"^\s*(\d{1,16}(?:\.\d{1,16})?)\s*(|k|M|G|T|Ki|Mi|Gi|Ti)B?\s*$")
_UNIT_BYTES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNIT_BYTES |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


class Body(BaseModel):
    """Base of all bodies: unknown fields are errors, values are immutable and of the type that is named.

    Strict: `"3"` and `true` are no numbers. Read leniently, `max: true` would silently be a job of one worker.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
PosixSeconds = Annotated[float, Field(ge=0, le=MAX_POSIX_SECONDS, allow_inf_nan=False)]
Duration = Annotated[float, Field(ge=0, le=MAX_POSIX_SECONDS, allow_inf_nan=False)]
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def _named_number(value: object) -> object:
    return float(value) if isinstance(value, str) and value in _NOT_FINITE else value


Measured = Annotated[float, BeforeValidator(_named_number)]
"""A measured number, which may be NaN or infinite."""
MetricName = Annotated[str, Field(min_length=1, max_length=100)]
MAX_METRICS = 20
"""Figures of one evaluation."""
TaskName = Annotated[str, Field(min_length=1, max_length=253)]


# --- jobs ------------------------------------------------------------------------------------------------------------


def parse_size(value: object) -> object:
    """A size like `512Mi` as bytes; anything but text as it is. Raises `ValueError`."""
    if not isinstance(value, str):
        return value
    match = _SIZE.match(value)
    if match is None:
        raise ValueError("expected bytes or a size like 512Mi or 2Gi")
    return int(float(match[1]) * _UNIT_BYTES[match[2]])


class ResourcesBody(Body):
    """Resources of one task."""

    cpu: float = Field(default=1.0, ge=0, le=4096, allow_inf_nan=False, description="CPU cores")
    memory_bytes: int = Field(
        default=512 * 2**20, ge=0, le=2**50, description="bytes, or a string like 512Mi", examples=[536870912, "512Mi"]
    )
    gpus: int = Field(default=0, ge=0, le=64, description="GPUs of one task; of which type: `gpu_types`")

    @field_validator("memory_bytes", mode="before")
    @classmethod
    def _parse_size(cls, value: object) -> object:
        return parse_size(value)


class TaskDemandBody(Body):
    """How many workers (or servers) the job may have, and what one of them needs."""

    min: int = Field(default=1, ge=1, le=MAX_TASKS)
    max: int = Field(default=16, ge=1, le=MAX_TASKS)
    resources: ResourcesBody = ResourcesBody()

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) must not be above max ({self.max})")
        return self


class ServerDemandBody(TaskDemandBody):
    """How many parameter servers the job may have, none for all-reduce, and what one of them needs."""

    min: int = Field(default=1, ge=0, le=MAX_TASKS)
    max: int = Field(default=16, ge=0, le=MAX_TASKS)


class LossDecreaseBody(Body):
    """Converged when the fitted loss falls by less than `below` per epoch, for `patience_epochs` epochs in a row."""

    below: float = Field(gt=0, lt=1, allow_inf_nan=False, examples=[0.01])
    relative_to: Literal["previous", "maximum"] = "previous"
    patience_epochs: int = Field(default=3, ge=1, le=1000)


class TargetMetricBody(Body):
    """A figure of the job's own evaluation that has to rise or fall to a value."""

    name: str = Field(min_length=1, max_length=100, examples=["test_accuracy"], description="as `evaluate` names it")
    at_least: float | None = Field(default=None, allow_inf_nan=False, examples=[0.95])
    at_most: float | None = Field(default=None, allow_inf_nan=False)
    best: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="best value of a metric that rises; default: 1, for targets above 1 it is 100",
    )

    @model_validator(mode="after")
    def _one_direction(self) -> Self:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("give one of at_least and at_most")
        if self.best is not None and (self.at_least is None or self.best < self.at_least):
            raise ValueError("best goes with at_least and must not be below it")
        return self


class ConvergenceBody(Body):
    """The job is done as soon as the first of the given conditions holds."""

    loss_decrease: LossDecreaseBody | None = None
    target_loss: float | None = Field(default=None, allow_inf_nan=False)
    max_epochs: float | None = Field(default=None, gt=0, le=1e9, allow_inf_nan=False)
    max_steps: int | None = Field(default=None, gt=0, le=10**12)
    max_seconds: float | None = Field(default=None, gt=0, le=1e9, allow_inf_nan=False)
    target_metric: TargetMetricBody | None = None
    max_cost: float | None = Field(
        default=None, gt=0, le=1e12, allow_inf_nan=False, description="money, at the prices that the service is set to"
    )

    @model_validator(mode="after")
    def _something(self) -> Self:
        if all(getattr(self, name) is None for name in type(self).model_fields):
            raise ValueError("give at least one of " + ", ".join(type(self).model_fields))
        return self


NameField = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]


def _task_argument(value: object) -> str | int | float | bool:
    """One check instead of a union's four, so that one message says what is allowed."""
    if not isinstance(value, str | int | float) or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError("must be a string, a finite number or a boolean")
    return value


GpuType = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")]


def deadline_moment(text: str) -> datetime:
    """A date and time with its UTC offset. Raises `ValueError`."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("expected a date and time like 2026-12-24T18:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError("say which time it is: end with Z (UTC) or with an offset like +01:00")
    return moment


TaskArgument = Annotated[str | int | float | bool, PlainValidator(_task_argument, str | int | float | bool)]


class JobSpecBody(Body):
    """A training job as its owner describes it (`POST /v1/jobs`, `optimus submit FILE`)."""

    name: NameField = Field(examples=["digits-cnn"], description="lower-case letters, digits and -, 63 at most")
    project: NameField = "default"
    task: str = Field(
        max_length=300,
        pattern=r"^[A-Za-z_][\w]*(\.[A-Za-z_][\w]*)*:[A-Za-z_][\w]*$",
        examples=["optimus_workers.zoo.digits:cnn"],
        description="package.module:name, the import path of a function that returns a TrainingTask",
    )
    task_args: dict[str, TaskArgument] = Field(
        default_factory=dict, max_length=50, description="keyword arguments of that function"
    )
    working_directory: str | None = Field(
        default=None, max_length=4096, description="absolute path that tasks run in and import from"
    )
    mode: Literal["sync", "async"] = "sync"
    architecture: Literal["ps", "allreduce"] = Field(
        default="ps", description="allreduce: no servers, the workers sum their gradients among themselves (DDP)"
    )
    global_batch_size: int | None = Field(
        default=None,
        ge=1,
        le=10**7,
        description="examples per step (sync) or per worker step (async); default: the task's",
    )
    gpu_types: list[GpuType] = Field(
        default_factory=list,
        max_length=20,
        examples=[["a100", "v100"]],
        description="GPU types that the workers may run on, one type at a time; empty: any that the cluster has",
    )
    convergence: ConvergenceBody = ConvergenceBody(loss_decrease=LossDecreaseBody(below=0.01), max_epochs=100)
    evaluate_epochs: float | None = Field(
        default=None,
        gt=0,
        le=1e9,
        allow_inf_nan=False,
        description="evaluate every so many epochs; default: every epoch with a target_metric, else only at the end",
    )
    workers: TaskDemandBody = TaskDemandBody()
    servers: ServerDemandBody = ServerDemandBody()
    priority: float = Field(default=1.0, gt=0, le=1000, allow_inf_nan=False)
    deadline_seconds: float | None = Field(
        default=None, gt=0, le=1e9, allow_inf_nan=False, description="after submission; see also `deadline`"
    )
    deadline: str | None = Field(
        default=None,
        max_length=40,
        examples=["2026-12-24T18:00:00Z"],
        description="when it should be done: a date and time with its UTC offset (RFC 3339)",
    )
    seed: int = Field(default=0, ge=0, lt=2**63)
    checkpoint_seconds: float = Field(
        default=30.0, ge=1, le=86400, allow_inf_nan=False, description="checkpoint period"
    )
    checkpoint_url: str | None = Field(
        default=None,
        max_length=1024,
        pattern=r"^[a-z][a-z0-9+.-]*://\S+$",
        examples=["s3://bucket/checkpoints"],
        description="where checkpoints go, any URL that fsspec knows; default: the job's directory",
    )
    hang_seconds: float | None = Field(
        default=None,
        gt=0,
        le=86400,
        allow_inf_nan=False,
        description="a worker whose code takes longer for one micro-batch is replaced; default: learned, 60 at least",
    )
    compression: Literal["none", "fp16", "bf16", "int8", "topk", "powersgd"] = Field(
        default="none",
        description="how gradients travel, see docs/training.md; int8 and topk to servers, powersgd among workers only",
    )
    compression_keep: float | None = Field(
        default=None, gt=0, le=1, allow_inf_nan=False, description="fraction of values that topk sends; default: 0.01"
    )
    gradient_statistics: bool = Field(
        default=False, description="measure the noise scale of the gradients at every 20th step (sync)"
    )
    scaling: Literal["strong", "weak"] = Field(
        default="strong",
        description="strong: the global batch is the same for any number of workers; weak: each worker has one (sync)",
    )
    warmup_epochs: float | None = Field(
        default=None,
        ge=0,
        le=1e6,
        allow_inf_nan=False,
        description="weak scaling: epochs in which the learning rate grows with the workers; default: 5",
    )
    max_gradient_norm: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="clip each step's gradient to this norm over all parameters; default: the task's",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="where workers compute; auto: on a GPU if they see one"
    )
    precision: Literal["float32", "bf16"] = Field(
        default="float32", description="bf16: forward passes under autocast; parameters and sums stay float32"
    )
    compile: bool = Field(default=False, description="have torch.compile translate the model")
    deterministic: bool = Field(default=False, description="only algorithms that give the same numbers each time")
    overlap: bool = Field(
        default=True, description="push during the backward pass, and fetch the next batch while parameters arrive"
    )
    environment: dict[str, str] = Field(default_factory=dict, max_length=100, description="variables for the tasks")

    @field_validator("environment")
    @classmethod
    def _environment_names(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
                raise ValueError(f"{name[:100]!r} is not a variable name")
            if name.startswith("OPTIMUS_"):
                raise ValueError(f"{name[:100]!r}: names that start with OPTIMUS_ are reserved")
        return value

    @model_validator(mode="before")
    @classmethod
    def _no_servers_unless_said(cls, value: object) -> object:
        """An all-reduce job need not say that it has none."""
        if isinstance(value, dict) and value.get("architecture") == "allreduce" and value.get("servers") in (None, {}):
            return {**value, "servers": {"min": 0, "max": 0}}
        return value

    @model_validator(mode="after")
    def _fits_its_architecture(self) -> Self:
        if self.architecture == "allreduce":
            if self.servers.max > 0:
                raise ValueError("an all-reduce job has no servers: leave them out, or give min 0 and max 0")
            if self.mode != "sync":
                raise ValueError("an all-reduce job is sync: its workers sum their gradients at every step")
            if self.compression in ("int8", "topk"):
                raise ValueError(f"compression {self.compression} is for servers; all-reduce has fp16, bf16, powersgd")
        elif self.servers.min < 1:
            raise ValueError("a job without servers says architecture: allreduce")
        elif self.compression == "powersgd":
            raise ValueError("compression powersgd is for architecture: allreduce")
        return self

    @field_validator("gpu_types")
    @classmethod
    def _each_once(cls, value: list[str]) -> list[str]:
        if len(set(value)) < len(value):
            raise ValueError("names a type twice")
        return value

    @field_validator("deadline")
    @classmethod
    def _moment(cls, value: str | None) -> str | None:
        if value is not None:
            deadline_moment(value)
        return value

    @model_validator(mode="after")
    def _weak_is_sync(self) -> Self:
        if self.scaling == "weak" and self.mode != "sync":
            raise ValueError("scaling weak is for mode sync: in mode async each worker has a batch of its own anyway")
        if self.scaling == "strong" and self.warmup_epochs is not None:
            raise ValueError("warmup_epochs is for scaling weak; put a warm-up of your own into learning_rate_at")
        return self

    @model_validator(mode="after")
    def _one_deadline(self) -> Self:
        if self.deadline is not None and self.deadline_seconds is not None:
            raise ValueError("give one of deadline and deadline_seconds")
        return self

    @field_validator("working_directory")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith("/"):
            raise ValueError("must be an absolute path")
        return value

    @model_validator(mode="after")
    def _fits_in_a_variable(self) -> Self:
        size = len(json.dumps(self.model_dump(mode="json")))
        if size > MAX_SPEC_BYTES:
            raise ValueError(f"the whole specification may have {MAX_SPEC_BYTES} bytes as JSON, this one has {size}")
        return self


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


class JobUsageBody(Body):
    """What a job's workers take of their machines, all together."""

    workers: int = Field(description="that told it")
    cpu_cores: float
    memory_bytes: float
    gpu_utilization: float | None = Field(description="mean over workers, 0 to 1")
    gpu_memory_bytes: float | None


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
    progress: float | None = Field(description="step / predicted total steps, 0 to 1")
    remaining_steps: IntervalBody | None
    remaining_seconds: IntervalBody | None
    reason: str | None = Field(description="reason code of the last decision")
    message: str | None
    profile: JobProfileBody | None
    result: JobResultBody | None
    failure: str | None
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
    forecast: dict[str, Any]


class DecisionListBody(Body):
    decisions: list[DecisionBody]
    next_cursor: str | None


class SpeedPointBody(Body):
    """Predicted speed and time left for one (workers, servers)."""

    workers: int
    servers: int
    steps_per_second: float | None
    remaining_seconds: IntervalBody | None
    measured: float | None = Field(description="steps per second measured with this size")
    cost: IntervalBody | None = Field(description="to finish with this size; null without prices")


class CurvePointBody(Body):
    step: float
    loss: float | None


class FittedPointBody(CurvePointBody):
    low: float | None = Field(description="with `high`: the interval that holds the loss with 80 % probability")
    high: float | None


class MetricPointBody(Body):
    step: float
    value: float


class MetricBody(Body):
    """The figure that the convergence rule is about, as it was evaluated."""

    name: str
    target: float
    values: list[MetricPointBody]
    fitted: list[MetricPointBody] = Field(description="its fitted curve, on to the predicted end")


class LearnedBody(Body):
    """What predictions rest on beside the job's own telemetry."""

    finished_runs: int = Field(description="ended jobs of the same task that the loss curve is judged by")
    share: float = Field(description="how much they count beside the job's own losses, 0 to 1")
    speeds_from: Literal["measured", "similar jobs", "analysis"] | None = Field(
        description="what predicted speeds rest on; null: nothing is known"
    )


class ChoiceBody(Body):
    """A size, and what finishing with it would take."""

    workers: int
    servers: int
    remaining_seconds: IntervalBody
    cost: IntervalBody
    keeps_limit: bool = Field(default=True, description="false: no size does, and this one comes nearest")


class CostBody(Body):
    """Money, at the prices that the service is set to."""

    so_far: float
    to_finish: IntervalBody | None = Field(description="with the present size; null without one")
    cheapest_before_deadline: ChoiceBody | None = Field(description="among the sizes asked for")
    fastest_under_budget: ChoiceBody | None
    worth_considering: list[ChoiceBody] = Field(description="sizes that no other beats in time and cost, fastest first")


class ReviewPointBody(Body):
    """One prediction of a job that has ended, beside what came."""

    at: datetime
    step: int
    part: float = Field(description="of all its steps that were done then, 0 to 1")
    total_steps: IntervalBody
    error_percent: float = Field(description="predicted over true total steps, minus 1")
    held: bool = Field(description="whether the interval holds the truth")
    remaining_seconds: IntervalBody | None
    true_remaining_seconds: float


class OutcomeBody(Body):
    """What became of a job that has ended, and of what was predicted."""

    steps: int
    seconds: float | None = Field(description="from the start of training to the end")
    final_loss: float | None
    metrics: dict[str, float | None]
    cost: float | None
    review: list[ReviewPointBody] = Field(description="predictions from its beginning to its end")


class PredictionsBody(Body):
    """What Optimus believes of a job now (`GET /v1/jobs/{id}/predictions`)."""

    at: datetime | None
    total_steps: IntervalBody | None
    remaining_steps: IntervalBody | None
    remaining_seconds: IntervalBody | None
    confidence: float
    rule: str | None
    loss_curve: dict[str, float | None]
    speed_model: dict[str, float | None]
    speeds: list[SpeedPointBody]
    losses: list[CurvePointBody] = Field(description="down-sampled loss history")
    fitted: list[FittedPointBody] = Field(description="the fitted curve at the same steps and on to the predicted end")
    history: list[PredictionPointBody] = Field(description="earlier predictions, one per round")
    learned: LearnedBody
    metric: MetricBody | None = Field(description="with a `target_metric`")
    cost: CostBody | None = Field(description="null when the service has no prices")
    outcome: OutcomeBody | None = Field(description="of a job that has ended")


class PredictionPointBody(Body):
    at: datetime
    step: int
    total_steps: IntervalBody | None


class MarginalBody(Body):
    """Of the other jobs in the same round: the one that was granted a task with the least gain."""

    job_id: str
    name: str
    gain: float


class ExpectedBody(Body):
    """When a job is expected to start and to end; null where nothing can be said."""

    start_seconds: IntervalBody | None = Field(description="from now, of a job that waits; 0: with the next round")
    finish_seconds: IntervalBody | None = Field(description="from now, if it keeps what it has")
    finish_at: datetime | None


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
    cause: str
    pause_seconds: float | None
    lost_steps: int


class AllocationListBody(Body):
    allocations: list[AllocationPointBody]


# --- what workers and coordinators send and ask ----------------------------------------------------------------------


class UsageBody(Body):
    """What one task takes of its machine, since its last sample."""

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
    def _rank_exists(self) -> Self:
        if self.rank >= self.workers:
            raise ValueError(f"rank ({self.rank}) must be below workers ({self.workers})")
        return self


class TelemetryBody(Body):
    samples: list[SampleBody] = Field(min_length=1, max_length=MAX_SAMPLES_PER_POST)


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


class MembershipReportBody(Body):
    """A membership epoch that a coordinator has formed (`POST /v1/jobs/{id}/membership`); again is harmless."""

    epoch: int = Field(ge=1, le=MAX_COUNT)
    generation: Count = Field(description="the wanted generation that it answers")
    at: PosixSeconds
    step: Count = Field(description="steps completed when it began")
    workers: list[TaskName] = Field(max_length=MAX_TASKS, description="task names by rank")
    servers: list[TaskName] = Field(max_length=MAX_TASKS)
    cause: Literal["start", "rescale", "worker_lost", "server_lost", "coordinator_restart", "resume", "pause"]
    pause_seconds: Duration | None = Field(default=None, description="training stood still")
    lost_steps: Count = Field(default=0, description="steps rolled back")
    message: str | None = Field(default=None, max_length=2000)


# --- the cluster -----------------------------------------------------------------------------------------------------


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
        default_factory=dict, max_length=50, description="by type", examples=[{"a100": 8}]
    )
    may_borrow: bool = Field(default=True, description="whether it may have more than that while others leave it idle")

    @field_validator("memory_bytes", mode="before")
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


class ClusterBody(Body):
    """The cluster in one look (`GET /v1/cluster`)."""

    capacity: NodeResourcesBody
    used: NodeResourcesBody
    jobs: dict[JobStateName, int]
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
    errors: list[ProblemErrorBody] = []
    request_id: str | None = None


PredictionsBody.model_rebuild()
