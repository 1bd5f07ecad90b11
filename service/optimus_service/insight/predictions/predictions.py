"""What Optimus believes of one job, for people: the latest round's forecast, and the models behind it as tables.

The figures are those of the latest decision, brought up to the present step. The tables (speed by size, fitted loss
curve) come from fitting the same models to the same rows as a round does, so they say what the next round will see.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimus_contract import answers
from optimus_models.calibration import NO_EXPERIENCE
from optimus_models.cost import Estimate
from optimus_models.history import LossBuckets
from optimus_models.loss.curve import LossCurve, MetricCurve
from optimus_models.speed.course import AS_MEASURED
from optimus_scheduler.forecast.fits import Fits, Fitted, rates_to_come
from optimus_scheduler.forecast.forecast import forecast
from optimus_scheduler.forecast.prices import has_prices
from optimus_scheduler.model import (
    BY_CLOCK,
    NOTHING,
    Allocation,
    EndedJob,
    Forecast,
    Interval,
    Job,
    Node,
    Nodes,
    Resources,
)
from optimus_scheduler.settings import Settings
from optimus_service.insight.cluster.trace_export import counted_speed
from optimus_service.insight.format import counted, finite, finite_document, interval_body, moment
from optimus_service.insight.jobs.bodies import counts_from, prediction_point_body
from optimus_service.insight.jobs.end import End, reached_limit
from optimus_service.insight.jobs.progress import progress_of, step_of
from optimus_service.insight.predictions.review import outcome_body
from optimus_service.insight.predictions.sizes import Basis, Limits, Size, advice, cost_body, estimate_of, sizes
from optimus_service.observe.finished_runs import FinishedRunHistory
from optimus_service.observe.histories import Histories
from optimus_service.observe.jobs import job_of
from optimus_service.observe.snapshot import spent
from optimus_service.observe.spec import spec_of
from optimus_service.observe.standstills import Standstills
from optimus_service.observe.unsaved_work import LastStep
from optimus_service.store.records import DecisionRecord, JobRecord, MembershipRecord, PredictionRecord
from optimus_service.store.repository import Repository

MAX_SIZES = 1024
"""Sizes that speeds are predicted for in one answer."""
MAX_DECISIONS = 1000
"""Past predictions in one answer, the newest: 16 hours of rounds a minute apart."""
_MAX_JOBS = 64
"""Jobs whose samples are kept in memory between requests: about 30 kB each."""
_POINTS_AHEAD = 50
"""Points of the fitted curve beyond the data: enough for a smooth line."""


class HistoryCache:
    """Sample histories of the jobs that somebody looked at lately, read on from where they were. Thread-safe."""

    def __init__(self, repository: Repository, finished_runs: FinishedRunHistory | None, settings: Settings) -> None:
        """`finished_runs`: what ended jobs taught; None: nothing is made of it."""
        self._repository = repository
        self._finished_runs = finished_runs
        self._settings = settings
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def job(
        self, record: JobRecord, memberships: Sequence[MembershipRecord], now: float, nodes: Iterable[Node] = ()
    ) -> Job:
        """The job as a round would see it, as far as forecasting needs it. `nodes`: of the cluster; none: not known."""
        spec, runs, entry = spec_of(record), self._finished_runs, self._entry(record.id)
        until = now if record.finished_at is None else record.finished_at
        similar = self._similar(record.id, spec.family)
        with entry.turn:
            history = entry.histories(self._repository).updated(record, memberships)
            has_speeds = bool(history.speeds.samples())
            return job_of(
                record,
                spec,
                memberships,
                history,
                backoff=self._settings.retry_backoff,
                calculated_speeds=() if has_speeds or runs is None else runs.calculated_speeds(record, spec),
                similar=similar,
                experience=NO_EXPERIENCE if runs is None else runs.experience_of(spec.family),
                spent=spent(memberships, spec, record.intended.gpu_type or spec.gpu_type, self._settings, until),
                allocation=record.intended,
                formed=NOTHING,
                batch=record.wanted_batch,
                boundary=None if runs is None else runs.boundary_of(spec, Nodes.of(nodes)),
            )

    def last_steps(self, record: JobRecord, memberships: Sequence[MembershipRecord]) -> Mapping[int, LastStep]:
        """Membership epoch → the last of its steps; without those in which none came."""
        entry = self._entry(record.id)
        with entry.turn:
            return dict(entry.histories(self._repository).updated(record, memberships).last_steps)

    def evaluations(self, record: JobRecord, memberships: Sequence[MembershipRecord]) -> answers.EvaluationList:
        """What the job's evaluations gave so far, figure by figure."""
        entry = self._entry(record.id)
        with entry.turn:
            evaluations = entry.histories(self._repository).updated(record, memberships).evaluations
            found = {name: values.points() for name, values in sorted(evaluations.items())}
        series = [
            answers.EvaluationSeries(name=name, values=_metric_points(steps, values))
            for name, (steps, values) in found.items()
            if steps
        ]
        return answers.EvaluationList(series=series)

    def curves(self, record: JobRecord, memberships: Sequence[MembershipRecord]) -> answers.Curves:
        """What the job measured so far: its loss and the figures of its evaluations, over steps, epochs and time."""
        entry = self._entry(record.id)
        with entry.turn:
            history = entry.histories(self._repository).updated(record, memberships)
            curves = [history.losses, *history.evaluations.values()]
            told = [*(each.at for each in memberships), *chain.from_iterable(each.moments() for each in curves)]
            since = counts_from(record, told)
            loss = _measured_points(record, history.losses, since)
            evaluations = {
                name: _measured_points(record, values, since) for name, values in sorted(history.evaluations.items())
            }
        series = [answers.MeasuredSeries(name=name, points=points) for name, points in evaluations.items() if points]
        return answers.Curves(loss=loss, figures=series)

    def _similar(self, job_id: str, family: str) -> tuple[EndedJob, ...]:
        """Without itself, once it has ended."""
        if self._finished_runs is None:
            return ()
        self._finished_runs.refresh()
        self._finished_runs.read_tasks([family])
        return tuple(ended for ended in self._finished_runs.similar_to(family) if ended.id != job_id)

    def _entry(self, job_id: str) -> _Entry:
        with self._lock:
            entry = self._entries.setdefault(job_id, _Entry())
            self._entries.move_to_end(job_id)
            if len(self._entries) > _MAX_JOBS:
                self._entries.popitem(last=False)
            return entry


@dataclass(slots=True)
class _Entry:
    """One job's history; requests for the same job take turns."""

    turn: threading.Lock = field(default_factory=threading.Lock)
    _histories: Histories | None = None

    def histories(self, repository: Repository) -> Histories:
        if self._histories is None:
            self._histories = Histories(repository)
        return self._histories


class Question(NamedTuple):
    """What somebody wants to know of a job."""

    workers: range
    """With `servers`, the sizes that speeds are wanted for."""
    servers: range
    now: float
    limits: Limits = Limits()
    capacity: Resources | None = None
    """What the cluster has; None: not known."""
    quota: Resources | None = None
    """What its project may have at most; None: no such limit."""
    still: Standstills = MappingProxyType({})
    """Jobs that make no step now."""
    speed: float | None = None
    """Of the job with what it has (`speed_here`)."""


def predictions_body(
    record: JobRecord,
    job: Job,
    decisions: Sequence[DecisionRecord],
    question: Question,
    settings: Settings,
    checkpoints: answers.CheckpointAdvice | None = None,
    past: Iterable[PredictionRecord] = (),
) -> answers.Predictions:
    """Everything that is believed of a job; of one that has ended, also what came. Pure.

    Args:
        record: the job's row.
        job: the same job with its samples (`HistoryCache.job`).
        decisions: its past decisions, newest first.
        question: what is asked.
        settings: the constants of a round.
        checkpoints: of a script (`checkpoint_advice`).
        past: of one that has ended, what was told of it.
    """
    latest = decisions[0] if decisions else None
    believed = Forecast(record.id, None, None, 0.0) if latest is None else latest.forecast
    ahead = progress_of(record, latest, question.now, None, question.still, question.speed)
    end = End.of(believed)
    total_steps = _total_steps(believed, ahead.remaining_steps, step_of(record, question.still))
    is_over = record.owner_paused_at is not None and reached_limit(record, latest, question.now) is not None
    fitted = Fits().of([job], settings)[0]
    allocations = _allocations(job, question)
    # One that has no other size is told one time left.
    shown = ahead.remaining_seconds if allocations == [record.intended] else ahead.at_its_size
    if latest is not None and latest.changes_size and question.speed is None:
        shown = None  # until the next round its forecast is of the size that it had
    is_by_clock, steps_left = believed.rule in BY_CLOCK, estimate_of(ahead.remaining_steps)
    basis = _basis(end, shown, question.now, settings, is_by_clock=is_by_clock and steps_left is not None)
    if basis.is_by_clock:
        steps_left = _steps_without_clock(job, question.now, settings)
    found = sizes(job, fitted.speeds, allocations, steps_left, basis)
    # While a change of size is under way it has what trains; the forecast tells of what it gets.
    present = job.allocation if record.running.is_empty else record.running._replace(gpu_type=_gpu_type(job))
    beyond = {size: None if size == present else _beyond(record, job, size, question) for size in allocations}
    is_priced = has_prices(settings)
    allowed = [each for each in found if beyond[each.allocation] is None]
    return answers.Predictions(
        at=None if latest is None else moment(latest.at),
        total_steps=None if is_over or (end is not None and end.is_guessed) else total_steps,
        remaining_steps=ahead.remaining_steps,
        remaining_seconds=ahead.remaining_seconds,
        expected=ahead.expected,
        confidence=finite(believed.confidence) or 0.0,
        rule=believed.rule,
        loss_curve=finite_document(believed.loss_curve),
        speed_model=finite_document(believed.speed_model),
        speeds=_speed_table(job, beyond, found, is_priced=is_priced),
        losses=_curve_points(job.loss_steps, job.losses),
        fitted=_fitted_curve(fitted.curve, job, total_steps),
        history=[prediction_point_body(each) for each in reversed(decisions)],
        learned=learned_then(believed) if record.state.is_final else _learned(fitted),
        learning_rates=_rate_points(job.rate_steps, job.learning_rates),
        planned_rates=_rate_points(*(column.tolist() for column in rates_to_come(job))),
        metric=_metric_body(job, fitted.metric, total_steps),
        cost=cost_body(allowed, present, job.spent, question.limits, _waiting(record, ahead.expected))
        if is_priced
        else None,
        # Where a limit of time or money ends the job, another size takes as long or costs as much, whatever its speed.
        advice=[] if is_by_clock else _advice(record, replace(job, allocation=present), fitted, question, settings),
        checkpoints=checkpoints,
        outcome=outcome_body(record, past, job.spent if is_priced else None),
    )


def _allocations(job: Job, question: Question) -> list[Allocation]:
    """The sizes that are asked for, as far as the job may have such."""
    servers = question.servers if job.spec.server.maximum else range(1)  # none: an all-reduce job
    # Further workers of a script that stays one process, or at its size, would train the same once more.
    workers = range(1, 2) if job.spec.worker.maximum == 1 and not job.spec.may_grow else question.workers
    return [Allocation(w, p, _gpu_type(job)) for w in workers for p in servers]


def _advice(
    record: JobRecord, job: Job, fitted: Fitted, question: Question, settings: Settings
) -> list[answers.Advice]:
    """Other sizes that are worth a thought. What runs outside the cluster has the size that its owner gives it."""

    def may_have(size: Allocation) -> bool:
        return job.spec.tracked or _beyond(record, job, size, question) is None

    return advice(job, fitted.speeds, settings, may_have)


def _total_steps(believed: Forecast, left: answers.Interval | None, step: int) -> answers.Interval | None:
    """As many as are `left` and those that are made: the job has gone on since its forecast."""
    if left is None or believed.total_steps is None:
        return interval_body(believed.total_steps)
    return answers.Interval(
        mean=step + left.mean,
        low=None if left.low is None else step + left.low,
        high=None if left.high is None else step + left.high,
    )


def _basis(
    end: End | None,
    shown: answers.Interval | None,
    now: float,
    settings: Settings,
    *,
    is_by_clock: bool,
) -> Basis:
    """`shown`: seconds left at the present size, by the latest decision's forecast, whose `end` this is."""
    return Basis(now, settings, estimate_of(shown), is_by_clock, AS_MEASURED if end is None else end.course)


def _waiting(record: JobRecord, expected: answers.ExpectedTimes | None) -> Interval | None:
    """Seconds until the job has tasks; None: it has none, and nothing tells when it gets some."""
    if not (record.is_without_tasks and record.running.is_empty):
        return Interval(0.0, 0.0, 0.0)
    start = None if expected is None or not record.waits else estimate_of(expected.start_seconds)
    return None if start is None else Interval(*start)


def _steps_without_clock(job: Job, now: float, settings: Settings) -> Estimate | None:
    """Steps that are left by all that ends the job but limits of time and money; None: nothing is known to."""
    spec = replace(job.spec, convergence=job.spec.convergence.without_clock)
    ahead = forecast(replace(job, spec=spec), now, settings).forecast
    return None if ahead.rule is None or ahead.remaining_steps is None else Estimate(*ahead.remaining_steps)


def _gpu_type(job: Job) -> str | None:
    return job.allocation.gpu_type or job.spec.gpu_type


def _learned(fitted: Fitted) -> answers.Learned:
    experts, source = fitted.curve.experts, fitted.speeds.source
    return answers.Learned(
        finished_runs=experts.n_runs if experts else 0,
        share=1.0 - experts.own_share if experts else 0.0,
        speeds_from=None if source is None else source.value,
    )


def learned_then(believed: Forecast) -> answers.Learned:
    """Of a job that has ended: what its last forecast rested on. Runs that ended after it taught it nothing."""
    return answers.Learned(
        finished_runs=believed.finished_runs,
        share=finite(believed.finished_runs_share) or 0.0,
        speeds_from=None if believed.speed_from is None else believed.speed_from.value,
    )


def _speed_table(
    job: Job, beyond: Mapping[Allocation, str | None], found: Iterable[Size], *, is_priced: bool
) -> list[answers.SpeedPoint]:
    """One row per size of `beyond`; without a single measurement the speeds are unknown."""
    known_sizes = {size.allocation: size for size in found}
    return [
        replace(_speed_point(job, size, known_sizes.get(size), is_priced=is_priced), beyond=what)
        for size, what in beyond.items()
    ]


def _beyond(record: JobRecord, job: Job, size: Allocation, question: Question) -> str | None:
    """Why the job may not have this size now, whatever others have: None where it may."""
    worker, server, asked = job.spec.worker, job.spec.server, record.asked.workers
    if size == job.allocation:
        return None
    # Of one whose size stays, `worker` has that size, not what its owner allows.
    least, most = (asked.min, asked.max) if job.spec.size_stays else (worker.minimum, worker.maximum)
    for count, minimum, maximum, what in (
        (size.workers, least, most, "worker"),
        (size.servers, server.minimum, server.maximum, "server"),
    ):
        if count > maximum:
            return f"its limit of {counted(maximum, what)}"
        if count < minimum:
            return f"its least of {counted(minimum, what)}"
    if not worker.minimum <= size.workers <= worker.maximum:
        has = counted(worker.maximum, "worker")
        return f"the {has} that it keeps, as it is not known to go on from checkpoints at another size"
    needs = job.spec.demand(size.workers, size.servers)
    if question.capacity is not None and not needs.fits_in(question.capacity):
        return "what the cluster has"
    if question.quota is not None and not needs.fits_in(question.quota):
        return f"the quota of project {job.spec.project}"
    return None


def _speed_point(job: Job, allocation: Allocation, size: Size | None, *, is_priced: bool) -> answers.SpeedPoint:
    ahead = None if size is None else size.left
    here = [
        counted_speed(job, sample)
        for sample in job.speed_samples
        if (sample.workers, sample.servers) == (allocation.workers, allocation.servers)
    ]
    return answers.SpeedPoint(
        workers=allocation.workers,
        servers=allocation.servers,
        steps_per_second=None if size is None else finite(size.steps_per_second.mean),
        remaining_seconds=None if ahead is None else interval_body(ahead.seconds),
        measured=finite(sum(here) / len(here)) if here else None,
        cost=interval_body(ahead.cost) if ahead is not None and is_priced else None,
    )


def _metric_body(job: Job, curve: MetricCurve | None, total_steps: answers.Interval | None) -> answers.Metric | None:
    target = job.spec.convergence.target_metric
    if target is None or curve is None:
        return None
    steps = _steps_and_ahead(job.metric_steps, total_steps)
    fitted = curve.predict(steps).tolist() if curve.n_points else []
    return answers.Metric(
        name=target.name,
        target=target.value,
        values=_metric_points(job.metric_steps, job.metric_values),
        fitted=_metric_points(steps.tolist(), fitted) if fitted else [],
    )


def _metric_points(steps: Iterable[float], values: Iterable[float]) -> list[answers.MetricPoint]:
    return [answers.MetricPoint(step=step, value=value) for step, value in zip(steps, values, strict=True)]


def _measured_points(record: JobRecord, values: LossBuckets, since: float) -> list[answers.MeasuredPoint]:
    per_epoch = (record.profile or {}).get("steps_per_epoch")
    return [
        answers.MeasuredPoint(
            step=step,
            epoch=step / per_epoch if per_epoch else None,
            at_seconds=finite(at - since),
            value=finite(value),
        )
        for step, value, at in zip(*values.points(), values.moments(), strict=True)
    ]


def _rate_points(steps: Iterable[float], rates: Iterable[float]) -> list[answers.RatePoint]:
    return [answers.RatePoint(step=step, rate=rate) for step, rate in zip(steps, rates, strict=True)]


def _steps_and_ahead(measured: Sequence[float], total_steps: answers.Interval | None) -> NDArray[np.float64]:
    """The steps of the data, and some on to the predicted end."""
    steps = np.asarray(measured, dtype=np.float64)
    last = float(steps[-1]) if len(steps) else 0.0
    if total_steps is None or total_steps.mean <= last:
        return steps
    return np.concatenate([steps, np.linspace(last, total_steps.mean, _POINTS_AHEAD + 1)[1:]])


def _fitted_curve(curve: LossCurve, job: Job, total_steps: answers.Interval | None) -> list[answers.FittedPoint]:
    """The fitted curve at the steps of the data and on to the predicted end; empty when nothing can be fitted."""
    if curve.n_points == 0:
        return []
    steps = _steps_and_ahead(job.loss_steps, total_steps)
    low, high = curve.predict_interval(steps)
    return [
        answers.FittedPoint(step=step, loss=finite(loss), low=finite(below), high=finite(above))
        for step, loss, below, above in zip(
            steps.tolist(), curve.predict(steps).tolist(), low.tolist(), high.tolist(), strict=True
        )
    ]


def _curve_points(steps: Iterable[float], losses: Iterable[float]) -> list[answers.CurvePoint]:
    return [answers.CurvePoint(step=step, loss=finite(loss)) for step, loss in zip(steps, losses, strict=True)]
