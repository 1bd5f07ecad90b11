"""What tasks report while a job runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from optimus_contract.fields import Count, Duration, Measured, MetricName, PosixSeconds, TaskName
from optimus_contract.limits import MAX_COUNT, MAX_METRICS, MAX_SAMPLES_PER_POST, MAX_TASKS
from optimus_contract.message import FINITE, About, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage(Message):
    """What one task takes of its machine, since its last report."""

    cpu_cores: Annotated[float, FINITE, About("mean", ge=0, le=1e6)]
    memory_bytes: Annotated[Count, About("resident")]
    gpu_utilization: Annotated[float | None, FINITE, About(ge=0, le=1)] = None
    gpu_memory_bytes: Annotated[Count | None, About("of this process")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients(Message):
    """Moving averages of unbiased estimates; negative while noise hides what is estimated."""

    square: Annotated[float, FINITE, About("|G|², the squared norm of the true gradient")]
    variance: Annotated[float, FINITE, About("tr(Σ), the variance of one example's gradient")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Message):
    """One telemetry record: `n_steps` consecutive steps of one worker that end with step `step`."""

    membership_epoch: Annotated[int, About(ge=1, le=MAX_COUNT)]
    rank: Annotated[int, About(ge=0, lt=MAX_TASKS)]
    sequence: Annotated[Count, About("counts the records of this rank in this membership epoch")]
    workers: Annotated[int, About(ge=1, le=MAX_TASKS)]
    servers: Annotated[int, About(ge=0, le=MAX_TASKS)]
    at: Annotated[PosixSeconds, About("POSIX seconds at the end of the last step")]
    step: Annotated[Count, About("steps of the job completed at the end of this record")]
    n_steps: Annotated[int, About(ge=1, le=10**6)] = 1
    updates: Annotated[
        int | None, About("elastic batch: updates of the parameters; `n_steps` is their worth", ge=1, le=10**6)
    ] = None
    global_batch: Annotated[
        int | None, About("elastic batch: examples of each update, over all workers", ge=1, le=MAX_COUNT)
    ] = None
    data_epoch: Annotated[float, FINITE, About("passes over the data so far", ge=0, le=MAX_COUNT)]
    loss: Annotated[
        Measured | None,
        About("mean over the examples of these steps; may be NaN or infinite; null: a script that did not report one"),
    ] = None
    learning_rate: Annotated[
        float | None,
        FINITE,
        About("of the last of these steps; of several parameter groups, the first's", ge=0, le=1e9),
    ] = None
    n_examples: Count
    seconds: Annotated[Duration, About("wall time of these steps")]
    data_seconds: Duration = 0
    compute_seconds: Duration = 0
    push_seconds: Duration = 0
    wait_seconds: Duration = 0
    pull_seconds: Duration = 0
    sent_bytes: Count = 0
    received_bytes: Count = 0
    staleness: Annotated[float | None, FINITE, About("mean, in steps; async mode", ge=0, le=MAX_COUNT)] = None
    usage: Usage | None = None
    gradients: Annotated[Gradients | None, About("with `gradient_statistics`")] = None
    metrics: Annotated[
        dict[MetricName, Measured] | None,
        About("figures of an evaluation after the last of these steps", max_length=MAX_METRICS),
    ] = None

    def check(self) -> None:
        if (self.updates is None) != (self.global_batch is None):
            raise ValueError("updates and global_batch go together")
        if self.rank >= self.workers:
            raise ValueError(f"rank ({self.rank}) must be below workers ({self.workers})")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskUsageReport(Message):
    """What a server or the coordinator takes of its machine; workers report it in their samples."""

    task: TaskName
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry(Message):
    """What workers measured (`samples`), what other tasks use (`tasks`), how its checkpoints fare; at least one."""

    samples: Annotated[list[Sample] | None, About(min_length=1, max_length=MAX_SAMPLES_PER_POST)] = None
    tasks: Annotated[
        list[TaskUsageReport] | None, About("the newest word of each counts", min_length=1, max_length=MAX_TASKS + 1)
    ] = None

    checkpoints: Annotated[
        str | None,
        About("why one could not be written, or that they are written again: an event", min_length=1, max_length=2000),
    ] = None

    silence: Annotated[
        str | None,
        About("which task does not answer its coordinator, or answers again: an event", min_length=1, max_length=2000),
    ] = None

    def check(self) -> None:
        if self.samples is None and self.tasks is None and self.checkpoints is None and self.silence is None:
            raise ValueError("samples, tasks, checkpoints or silence are required")


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredSample(Message):
    index: int
    why: Literal["duplicate", "old_membership", "unknown_membership"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryAnswer(Message):
    accepted: int
    ignored: list[IgnoredSample]
