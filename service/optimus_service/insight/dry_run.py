"""What would happen if a job were submitted now: the round's own `plan`, on the world with the job and without it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np

from optimus_scheduler.forecast.forecast import forecast
from optimus_scheduler.forecast.prices import cost_per_second, has_prices
from optimus_scheduler.forecast.time_left import time_left
from optimus_scheduler.model import (
    NOTHING,
    Allocation,
    Decision,
    Directive,
    Forecast,
    Interval,
    Job,
    JobState,
    Plan,
    Snapshot,
)
from optimus_scheduler.settings import Settings as SchedulerSettings
from optimus_scheduler.what_if import what_gives_more
from optimus_service.clusters.base import Cluster
from optimus_service.observe.snapshot import ClusterView, Observer
from optimus_service.store.records import Document, JobRecord

CANDIDATE = "dry-run"
"""The id that a job has while it is only thought of: submitted ones always have a random end."""

_MOST_JOBS_TO_TRY = 300
"""Active jobs beyond which it is not tried what would give one of them more: that plans a dozen times."""
_Planner = Callable[[Snapshot, Callable[[str], AbstractContextManager[object]]], Plan]


@dataclass(frozen=True, slots=True)
class Effect:
    """What the new job would do to another one."""

    job_id: str
    before: Allocation
    after: Allocation
    forecast_before: Forecast | None
    """With the size that it would have; None when it would have no tasks."""
    forecast_after: Forecast | None


@dataclass(frozen=True, slots=True)
class Previewed:
    """The answer."""

    record: JobRecord
    """The job as it would be stored."""
    decision: Decision
    forecast: Forecast | None
    """With the size that it would get; None when it would get none."""
    n_similar: int
    """Ended jobs of the same task that the forecast was helped by."""
    effects: tuple[Effect, ...]
    """Of other jobs that would get another size."""
    gives_more: tuple[str, ...] | None
    """What each alone would give it more; None: not tried."""


class Preview:
    """Looks at the world and plans, without writing anything. Thread-safe; previews take turns."""

    def __init__(
        self,
        cluster: Cluster,
        observer: Observer,
        planner: _Planner,
        constants: SchedulerSettings,
        clock: Callable[[], float],
    ) -> None:
        """`observer` and `planner` are for this alone: they remember what they read and fitted."""
        self._cluster = cluster
        self._observer = observer
        self._planner = planner
        self._constants = constants
        self._clock = clock
        self._turn = threading.Lock()

    def of(self, spec: Document, names: Mapping[str, str]) -> Previewed:
        """What would happen if `spec` (a `JobSpec` as a document) were submitted now. `names` of other jobs, by id.

        Raises:
            ClusterUnavailable: nobody can tell.
            DatabaseNotAvailable: nobody can tell.
        """
        with self._turn:
            now, view = self._clock(), ClusterView.of(self._cluster)
            without = self._observer.look(view, now)
            record = as_record(spec, now)
            candidate = with_steps_per_epoch(self._observer.as_submitted(record, view, now))
            world = replace(without, jobs=(*without.jobs, candidate))
            planned = self._planner(world, _untimed)
            present = self._planner(without, _untimed)
            gives_more = self._gives_more(world, CANDIDATE, names)
        decisions = {decision.job_id: decision for decision in planned.decisions}
        decision = decisions.pop(CANDIDATE)
        return Previewed(
            record=record,
            decision=decision,
            forecast=self._forecast(candidate, decision.allocation, now),
            n_similar=len(candidate.similar),
            effects=self._effects({job.id: job for job in without.jobs}, present, decisions, now),
            gives_more=gives_more,
        )

    def what_gives_more(self, job_id: str, names: Mapping[str, str]) -> tuple[str, ...] | None:
        """Changes each of which alone would give the job more than the next round does (`what_if`); `names` by job id.

        None when that was not tried: the job is not active any more, or there are so many that it would take long.

        Raises:
            ClusterUnavailable: nobody can tell.
            DatabaseNotAvailable: nobody can tell.
        """
        with self._turn:
            snapshot = self._observer.look(ClusterView.of(self._cluster), self._clock())
            return self._gives_more(snapshot, job_id, names)

    def _gives_more(self, snapshot: Snapshot, job_id: str, names: Mapping[str, str]) -> tuple[str, ...] | None:
        if len(snapshot.jobs) > _MOST_JOBS_TO_TRY or all(job.id != job_id for job in snapshot.jobs):
            return None
        return what_gives_more(snapshot, job_id, lambda changed: self._planner(changed, _untimed), names)

    def _effects(
        self, jobs: Mapping[str, Job], present: Plan, decisions: Mapping[str, Decision], now: float
    ) -> tuple[Effect, ...]:
        return tuple(
            Effect(
                job_id=before.job_id,
                before=before.allocation,
                after=after.allocation,
                forecast_before=self._forecast(jobs[before.job_id], before.allocation, now),
                forecast_after=self._forecast(jobs[before.job_id], after.allocation, now),
            )
            for before in present.decisions
            if (after := decisions[before.job_id]).allocation != before.allocation
        )

    def _forecast(self, job: Job, size: Allocation, now: float) -> Forecast | None:
        """What is believed of the job with this size."""
        if size.is_empty:
            return None
        granted = replace(job, allocation=size, allocated_at=now)
        ahead = forecast(granted, now, self._constants).forecast
        return ahead if ahead.total_steps is not None else like_similar(granted, ahead, self._constants)


def like_similar(job: Job, ahead: Forecast, constants: SchedulerSettings) -> Forecast:
    """Of a job without a single loss no curve can be fitted: it is expected to take as many epochs as similar ones did.

    The middle one of them, from the 10th percentile to the 90th; one alone says little, so its number is halved and
    doubled. As it is when none has ended, or nothing is known of the speed.
    """
    told = [
        ended.loss_steps[-1] / ended.steps_per_epoch
        for ended in job.similar
        if ended.loss_steps and ended.steps_per_epoch
    ]
    if not told or not job.steps_per_epoch or ahead.seconds_per_step is None:
        return ahead
    epochs = np.array(told)
    low, middle, high = np.quantile(epochs, (0.1, 0.5, 0.9)) if len(epochs) > 1 else epochs[0] * np.array([0.5, 1, 2])
    steps = Interval(*(float(each) * job.steps_per_epoch for each in (middle, low, high)))
    seconds = time_left(steps, ahead.seconds_per_step, job.calibration.seconds)
    price = cost_per_second(job.spec, job.allocation, constants) if has_prices(constants) else None
    cost = None if price is None else _times(seconds, price)
    return replace(ahead, total_steps=steps, remaining_steps=steps, remaining_seconds=seconds, cost=cost)


def _times(value: Interval, factor: float) -> Interval:
    return Interval(value.mean * factor, value.low * factor, value.high * factor)


def with_steps_per_epoch(job: Job) -> Job:
    """The steps of an epoch are told by a job's tasks once they run; until then, those of the newest similar job."""
    for ended in reversed(job.similar):
        if job.spec.counted_batch in (None, ended.global_batch_size):
            batch_size = job.spec.global_batch_size or ended.global_batch_size
            spec = replace(job.spec, global_batch_size=batch_size)
            return replace(job, spec=spec, steps_per_epoch=job.steps_per_epoch or ended.steps_per_epoch)
    return job


def as_record(spec: Document, now: float) -> JobRecord:
    """A job that was submitted this instant."""
    return JobRecord(
        id=CANDIDATE,
        name=spec["name"],
        project=spec["project"],
        spec=spec,
        state=JobState.QUEUED,
        directive=Directive.RUN,
        created_at=now,
        started_at=None,
        finished_at=None,
        generation=0,
        wanted=NOTHING,
        wanted_at=None,
        membership_epoch=0,
        running=NOTHING,
        step=0,
        first_step=None,
        epoch=None,
        loss=None,
        profile=None,
        result=None,
        failure=None,
        token_nonce="",
        coordinator_address=None,
        rescales=0,
        version=0,
    )


def _untimed(_: str) -> AbstractContextManager[object]:
    return nullcontext()
