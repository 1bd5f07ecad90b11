"""What Optimus believes of one job, for people: the latest round's forecast, and the models behind it as tables.

The figures are those of the latest decision, brought up to the present step. The tables (speed by size, fitted loss
curve) come from fitting the same models to the same rows as a round does, so they say what the next round will see.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from optimus_models.loss_curve import LossCurve
from optimus_scheduler.forecast import forecast
from optimus_scheduler.outlook import Outlook
from optimus_scheduler.settings import Settings
from optimus_scheduler.types import Allocation, Job
from optimus_service.api.present import moment, prediction_point_body
from optimus_service.api.schemas import CurvePointBody, IntervalBody, PredictionsBody, SpeedPointBody
from optimus_service.loop.observe import Histories
from optimus_service.loop.specification import spec_of
from optimus_service.store.records import DecisionRecord, JobRecord, MembershipRecord
from optimus_service.store.repository import Repository
from optimus_service.views import finite, finite_document, interval, outlook

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

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def job(self, record: JobRecord, memberships: Iterable[MembershipRecord]) -> Job:
        """The job as a round would see it, as far as forecasting needs it."""
        entry = self._entry(record.id)
        with entry.turn:
            history = entry.histories(self._repository).updated(record, memberships)
            loss_steps, losses = history.losses.points()
            speeds = history.speeds.samples()
        return Job(
            id=record.id,
            spec=spec_of(record),
            state=record.state,
            submitted_at=record.created_at,
            started_at=record.started_at,
            step=record.step,
            steps_per_epoch=(record.profile or {}).get("steps_per_epoch"),
            loss_steps=loss_steps,
            losses=losses,
            speed_samples=speeds,
            allocation=record.wanted,
            allocated_at=record.wanted_at,
            directive=record.directive,
        )

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


def predictions_body(
    record: JobRecord, job: Job, decisions: Sequence[DecisionRecord], workers: range, servers: range, now: float
) -> PredictionsBody:
    """Everything that is believed of a job. Pure.

    Args:
        record: the job's row.
        job: the same job with its samples (`HistoryCache.job`).
        decisions: its past decisions, newest first.
        workers: with `servers`, the sizes that speeds are wanted for.
        servers: see `workers`.
        now: POSIX seconds.
    """
    latest = decisions[0] if decisions else None
    believed = {} if latest is None else latest.forecast
    ahead = outlook(record, latest)
    total_steps = interval(believed.get("total_steps"))
    return PredictionsBody(
        at=None if latest is None else moment(latest.at),
        total_steps=total_steps,
        remaining_steps=ahead.remaining_steps,
        remaining_seconds=ahead.remaining_seconds,
        confidence=finite(believed.get("confidence")) or 0.0,
        rule=believed.get("rule"),
        loss_curve=finite_document(believed.get("loss_curve", {})),
        speed_model=finite_document(believed.get("speed_model", {})),
        speeds=_speed_table(forecast(job, now, Settings()), ahead.remaining_steps, workers, servers),
        losses=_curve_points(job.loss_steps, job.losses),
        fitted=_fitted_curve(job, total_steps),
        history=[prediction_point_body(each) for each in reversed(decisions)],
    )


def _speed_table(
    fitted: Outlook, remaining_steps: IntervalBody | None, workers: range, servers: range
) -> list[SpeedPointBody]:
    """One row per size; without a single measurement the speeds are unknown."""
    known = fitted.speeds.model.n_points > 0
    return [
        _speed_point(w, p, fitted.speeds.at(Allocation(w, p)) if known else None, remaining_steps)
        for w in workers
        for p in servers
    ]


def _speed_point(workers: int, servers: int, speed: float | None, remaining: IntervalBody | None) -> SpeedPointBody:
    seconds = None
    if speed and remaining is not None:
        low, high = (None if bound is None else bound / speed for bound in (remaining.low, remaining.high))
        seconds = IntervalBody(mean=remaining.mean / speed, low=low, high=high)
    return SpeedPointBody(workers=workers, servers=servers, steps_per_second=finite(speed), remaining_seconds=seconds)


def _fitted_curve(job: Job, total_steps: IntervalBody | None) -> list[CurvePointBody]:
    """The fitted curve at the steps of the data and on to the predicted end; empty when nothing can be fitted."""
    curve = LossCurve.fit(job.loss_steps, job.losses)
    if curve.n_points == 0:
        return []
    steps = np.asarray(job.loss_steps)
    if total_steps is not None and total_steps.mean > curve.last_step:
        ahead = np.linspace(curve.last_step, total_steps.mean, _POINTS_AHEAD + 1)[1:]
        steps = np.concatenate([steps, ahead])
    return _curve_points(steps.tolist(), curve.predict(steps).tolist())


def _curve_points(steps: Iterable[float], losses: Iterable[float]) -> list[CurvePointBody]:
    return [CurvePointBody(step=step, loss=finite(loss)) for step, loss in zip(steps, losses, strict=True)]
