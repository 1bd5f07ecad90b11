"""What `/metrics` says, in Prometheus's terms. One `Metrics` per process; thread-safe.

What there is, is declared in `families`. Metrics of this process (requests, rounds, samples) are counted as
they happen. Metrics of jobs and of the cluster are read when somebody scrapes, on the replica that leads.
"""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, auto
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from optimus_contract.membership import Cause
from optimus_scheduler.model import Action, Node, Plan, Reason
from optimus_service.metrics import families as catalogue
from optimus_service.metrics.families import MAX_JOBS, Family
from optimus_service.metrics.points import ClusterMetrics, Point, points
from optimus_service.store.records import IgnoredWhy

__all__ = ["MAX_JOBS", "Metrics", "NoMetrics"]

TRANSACTION_KINDS = ("read", "write")
THREADS = ("scheduling loop", "lease", "training jobs", "queue ahead")
"""Those that survive unexpected errors, and count them."""
SAMPLE_OUTCOMES = ("accepted", *get_args(IgnoredWhy))
JOB_OUTCOMES = ("succeeded", "failed")
PAUSE_CAUSES = get_args(Cause)


class NoMetrics(Enum):
    """Why there are no metrics of jobs and cluster."""

    NO_DATABASE = auto()
    NOT_LEADING = auto()


Read = Callable[[], ClusterMetrics | NoMetrics]


class StateCollector(Collector):
    """Reads jobs and cluster when somebody scrapes."""

    def __init__(self, read: Read, can_write: Callable[[], bool]) -> None:
        """`can_write`: whether the last transaction that wrote succeeded; a full disk can still be read."""
        self._read = read
        self._can_write = can_write

    def describe(self) -> Iterable[Metric]:
        """Nothing: otherwise registering would read the database."""
        return ()

    def collect(self) -> Iterable[Metric]:
        metrics = self._read()
        yield _metric(catalogue.DATABASE_UP, [((), float(metrics is not NoMetrics.NO_DATABASE and self._can_write()))])
        if isinstance(metrics, ClusterMetrics):
            for family, found in points(metrics):
                yield _metric(family, found)


def _metric(family: Family, found: Iterable[Point]) -> Metric:
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=family.labels)
    for labels, value in found:
        metric.add_metric(labels, value)
    return metric


class Metrics:
    """The process's own metrics, and the registry that holds everything."""

    def __init__(self) -> None:
        # When each series began: as many series again, which nobody draws.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations
        self.registry = CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        self._requests = self._histogram(catalogue.REQUESTS)
        self._in_progress = self._gauge(catalogue.IN_PROGRESS)
        self._long_polls = self._gauge(catalogue.LONG_POLLS)
        self._streams = self._gauge(catalogue.STREAMS)
        self._transactions = self._histogram(catalogue.TRANSACTIONS)
        self._database_errors = self._counter(catalogue.DATABASE_ERRORS)
        self._unexpected_errors = self._counter(catalogue.UNEXPECTED_ERRORS)
        self._build = self._gauge(catalogue.BUILD)
        self._samples = self._counter(catalogue.SAMPLES)
        self._sample_lag = self._histogram(catalogue.SAMPLE_LAG)
        self._pauses = self._histogram(catalogue.PAUSES)
        self._completions = self._histogram(catalogue.COMPLETIONS)
        self._prediction_error = self._histogram(catalogue.PREDICTION_ERROR)
        self._rounds = self._histogram(catalogue.ROUNDS)
        self._phases = self._histogram(catalogue.PHASES)
        self._failed_rounds = self._counter(catalogue.FAILED_ROUNDS)
        self._last_round = self._gauge(catalogue.LAST_ROUND)
        self._decisions = self._counter(catalogue.DECISIONS)
        self._actions = self._counter(catalogue.ACTIONS)
        self._marginal_gain = self._gauge(catalogue.MARGINAL_GAIN)
        self._looks_ahead = self._histogram(catalogue.LOOKS_AHEAD)
        self._last_look_ahead = self._gauge(catalogue.LAST_LOOK_AHEAD)
        self._leader = self._gauge(catalogue.LEADER)
        self._unknown_tasks = self._gauge(catalogue.UNKNOWN_TASKS)
        self._loop_healthy = self._gauge(catalogue.LOOP_HEALTHY)
        self._nodes: tuple[Node, ...] | None = None
        self._can_write = True
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """Closed lists of labels: a series that begins with its first event hides that event from `rate`."""
        for thread in THREADS:
            self._unexpected_errors.labels(thread)
        for kind in TRANSACTION_KINDS:
            self._transactions.labels(kind)
            self._database_errors.labels(kind)
        for outcome in SAMPLE_OUTCOMES:
            self._samples.labels(outcome)
        for outcome in JOB_OUTCOMES:
            self._completions.labels(outcome)
        for cause in PAUSE_CAUSES:
            self._pauses.labels(cause)
        for reason in Reason:
            self._decisions.labels(reason.value)
        for action in get_args(Action):
            self._actions.labels(action.__name__)

    def _histogram(self, family: Family) -> Histogram:
        return Histogram(family.name, family.help, family.labels, buckets=family.buckets, registry=self.registry)

    def _gauge(self, family: Family) -> Gauge:
        return Gauge(family.name, family.help, family.labels, registry=self.registry)

    def _counter(self, family: Family) -> Counter:
        return Counter(family.name, family.help, family.labels, registry=self.registry)

    # --- state ------------------------------------------------------------------------------------------------------

    def show_state(self, read: Read) -> None:
        """Let every scrape read jobs and cluster with `read`. To be called once."""
        self.registry.register(StateCollector(read, lambda: self._can_write))

    def show_service(
        self, *, version: str, policy: str, long_polls: Callable[[], int], loop_health: Callable[[], str | None]
    ) -> None:
        """What is asked for at each scrape, and what never changes. To be called once."""
        self._build.labels(version, policy).set(1)
        self._long_polls.set_function(long_polls)
        self._loop_healthy.set_function(lambda: float(loop_health() is None))

    @property
    def nodes(self) -> tuple[Node, ...] | None:
        """What the leader's last round saw; None on a replica that never led."""
        return self._nodes

    # --- the service ------------------------------------------------------------------------------------------------

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """An answered request; `route` is a template, never a path."""
        self._requests.labels(method, route, str(status)).observe(seconds)

    def count_in_progress(self, change: int) -> None:
        """A request came (1) or was answered (-1)."""
        self._in_progress.inc(change)

    def count_streams(self, change: int) -> None:
        """An event stream was opened (1) or ended (-1)."""
        self._streams.inc(change)

    def observe_transaction(self, kind: str, seconds: float, *, failed: bool) -> None:
        """A database transaction; `kind` is `read` or `write`."""
        self._transactions.labels(kind).observe(seconds)
        if failed:
            self._database_errors.labels(kind).inc()
        if kind == "write":
            self._can_write = not failed

    def count_unexpected_error(self, thread: str) -> None:
        """A thread survived an error that is a mistake in code; `thread` is one of `THREADS`."""
        self._unexpected_errors.labels(thread).inc()

    # --- what jobs report -------------------------------------------------------------------------------------------

    def count_samples(self, outcome: str, n_samples: int) -> None:
        """`outcome`: `accepted` or the reason why samples were not counted."""
        self._samples.labels(outcome).inc(n_samples)

    def observe_sample_lag(self, seconds: float) -> None:
        """How old the newest sample of a post was when it came; clocks that disagree count as 0."""
        self._sample_lag.observe(max(seconds, 0.0))

    def observe_pause(self, cause: str, seconds: float) -> None:
        """A membership change during which training stood still."""
        self._pauses.labels(cause).observe(seconds)

    def observe_end(self, outcome: str, jct_seconds: float, prediction_error: float | None) -> None:
        """A job reported its end. `prediction_error` is relative; None when nothing had been predicted."""
        self._completions.labels(outcome).observe(jct_seconds)
        if prediction_error is not None:
            self._prediction_error.observe(prediction_error)

    # --- rounds -----------------------------------------------------------------------------------------------------

    def observe_round(self, seconds: float, phase_seconds: Mapping[str, float], *, failed: bool = False) -> None:
        """A scheduling round of this replica; `failed` when it ended early."""
        self._rounds.observe(seconds)
        for phase, duration in phase_seconds.items():
            self._phases.labels(phase).observe(duration)
        if failed:
            self._failed_rounds.inc()

    def observe_plan(self, at: float, nodes: tuple[Node, ...], plan: Plan) -> None:
        """What a round that went well (begun at `at`) saw and decided."""
        self._last_round.set(at)
        self._nodes = nodes
        for reason, count in Tally(decision.reason.value for decision in plan.decisions).items():
            self._decisions.labels(reason).inc(count)
        for action, count in Tally(type(action).__name__ for action in plan.actions).items():
            self._actions.labels(action).inc(count)
        gains = [each.gain for each in plan.decisions if each.gain is not None and math.isfinite(each.gain)]
        self._marginal_gain.set(min(gains, default=0.0))

    def observe_look_ahead(self, at: float, seconds: float) -> None:
        """The queue as it was at `at` was simulated forward."""
        self._looks_ahead.observe(seconds)
        self._last_look_ahead.set(at)

    def set_unknown_tasks(self, n_tasks: int) -> None:
        """How many running tasks belong to jobs that the database does not know."""
        self._unknown_tasks.set(n_tasks)

    def set_leader(self, leads: bool) -> None:
        """Whether this replica runs the rounds now."""
        self._leader.set(leads)
        if not leads:
            self._unknown_tasks.set(0)

    def text(self) -> bytes:
        """Everything in Prometheus's text format 0.0.4."""
        return generate_latest(self.registry)
