"""Metrics of jobs and cluster as points of metrics: pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from optimus_contract import answers
from optimus_scheduler.model import JobState, Resources
from optimus_service.insight.jobs.usage import JobUsage
from optimus_service.metrics import families as catalogue
from optimus_service.metrics.families import Family

Point = tuple[tuple[str, ...], float]
"""Label values and a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMetrics:
    """What is shown of one active job. `None`: nothing can be said yet, no series."""

    job_id: str
    name: str
    project: str = "default"
    mode: str = "sync"
    architecture: str = "ps"
    state: str = "running"
    reason: str | None = None
    workers: int = 0
    servers: int = 0
    global_batch: int | None = None
    """Examples."""
    wanted_workers: int = 0
    wanted_servers: int = 0
    share: float | None = None
    step: int = 0
    epoch: float | None = None
    loss: float | None = None
    fitted_loss: float | None = None
    progress: float | None = None
    steps_per_second: float | None = None
    predicted_steps_per_second: float | None = None
    total_steps: answers.Interval | None = None
    remaining_steps: answers.Interval | None = None
    remaining_seconds: answers.Interval | None = None
    confidence: float | None = None
    gain: float | None = None
    next_gain: float | None = None
    step_parts: Mapping[str, float] = field(default_factory=dict)
    """Seconds per step by part: data, compute, push, wait, pull."""
    straggler: float | None = None
    usage: JobUsage | None = None
    usage_of_others: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """`cpu_cores` and `memory_bytes` of all servers together, and of the coordinator, by role."""
    noise_scale: float | None = None
    submitted_at: float = 0.0
    waiting_since: float | None = None
    cost_per_hour: float | None = None
    remaining_cost: answers.Interval | None = None
    rescales: int = 0
    stopped_seconds: float = 0.0
    lost_steps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetrics:
    """What database and cluster say."""

    jobs_by_state: Mapping[JobState, int]
    active_jobs: tuple[JobMetrics, ...] = ()
    """The oldest `MAX_JOBS` of them."""
    n_active_jobs: int = 0
    waiting_by_reason: Mapping[str, int] = field(default_factory=dict)
    capacity: Resources | None = None
    """Of schedulable nodes; None: this replica has not seen the cluster yet."""
    used: Resources = field(default_factory=Resources)
    nodes_by_state: Mapping[str, int] = field(default_factory=dict)
    n_reconciling: int = 0
    reconcile_lag_seconds: float = 0.0
    predictions: Sequence[answers.PredictionScore] = ()
    """How predictions turned out, of all tasks together."""


def points(metrics: ClusterMetrics) -> Iterator[tuple[Family, list[Point]]]:
    """Every family with its points."""
    yield from _of_cluster(metrics)
    for family, points_of in _JOB_POINTS:
        found = [
            ((job.job_id, job.name, *labels), value) for job in metrics.active_jobs for labels, value in points_of(job)
        ]
        yield family, found


def _of_cluster(metrics: ClusterMetrics) -> Iterator[tuple[Family, list[Point]]]:
    yield catalogue.JOBS, [((state.value,), metrics.jobs_by_state.get(state, 0)) for state in JobState]
    yield catalogue.WAITING, [((reason,), count) for reason, count in sorted(metrics.waiting_by_reason.items())]
    yield catalogue.WITHOUT_SERIES, [((), metrics.n_active_jobs - len(metrics.active_jobs))]
    yield catalogue.RECONCILING, [((), metrics.n_reconciling)]
    yield catalogue.LAG, [((), metrics.reconcile_lag_seconds)]
    yield catalogue.INTERVALS_HELD, [((each.kind, each.part), each.held) for each in metrics.predictions]
    yield catalogue.PREDICTIONS_JUDGED, [((each.kind, each.part), each.promises) for each in metrics.predictions]
    if metrics.capacity is None:
        return
    yield catalogue.NODES, [((state,), count) for state, count in sorted(metrics.nodes_by_state.items())]
    both = (("capacity", metrics.capacity), ("used", metrics.used))
    yield catalogue.CPU, [((of,), amount.cpu) for of, amount in both]
    yield catalogue.MEMORY, [((of,), amount.memory_bytes) for of, amount in both]
    yield catalogue.GPUS, [((of, kind), n) for of, amount in both for kind, n in sorted(amount.gpus.items())]


# --- one job ---------------------------------------------------------------------------------------------------------

_PointsOf = Callable[[JobMetrics], Iterable[Point]]


def _one(value_of: Callable[[JobMetrics], float | None]) -> _PointsOf:
    def points_of(job: JobMetrics) -> Iterable[Point]:
        value = value_of(job)
        return () if value is None else (((), value),)

    return points_of


def _used(value_of: Callable[[JobUsage], float | None]) -> _PointsOf:
    return _one(lambda job: None if job.usage is None else value_of(job.usage))


def _used_by_role(name: str) -> _PointsOf:
    """`cpu_cores` or `memory_bytes`."""

    def points_of(job: JobMetrics) -> Iterable[Point]:
        if job.usage is not None:
            yield ("worker",), getattr(job.usage, name)
        for role, usage in job.usage_of_others.items():
            yield (role,), usage[name]

    return points_of


def _bounds(interval_of: Callable[[JobMetrics], answers.Interval | None]) -> _PointsOf:
    def points_of(job: JobMetrics) -> Iterable[Point]:
        interval = interval_of(job)
        if interval is None:
            return ()
        values = (("low", interval.low), ("mean", interval.mean), ("high", interval.high))
        return [((bound,), value) for bound, value in values if value is not None]

    return points_of


def _named(name_of: Callable[[JobMetrics], str | None]) -> _PointsOf:
    def points_of(job: JobMetrics) -> Iterable[Point]:
        name = name_of(job)
        return () if name is None else (((name,), 1.0),)

    return points_of


_JOB_POINTS: tuple[tuple[Family, _PointsOf], ...] = (
    (catalogue.JOB_INFO, lambda job: [((job.project, job.mode, job.architecture), 1.0)]),
    (catalogue.JOB_STATE, _named(lambda job: job.state)),
    (catalogue.JOB_REASON, _named(lambda job: job.reason)),
    (catalogue.JOB_WORKERS, _one(lambda job: job.workers)),
    (catalogue.JOB_SERVERS, _one(lambda job: job.servers)),
    (catalogue.JOB_BATCH, _one(lambda job: job.global_batch)),
    (catalogue.JOB_WANTED_WORKERS, _one(lambda job: job.wanted_workers)),
    (catalogue.JOB_WANTED_SERVERS, _one(lambda job: job.wanted_servers)),
    (catalogue.JOB_SHARE, _one(lambda job: job.share)),
    (catalogue.JOB_STEP, _one(lambda job: job.step)),
    (catalogue.JOB_EPOCH, _one(lambda job: job.epoch)),
    (catalogue.JOB_LOSS, _one(lambda job: job.loss)),
    (catalogue.JOB_FITTED_LOSS, _one(lambda job: job.fitted_loss)),
    (catalogue.JOB_PROGRESS, _one(lambda job: job.progress)),
    (catalogue.JOB_SPEED, _one(lambda job: job.steps_per_second)),
    (catalogue.JOB_PREDICTED_SPEED, _one(lambda job: job.predicted_steps_per_second)),
    (catalogue.JOB_TOTAL_STEPS, _bounds(lambda job: job.total_steps)),
    (catalogue.JOB_REMAINING_STEPS, _bounds(lambda job: job.remaining_steps)),
    (catalogue.JOB_REMAINING, _bounds(lambda job: job.remaining_seconds)),
    (catalogue.JOB_CONFIDENCE, _one(lambda job: job.confidence)),
    (catalogue.JOB_GAIN, _one(lambda job: job.gain)),
    (catalogue.JOB_NEXT_GAIN, _one(lambda job: job.next_gain)),
    (catalogue.JOB_CPU, _used_by_role("cpu_cores")),
    (catalogue.JOB_MEMORY, _used_by_role("memory_bytes")),
    (catalogue.JOB_GPU, _used(lambda usage: usage.gpu_utilization)),
    (catalogue.JOB_GPU_MEMORY, _used(lambda usage: usage.gpu_memory_bytes)),
    (catalogue.JOB_NOISE, _one(lambda job: job.noise_scale)),
    (catalogue.JOB_STEP_PARTS, lambda job: [((part,), seconds) for part, seconds in job.step_parts.items()]),
    (catalogue.JOB_STRAGGLER, _one(lambda job: job.straggler)),
    (catalogue.JOB_SUBMITTED, _one(lambda job: job.submitted_at)),
    (catalogue.JOB_WAITING, _one(lambda job: job.waiting_since)),
    (catalogue.JOB_COST, _one(lambda job: job.cost_per_hour)),
    (catalogue.JOB_REMAINING_COST, _bounds(lambda job: job.remaining_cost)),
    (catalogue.JOB_RESCALES, _one(lambda job: job.rescales)),
    (catalogue.JOB_DOWNTIME, _one(lambda job: job.stopped_seconds)),
    (catalogue.JOB_LOST_STEPS, _one(lambda job: job.lost_steps)),
)
