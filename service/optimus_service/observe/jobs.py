"""A job as the scheduler sees it, made of its row and of what its tasks have reported. Pure.

Rounds and answers that forecast one job make it here alike; what only rounds know comes as arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from optimus_models.calibration import Experience
from optimus_scheduler.forecast.alike_runs import busy_part_with_alike_runs, report_seconds_of_alike_runs
from optimus_scheduler.forecast.priors import counted_alike
from optimus_scheduler.model import (
    NOTHING,
    Allocation,
    EndedJob,
    Job,
    JobSpec,
    PlacedTask,
    SpeedSample,
    TaskKey,
)
from optimus_scheduler.retries import Backoff, Retry
from optimus_service.observe.spec import next_step, promised_at, silent_since, spec_of
from optimus_service.observe.standstills import rescale_seconds
from optimus_service.observe.telemetry import JobHistory
from optimus_service.store.records import JobRecord, MembershipRecord


def job_of(
    record: JobRecord,
    spec: JobSpec,
    memberships: Sequence[MembershipRecord],
    history: JobHistory,
    *,
    backoff: Backoff,
    calculated_speeds: tuple[SpeedSample, ...],
    similar: tuple[EndedJob, ...],
    experience: Experience,
    spent: float,
    allocation: Allocation,
    batch: int | None,
    formed: Allocation = NOTHING,
    joining_seconds: tuple[float, ...] = (),
    unsaved_seconds: float = 0.0,
    wanted_tasks: tuple[PlacedTask, ...] = (),
    stragglers: tuple[TaskKey, ...] = (),
    attained_share_seconds: float = 0.0,
) -> Job:
    """The arguments by keyword are as in `Job`."""
    loss_steps, losses = history.losses.points()
    metric_steps, metric_values = history.metrics.points()
    rate_steps, learning_rates = history.learning_rates()
    planned_rate_steps, planned_rates = history.planned_rates
    each = (record.profile or {}).get("steps_per_epoch")
    alike = counted_alike(similar, spec.arguments, each == 1.0 if record.step else None)
    return Job(
        id=record.id,
        spec=spec,
        state=record.state,
        submitted_at=record.created_at,
        owner=record.owner,
        started_at=record.started_at,
        step=next_step(record),
        silent_since=silent_since(record),
        report_seconds=history.report_seconds or report_seconds_of_alike_runs(alike, spec.arguments),
        steps_per_epoch=each,
        loss_steps=loss_steps,
        losses=losses,
        rate_steps=rate_steps,
        learning_rates=learning_rates,
        planned_rate_steps=planned_rate_steps,
        planned_rates=planned_rates,
        metric_steps=metric_steps,
        metric_values=metric_values,
        speed_samples=history.speeds.samples(),
        noise_steps=tuple(float(step) for step, _ in history.noise),
        noise_scales=tuple(scale for _, scale in history.noise),
        calculated_speeds=calculated_speeds,
        similar=alike,
        spent=spent,
        allocation=allocation,
        formed=formed,
        allocated_at=record.wanted_at,
        directive=record.directive,
        retry=retry_of(record, backoff),
        held_until=record.retry_at,
        owner_paused=record.owner_paused_at is not None,
        paused_by=record.paused_by,
        promised_at=promised_at(record),
        rescale_seconds=rescale_seconds(memberships),
        joining_seconds=joining_seconds,
        unsaved_seconds=unsaved_seconds,
        busy_part=busy_part_with_alike_runs(history.pauses.busy_seconds, history.pauses.seconds, alike, spec.arguments),
        experience=experience,
        wanted_tasks=wanted_tasks,
        batch=batch,
        stragglers=stragglers,
        attained_share_seconds=attained_share_seconds,
    )


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
