"""A job as the scheduler sees it, made of its row and of what its tasks have reported. Pure.

Rounds and answers that forecast one job make it here alike; what only rounds know comes as arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NotRequired, TypedDict, Unpack

from optimus_models.calibration import Experience
from optimus_models.speed.boundary import Boundary
from optimus_scheduler.forecast.alike_runs import busy_part_with_alike_runs, report_seconds_of_alike_runs
from optimus_scheduler.forecast.priors import counted_alike
from optimus_scheduler.model import (
    Allocation,
    Directive,
    EndedJob,
    Job,
    JobSpec,
    JobState,
    PlacedTask,
    SpeedSample,
    TaskKey,
)
from optimus_scheduler.retries import Backoff, Retry
from optimus_service.observe.spec import began_at, next_step, promised_at, silent_since, spec_of
from optimus_service.observe.standstills import rescale_seconds
from optimus_service.observe.telemetry import JobHistory
from optimus_service.store.records import JobRecord, MembershipRecord


class Circumstances(TypedDict):
    """What neither the job's row nor its reports say; each as in `Job`."""

    calculated_speeds: tuple[SpeedSample, ...]
    experience: Experience
    spent: float
    allocation: Allocation
    formed: Allocation
    batch: int | None
    joining_seconds: NotRequired[tuple[float, ...]]
    unsaved_seconds: NotRequired[float]
    wanted_tasks: NotRequired[tuple[PlacedTask, ...]]
    stragglers: NotRequired[tuple[TaskKey, ...]]
    attained_share_seconds: NotRequired[float]
    boundary: NotRequired[Boundary | None]


def job_of(
    record: JobRecord,
    spec: JobSpec,
    memberships: Sequence[MembershipRecord],
    history: JobHistory,
    *,
    backoff: Backoff,
    similar: tuple[EndedJob, ...],
    **circumstances: Unpack[Circumstances],
) -> Job:
    """`similar`: ended jobs of the same task, oldest first."""
    return Job(
        spec=spec,
        rescale_seconds=rescale_seconds(memberships),
        **_recorded(record, backoff),
        **_reported(history),
        **_judged_by_alike_runs(record, spec, history, similar),
        **circumstances,
    )


class _Recorded(TypedDict):
    id: str
    state: JobState
    submitted_at: float
    owner: str | None
    started_at: float | None
    step: int
    silent_since: float | None
    steps_per_epoch: float | None
    allocated_at: float | None
    directive: Directive
    retry: Retry | None
    held_until: float | None
    owner_paused: bool
    paused_by: str | None
    promised_at: float | None
    began_at_step: int


def _recorded(record: JobRecord, backoff: Backoff) -> _Recorded:
    """What stands in the job's row."""
    return {
        "id": record.id,
        "state": record.state,
        "submitted_at": record.created_at,
        "owner": record.owner,
        "started_at": record.started_at,
        "step": next_step(record),
        "silent_since": silent_since(record),
        "steps_per_epoch": _steps_per_epoch(record),
        "allocated_at": record.wanted_at,
        "directive": record.directive,
        "retry": retry_of(record, backoff),
        "held_until": record.retry_at,
        "owner_paused": record.owner_paused_at is not None,
        "paused_by": record.paused_by,
        "promised_at": promised_at(record),
        "began_at_step": began_at(record),
    }


def _steps_per_epoch(record: JobRecord) -> float | None:
    return (record.profile or {}).get("steps_per_epoch")


class _Reported(TypedDict):
    loss_steps: tuple[float, ...]
    losses: tuple[float, ...]
    rate_steps: tuple[float, ...]
    learning_rates: tuple[float, ...]
    planned_rate_steps: tuple[float, ...]
    planned_rates: tuple[float, ...]
    metric_steps: tuple[float, ...]
    metric_values: tuple[float, ...]
    speed_samples: tuple[SpeedSample, ...]
    noise_steps: tuple[float, ...]
    noise_scales: tuple[float, ...]


def _reported(history: JobHistory) -> _Reported:
    """What its tasks have measured, step by step."""
    loss_steps, losses = history.losses.points()
    rate_steps, learning_rates = history.learning_rates()
    planned_rate_steps, planned_rates = history.planned_rates
    metric_steps, metric_values = history.metrics.points()
    return {
        "loss_steps": loss_steps,
        "losses": losses,
        "rate_steps": rate_steps,
        "learning_rates": learning_rates,
        "planned_rate_steps": planned_rate_steps,
        "planned_rates": planned_rates,
        "metric_steps": metric_steps,
        "metric_values": metric_values,
        "speed_samples": history.speeds.samples(),
        "noise_steps": tuple(float(step) for step, _ in history.noise),
        "noise_scales": tuple(scale for _, scale in history.noise),
    }


class _Judged(TypedDict):
    similar: tuple[EndedJob, ...]
    report_seconds: float
    busy_part: float


def _judged_by_alike_runs(
    record: JobRecord, spec: JobSpec, history: JobHistory, similar: tuple[EndedJob, ...]
) -> _Judged:
    """What runs like it say of it, as long as its own reports do not."""
    alike = counted_alike(similar, spec.arguments, _steps_per_epoch(record) == 1.0 if record.step else None)
    pauses = history.pauses
    return {
        "similar": alike,
        "report_seconds": history.report_seconds or report_seconds_of_alike_runs(alike, spec.arguments),
        "busy_part": busy_part_with_alike_runs(pauses.busy_seconds, pauses.seconds, alike, spec.arguments),
    }


def as_edited(job: Job, record: JobRecord) -> Job:
    """The job as it would be with the specification that `record`, which is not stored, has of it."""
    paused = record.asked.paused
    return replace(job, spec=spec_of(record), owner_paused=paused, promised_at=promised_at(record))


def retry_of(record: JobRecord, backoff: Backoff) -> Retry | None:
    """What the job waits for or has waited for; None unless it has failed since its owner last asked for it."""
    if record.retry_at is None or not record.retries:
        return None
    seconds = backoff.seconds(record.retries)
    return Retry(record.retries, record.asked.retries, record.retry_at, seconds, record.last_error or "")
