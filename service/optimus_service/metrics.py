"""What `/metrics` says, in Prometheus's terms. One `Metrics` per process; thread-safe.

Figures of this process (requests, rounds, samples) are counted as they happen. Figures of jobs are read from the
database when somebody scrapes, so every replica shows the same and nothing has to be kept in step.

Labels are bounded: routes are templates, reasons and causes come from closed lists, and of active jobs at most
`MAX_JOBS` (the oldest) have series of their own, which vanish when the job ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from optimus_scheduler.types import JobState

MAX_JOBS = 200
"""Active jobs with series of their own: 8 series each, which a small Prometheus does not feel."""

_REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0)
"""Fine where ordinary calls are, up to the longest long poll."""
_ROUND_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Up to the default round period: a round beyond it is late."""
_PAUSE_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""From an in-place change on one machine to a restart from a checkpoint on a busy cluster."""


@dataclass(frozen=True, slots=True)
class JobFigures:
    """What is shown of one active job. `None`: nothing can be said yet, no series."""

    job_id: str
    name: str
    workers: int
    servers: int
    step: int
    loss: float | None
    steps_per_second: float | None
    remaining_seconds: float | None
    rescales: int


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """What the database says of all jobs. `None` in place of it: the database cannot be reached."""

    jobs_by_state: Mapping[JobState, int]
    active_jobs: tuple[JobFigures, ...]
    """The oldest `MAX_JOBS` of them."""
    n_active_jobs: int


_JOB_GAUGES: tuple[tuple[str, str, Callable[[JobFigures], float | None]], ...] = (
    ("optimus_job_workers", "Workers of the job's current membership", lambda job: job.workers),
    ("optimus_job_servers", "Parameter servers of the job's current membership", lambda job: job.servers),
    ("optimus_job_step", "Steps completed", lambda job: job.step),
    ("optimus_job_loss", "Loss of the newest sample; NaN and infinities are shown as they are", lambda job: job.loss),
    ("optimus_job_steps_per_second", "Measured speed", lambda job: job.steps_per_second),
    (
        "optimus_job_predicted_remaining_seconds",
        "Predicted time left at the present allocation",
        lambda job: job.remaining_seconds,
    ),
    ("optimus_job_rescales", "Membership changes that the scheduler asked for", lambda job: job.rescales),
)


class JobsCollector(Collector):
    """Reads job figures when somebody scrapes."""

    def __init__(self, read: Callable[[], ClusterFigures | None]) -> None:
        self._read = read

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing: otherwise registering would read the database."""
        return ()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        figures = self._read()
        yield _gauge("optimus_database_up", "1 when the database could be read", float(figures is not None))
        if figures is None:
            return
        states = GaugeMetricFamily("optimus_jobs", "Jobs by state", labels=["state"])
        for state in JobState:
            states.add_metric([state.value], figures.jobs_by_state.get(state, 0))
        yield states
        for name, text, value_of in _JOB_GAUGES:
            yield _job_gauge(name, text, figures.active_jobs, value_of)
        left_out = figures.n_active_jobs - len(figures.active_jobs)
        yield _gauge("optimus_jobs_without_series", "Active jobs beyond the bound on labels", left_out)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _job_gauge(
    name: str, text: str, jobs: Iterable[JobFigures], value_of: Callable[[JobFigures], float | None]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=["job_id", "job"])
    for job in jobs:
        value = value_of(job)
        if value is not None:
            family.add_metric([job.job_id, job.name], value)
    return family


class Metrics:
    """The process's own figures, and the registry that holds everything."""

    def __init__(self) -> None:
        # When each series began: as many series again, which nobody draws.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self._requests = Histogram(
            "optimus_api_request_seconds",
            "Time to answer API requests, by route template",
            ["method", "route", "status"],
            buckets=_REQUEST_BUCKETS,
            registry=self.registry,
        )
        self._samples = Counter(
            "optimus_samples",
            "Telemetry samples by outcome: accepted, or why not",
            ["outcome"],
            registry=self.registry,
        )
        self._rounds = Histogram(
            "optimus_round_seconds", "Time of scheduling rounds", buckets=_ROUND_BUCKETS, registry=self.registry
        )
        self._phases = Histogram(
            "optimus_round_phase_seconds",
            "Time of the phases of scheduling rounds",
            ["phase"],
            buckets=_ROUND_BUCKETS,
            registry=self.registry,
        )
        self._failed_rounds = Counter("optimus_rounds_failed", "Rounds that ended early", registry=self.registry)
        self._pauses = Histogram(
            "optimus_rescale_pause_seconds",
            "How long training stood still at membership changes",
            ["cause"],
            buckets=_PAUSE_BUCKETS,
            registry=self.registry,
        )
        self._leader = Gauge("optimus_leader", "1 while this replica runs the rounds", registry=self.registry)

    def show_jobs(self, read: Callable[[], ClusterFigures | None]) -> None:
        """Let every scrape read job figures with `read`. To be called once."""
        self.registry.register(JobsCollector(read))

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """An answered request; `route` is a template, never a path."""
        self._requests.labels(method, route, str(status)).observe(seconds)

    def count_samples(self, outcome: str, n_samples: int) -> None:
        """`outcome`: `accepted` or the reason why samples were not counted."""
        self._samples.labels(outcome).inc(n_samples)

    def observe_pause(self, cause: str, seconds: float) -> None:
        """A membership change during which training stood still."""
        self._pauses.labels(cause).observe(seconds)

    def observe_round(self, seconds: float, phase_seconds: Mapping[str, float], *, failed: bool = False) -> None:
        """A scheduling round of this replica; `failed` when it ended early."""
        self._rounds.observe(seconds)
        for phase, duration in phase_seconds.items():
            self._phases.labels(phase).observe(duration)
        if failed:
            self._failed_rounds.inc()

    def set_leader(self, leads: bool) -> None:
        """Whether this replica runs the rounds now."""
        self._leader.set(leads)

    def text(self) -> bytes:
        """Everything in Prometheus's text format 0.0.4."""
        return generate_latest(self.registry)
