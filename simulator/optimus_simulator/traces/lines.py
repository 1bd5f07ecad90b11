"""What the lines of our own format hold: all fields, their types and bounds. See docs/traces.md.

The numbers of a job are those of a submitted one: beyond them a replay would hardly ever end.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, Literal

from optimus_contract.job import MAX_BATCH
from optimus_contract.limits import (
    LEAST_EPOCHS,
    LEAST_PART,
    LEAST_SECONDS,
    MAX_POSIX_SECONDS,
    MAX_SECONDS,
    MAX_STEPS,
    MAX_TASKS,
    MAX_TRACED_LOSS,
    MOST_PRIORITY,
)
from optimus_contract.message import About
from optimus_simulator.declared import Line

MAX_NODES: Final = 100_000
"""Of one cluster: six times as many as the largest that is published of."""
_MAX_MEMORY_GIB: Final = 2**20
"""Of a task or a node: a submitted task may ask for as much."""
_MAX_CORES, _MAX_GPUS = 4096, 64
"""Of a task, as submitted ones."""
_LONGEST_PERIOD: Final = 86_400.0
_LARGEST: Final = sys.float_info.max
_MOST: Final = 1e12
"""Money, or a coefficient of a loss."""

Text = Annotated[str | int, About(min_length=1)]
Seconds = Annotated[float, About(ge=0, le=MAX_SECONDS)]
Batch = Annotated[int, About(ge=1, le=MAX_BATCH)]
Loss = Annotated[float, About(ge=-MAX_TRACED_LOSS, le=MAX_TRACED_LOSS)]
Figure = Annotated[float, About(ge=-_LARGEST, le=_LARGEST)]
Part = Annotated[float, About(ge=LEAST_PART, le=1)]
Memory = Annotated[float, About(ge=0, le=_MAX_MEMORY_GIB)]
Gpus = dict[str, Annotated[int, About(ge=0, le=_MAX_GPUS)]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesLine(Line):
    """Nodes that are alike."""

    OF: ClassVar = "of nodes"
    count: Annotated[int, About(ge=1, le=MAX_NODES)] = 1
    cpu: Annotated[float, About(ge=0, le=MAX_NODES * _MAX_CORES)] = 0.0
    memory_gib: Memory = 0.0
    gpus: dict[str, Annotated[int, About(ge=0, le=MAX_NODES * _MAX_GPUS)]] = field(default_factory=dict)
    labels: dict[str, str | int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectLine(Line):
    """What a project is guaranteed."""

    OF: ClassVar = "of a project"
    share: Annotated[float | None, About(ge=0, le=1)] = None
    cpu: Annotated[float | None, About(ge=0, le=MAX_NODES * _MAX_CORES)] = None
    memory_gib: Annotated[float | None, About(ge=0, le=MAX_NODES * _MAX_MEMORY_GIB)] = None
    gpus: dict[str, Annotated[int, About(ge=0, le=MAX_NODES * _MAX_GPUS)]] = field(default_factory=dict)
    may_borrow: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLine(Line):
    """The first line."""

    OF: ClassVar = "of the cluster"
    nodes: Annotated[list[NodesLine], About(min_length=1)]
    projects: dict[str, ProjectLine] = field(default_factory=dict)
    begins_at: Annotated[float | None, About(ge=0, le=MAX_POSIX_SECONDS)] = None
    round_seconds: Annotated[float | None, About(ge=LEAST_SECONDS, le=_LONGEST_PERIOD)] = None
    learning_round_seconds: Annotated[float | None, About(ge=LEAST_SECONDS, le=_LONGEST_PERIOD)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksLine(Line):
    """Workers or servers."""

    OF: ClassVar = "of a task"
    cpu: Annotated[float, About(ge=0, le=_MAX_CORES)] = 0.0
    memory_gib: Memory = 0.0
    gpus: Gpus = field(default_factory=dict)
    minimum: Annotated[int, About(ge=0, le=MAX_TASKS)] = 1
    maximum: Annotated[int, About(ge=0, le=MAX_TASKS)] = 16
    requested: Annotated[int | None, About(ge=0, le=MAX_TASKS)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersLine(TasksLine):
    """The same of workers, of which a job has one at least."""

    minimum: Annotated[int, About(ge=1, le=MAX_TASKS)] = 1
    maximum: Annotated[int, About(ge=1, le=MAX_TASKS)] = 16
    requested: Annotated[int | None, About(ge=1, le=MAX_TASKS)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine(Line):
    """Bounds of an elastic batch."""

    OF: ClassVar = "of an elastic batch"
    minimum: Batch
    maximum: Batch
    per_pass: Batch
    most_passes: Batch = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricLine(Line):
    """A figure of an evaluation."""

    OF: ClassVar = "of a target_metric"
    name: Text
    at_least: Figure | None = None
    at_most: Figure | None = None
    best: Figure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLine(Line):
    """When a job is done."""

    OF: ClassVar = "of the convergence"
    loss_decrease: Annotated[float | None, About(ge=LEAST_PART, le=1)] = None
    relative: bool = True
    patience_epochs: Annotated[int, About(ge=1, le=1000)] = 3
    target_loss: Figure | None = None
    max_steps: Annotated[int | None, About(ge=1, le=MAX_STEPS)] = None
    ends_itself: bool = False
    max_epochs: Annotated[float | None, About(ge=LEAST_EPOCHS, le=MAX_SECONDS)] = None
    max_seconds: Annotated[float | None, About(ge=LEAST_SECONDS, le=MAX_SECONDS)] = None
    target_metric: MetricLine | None = None
    max_cost: Annotated[float | None, About(ge=LEAST_PART, le=_MOST)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedLine(Line):
    """How fast a job trains."""

    OF: ClassVar = "of the speed"
    theta: Annotated[list[Seconds] | None, About(min_length=4, max_length=5)] = None
    compute_seconds: Annotated[float | None, About(ge=0, le=MAX_SECONDS)] = None
    exchange_seconds: Annotated[float | None, About(ge=0, le=MAX_SECONDS)] = None
    pass_seconds: Seconds = 0.0
    measured: list[
        tuple[
            Annotated[int, About(ge=1, le=MAX_TASKS)],
            Annotated[int, About(ge=0, le=MAX_TASKS)],
            Annotated[float, About(ge=LEAST_PART, le=MAX_STEPS)],
        ]
    ] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class TruthLine(Line):
    """What the scheduler is not told."""

    OF: ClassVar = "of the truth"
    total_steps: Annotated[float, About(ge=LEAST_PART, le=MAX_STEPS)]
    speed: SpeedLine
    steps_per_epoch: Annotated[float | None, About(ge=LEAST_PART, le=MAX_STEPS)] = None
    loss: (
        tuple[
            Annotated[float, About(ge=0, le=_MOST)],
            Annotated[float, About(ge=LEAST_PART, le=_MOST)],
            Loss,
        ]
        | None
    ) = None
    losses: list[tuple[Annotated[float, About(ge=0, le=MAX_STEPS)], Loss]] | None = None
    type_speeds: dict[str, Annotated[float, About(ge=LEAST_PART, le=MAX_STEPS)]] = field(default_factory=dict)
    noise_scale: (
        tuple[
            Annotated[float, About(ge=LEAST_PART, le=MAX_STEPS)], Annotated[float, About(ge=LEAST_PART, le=MAX_STEPS)]
        ]
        | None
    ) = None
    crossing_factor: Part = 1.0
    rack_crossing_factor: Part = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LivedLine(Line):
    """What really happened: only this is read of it."""

    OF: ClassVar = "of what happened"
    MAY_HAVE_MORE: ClassVar = True
    state: str | None = None
    finished_at: Annotated[float | None, About(ge=0, le=MAX_POSIX_SECONDS)] = None
    start_seconds: Annotated[float | None, About(ge=0, le=MAX_SECONDS)] = None
    change_seconds: list[Seconds] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine(Line):
    """All other lines."""

    OF: ClassVar = "of a job"
    id: Text
    submitted_at: Annotated[float, About(ge=0, le=MAX_POSIX_SECONDS)]
    workers: WorkersLine
    truth: TruthLine
    servers: TasksLine | None = None
    architecture: Literal["ps", "allreduce"] = "ps"
    mode: Literal["sync", "async"] = "sync"
    global_batch_size: Annotated[int | None, About(ge=1, le=MAX_BATCH)] = None
    elastic_batch: BatchLine | None = None
    priority: Annotated[float, About(ge=LEAST_PART, le=MOST_PRIORITY)] = 1.0
    project: str = "default"
    family: str = ""
    gpu_types: list[Text] = field(default_factory=list)
    convergence: RuleLine = RuleLine()
    deadline_seconds: Annotated[float | None, About(ge=0, le=MAX_SECONDS)] = None
    happened: LivedLine | None = None
