"""What tasks report while a job runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import ge
from typing import Annotated, Any, Final, Literal

from optimus_contract.codec import has_default
from optimus_contract.fields import Count, Duration, Measured, MetricName, PosixSeconds, TaskName
from optimus_contract.limits import MAX_COUNT, MAX_METRICS, MAX_SAMPLES_PER_POST, MAX_TASKS
from optimus_contract.message import FINITE, About, FieldError, Message


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


Rank = Annotated[int, About(ge=0, lt=MAX_TASKS)]
Steps = Annotated[int, About(ge=1, le=10**6)]
PartOfData = Annotated[float, FINITE, About("passes over the data so far", ge=0, le=MAX_COUNT)]
Rate = Annotated[float, FINITE, About(ge=0, le=1e9)]
Staleness = Annotated[float, FINITE, About("mean, in steps; async mode", ge=0, le=MAX_COUNT)]
EvaluationMetrics = Annotated[dict[MetricName, Measured], About(max_length=MAX_METRICS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Message):
    """One telemetry record: `n_steps` consecutive steps of one worker that end with step `step`."""

    membership_epoch: Annotated[int, About(ge=1, le=MAX_COUNT)]
    rank: Rank
    sequence: Annotated[Count, About("counts the records of this rank in this membership epoch")]
    workers: Annotated[int, About(ge=1, le=MAX_TASKS)]
    servers: Annotated[int, About(ge=0, le=MAX_TASKS)]
    at: Annotated[PosixSeconds, About("POSIX seconds at the end of the last step")]
    step: Annotated[Count, About("steps of the job completed at the end of this record")]
    n_steps: Steps = 1
    updates: Annotated[
        int | None, About("elastic batch: updates of the parameters; `n_steps` is their worth", ge=1, le=10**6)
    ] = None
    global_batch: Annotated[
        int | None, About("elastic batch: examples of each update, over all workers", ge=1, le=MAX_COUNT)
    ] = None
    data_epoch: PartOfData
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
    staleness: Staleness | None = None
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


Column = About(min_length=1, max_length=MAX_SAMPLES_PER_POST)
"""Metadata of the values that one field has in all samples of a post."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleColumns(Message):
    """The samples of one post with the values of each field together: what `Sample` says, in a fifth of the time.

    All columns are equally long. A column that is left out has its field's default in every sample.
    """

    membership_epoch: Annotated[list[Annotated[int, About(ge=1, le=MAX_COUNT)]], Column]
    rank: Annotated[list[Rank], Column]
    sequence: Annotated[list[Count], Column]
    workers: Annotated[list[Annotated[int, About(ge=1, le=MAX_TASKS)]], Column]
    servers: Annotated[list[Annotated[int, About(ge=0, le=MAX_TASKS)]], Column]
    at: Annotated[list[PosixSeconds], Column]
    step: Annotated[list[Count], Column]
    n_steps: Annotated[list[Steps] | None, Column] = None
    updates: Annotated[list[Steps | None] | None, Column] = None
    global_batch: Annotated[list[Annotated[int, About(ge=1, le=MAX_COUNT)] | None] | None, Column] = None
    data_epoch: Annotated[list[PartOfData], Column]
    loss: Annotated[list[Measured | None] | None, Column] = None
    learning_rate: Annotated[list[Rate | None] | None, Column] = None
    n_examples: Annotated[list[Count], Column]
    seconds: Annotated[list[Duration], Column]
    data_seconds: Annotated[list[Duration] | None, Column] = None
    compute_seconds: Annotated[list[Duration] | None, Column] = None
    push_seconds: Annotated[list[Duration] | None, Column] = None
    wait_seconds: Annotated[list[Duration] | None, Column] = None
    pull_seconds: Annotated[list[Duration] | None, Column] = None
    sent_bytes: Annotated[list[Count] | None, Column] = None
    received_bytes: Annotated[list[Count] | None, Column] = None
    staleness: Annotated[list[Staleness | None] | None, Column] = None
    usage: Annotated[list[Usage | None] | None, Column] = None
    gradients: Annotated[list[Gradients | None] | None, Column] = None
    metrics: Annotated[list[EvaluationMetrics | None] | None, Column] = None

    def check(self) -> None:
        for name in SAMPLE_FIELDS:
            values = getattr(self, name)
            if values is not None and len(values) != len(self):
                raise FieldError(name, f"has {len(values)} values; membership_epoch has {len(self)}")
        if any(map(ge, self.rank, self.workers)):  # as a whole, and then again: few posts are wrong
            pairs = enumerate(zip(self.rank, self.workers, strict=True))
            index, rank, workers = next((index, *pair) for index, pair in pairs if ge(*pair))
            raise FieldError(f"rank.{index}", f"({rank}) must be below workers ({workers})")
        if self.updates is None and self.global_batch is None:
            return
        nothing = [None] * len(self)
        for index, both in enumerate(zip(self.updates or nothing, self.global_batch or nothing, strict=True)):
            if both.count(None) == 1:
                raise FieldError(f"updates.{index}", "updates and global_batch go together")

    def __len__(self) -> int:
        return len(self.membership_epoch)

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> SampleColumns:
        """The same samples; columns that hold nothing but their field's default are left out."""
        columns: dict[str, Any] = {name: [getattr(each, name) for each in samples] for name in SAMPLE_FIELDS}
        left_out = {name for name, default in DEFAULTS.items() if columns[name].count(default) == len(samples)}
        return cls(**{name: values for name, values in columns.items() if name not in left_out})

    def taken(self, indices: Sequence[int]) -> SampleColumns:
        """Those samples that stand at these places."""
        columns = {name: getattr(self, name) for name in SAMPLE_FIELDS}
        return SampleColumns(
            **{name: [values[each] for each in indices] for name, values in columns.items() if values is not None}
        )

    def samples(self) -> list[Sample]:
        """The same samples, one by one."""
        columns = {name: getattr(self, name) for name in SAMPLE_FIELDS}
        reported = {name: values for name, values in columns.items() if values is not None}
        return [Sample(**dict(zip(reported, values, strict=True))) for values in zip(*reported.values(), strict=True)]


SAMPLE_FIELDS: Final = tuple(field.name for field in fields(Sample))
DEFAULTS: Final = {field.name: field.default for field in fields(Sample) if has_default(field)}
"""What a sample has where its post does not say the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskUsageReport(Message):
    """What a server or the coordinator takes of its machine; workers report it in their samples."""

    task: TaskName
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Message):
    """What the owner of a script should know of it."""

    kind: Annotated[
        Literal["PrintsTooMuch", "ProcessesEnded", "PatternTooSlow"],
        About("so the event is called; ProcessesEnded: after the training"),
    ]
    message: Annotated[str, About(min_length=1, max_length=2000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry(Message):
    """What workers measured (`samples`), what other tasks use (`tasks`), how its checkpoints fare; at least one."""

    samples: Annotated[list[Sample] | None, About(min_length=1, max_length=MAX_SAMPLES_PER_POST)] = None
    columns: Annotated[SampleColumns | None, About("samples in a form that costs less; instead of `samples`")] = None
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

    notes: Annotated[
        list[Note] | None, About("script: what its owner should know of it; an event each", min_length=1, max_length=20)
    ] = None

    def check(self) -> None:
        if self.samples is not None and self.columns is not None:
            raise ValueError("send samples or columns, not both")
        if not self.tells_of_the_job and self.samples is None and self.columns is None:
            raise ValueError("samples, columns, tasks, checkpoints, silence or notes are required")

    @property
    def tells_of_the_job(self) -> bool:
        """Whether there is more than samples."""
        return any(each is not None for each in (self.tasks, self.checkpoints, self.silence, self.notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredSample(Message):
    index: int
    why: Literal["duplicate", "old_membership", "unknown_membership"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryAnswer(Message):
    accepted: int
    ignored: list[IgnoredSample]
