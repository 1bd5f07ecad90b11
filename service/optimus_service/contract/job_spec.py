"""What a job is asked for with."""

from __future__ import annotations

import json
import math
import re
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import Field, PlainValidator, ValidationInfo, field_validator, model_validator

from optimus_scheduler.retries import DEFAULT_RETRIES, MAX_RETRIES
from optimus_service.contract.basics import MAX_SPEC_BYTES, MAX_TASKS, Body
from optimus_service.contract.elastic import ElasticBatchBody, check_elastic

LEAST_PRIORITY, MOST_PRIORITY = 0.01, 1000.0
"""Five orders of magnitude: below the least, a job would hardly ever keep what it gets."""
_SIZE = re.compile(r"^ *([0-9]{1,16}(?:\.[0-9]{1,16})?) *(|k|M|G|T|Ki|Mi|Gi|Ti)B? *$")
_UNIT_BYTES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNIT_BYTES |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


SizeText = Annotated[str, Field(pattern=_SIZE.pattern, max_length=100)]
"""How a number of bytes may be written."""


def parse_size(value: object) -> object:
    """A size like `512Mi` as bytes; anything but text as it is. Raises `ValueError`."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None or len(value) > 100:
        raise ValueError("expected bytes or a size like 512Mi or 2Gi")
    return int(float(match[1]) * _UNIT_BYTES[match[2]])


class ResourcesBody(Body):
    """Resources of one task."""

    cpu: float = Field(default=1.0, ge=0, le=4096, allow_inf_nan=False, description="CPU cores")
    memory_bytes: int = Field(
        default=512 * 2**20, ge=0, le=2**50, description="bytes, or a string like 512Mi", examples=[536870912, "512Mi"]
    )
    gpus: int = Field(default=0, ge=0, le=64, description="GPUs of one task; of which type: `gpu_types`")

    @field_validator(
        "memory_bytes", mode="before", json_schema_input_type=Annotated[int, Field(ge=0, le=2**50)] | SizeText
    )
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
        default=None,
        max_length=4096,
        description="absolute path that tasks run in and import from",
        json_schema_extra={"pattern": "^/[^\\x00]*$"},
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
        json_schema_extra={"uniqueItems": True},
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
    priority: float = Field(
        default=1.0,
        ge=LEAST_PRIORITY,
        le=MOST_PRIORITY,
        allow_inf_nan=False,
        description="multiplies what the job gains by resources, beside other jobs",
    )
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
        default=False, description="measure the noise scale of the gradients at every 20th step (async: of worker 0)"
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
    elastic_batch: ElasticBatchBody | None = Field(
        default=None, description="let the scheduler choose the global batch within these bounds (all-reduce)"
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
    retries: int = Field(
        default=DEFAULT_RETRIES,
        ge=0,
        le=MAX_RETRIES,
        description="times that the job goes on from its last checkpoint, after a wait, when its code raises an error "
        "after its first step; an error before that fails the job at once",
    )
    from_job: NameField | None = Field(
        default=None,
        examples=["digits-cnn-x7k2p"],
        description="id of a job whose last checkpoint gives the first parameters; steps count from 0, the optimizer "
        "begins anew; the task must have the same parameters, `checkpoint_url` must be that job's",
    )
    environment: dict[str, str] = Field(
        default_factory=dict,
        max_length=100,
        description="variables for the tasks",
        json_schema_extra={"propertyNames": {"pattern": "^(?!OPTIMUS_)[A-Za-z_][A-Za-z0-9_]*$"}},
    )

    @field_validator("elastic_batch")
    @classmethod
    def _may_be_elastic(cls, value: ElasticBatchBody | None, info: ValidationInfo) -> ElasticBatchBody | None:
        if value is not None:
            check_elastic(value, info.data)
        return value

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
