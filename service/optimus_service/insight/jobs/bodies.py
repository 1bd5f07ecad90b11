"""Stored records as bodies of the API. Pure; every number that is not finite becomes null on the way."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Literal, cast

from optimus_contract import answers
from optimus_contract.codec import read
from optimus_contract.job import NOT_SHOWN, JobSpec
from optimus_contract.membership import PauseParts, WantedMembership, WantedTask
from optimus_contract.result import JobProfile, JobResult
from optimus_scheduler.model import Allocation, Forecast, PlacedTask, Resources
from optimus_service.insight.format import finite, finite_document, interval_body, moment, moment_or_none
from optimus_service.insight.jobs.lost_work import Loss, losses, lost_by_a_stop
from optimus_service.insight.jobs.progress import loss_of, progress_of, silent_seconds, speed_here, step_of
from optimus_service.insight.jobs.usage import ReportedUsage, job_usage
from optimus_service.insight.jobs.why import explain
from optimus_service.observe.spec import awaits_retry, begins_anew, promised_at
from optimus_service.observe.standstills import Standstills
from optimus_service.observe.telemetry import newest_learning_rate, newest_noise_scale
from optimus_service.observe.unsaved_work import LastStep
from optimus_service.store.records import (
    DecisionRecord,
    Document,
    EventRecord,
    JobRecord,
    MembershipRecord,
    RoundRecord,
    SampleRecord,
    TaskRecord,
    WantedRecord,
)


def job_body(
    job: JobRecord,
    decision: DecisionRecord | None,
    steps_per_second: float | None,
    now: float,
    newest: Sequence[SampleRecord] = (),
    still: Standstills = MappingProxyType({}),
    memberships: Sequence[MembershipRecord] = (),
    began: float | None = None,
    awaited: str | None = None,
) -> answers.Job:
    """A job with what its latest decision and its newest samples say of it; `memberships` and `began`: see
    `lost_by_a_stop`; `awaited`: until when a task or a step is waited for."""
    usage = job_usage(newest)
    ahead = progress_of(job, decision, now, None, still, speed_here(job, newest, now))
    explanation = explain(job, decision, now)
    step = step_of(job, still)
    is_silent = job.id in still and still[job.id].is_silent
    loses_all = step < job.step  # what it has told is of steps that it makes again
    # Not validated: rules for requests would be asked of the stored specification again.
    expected = None if decision is None else decision.expected
    report_seconds = 0.0 if expected is None else expected.report_seconds
    return answers.Job(
        id=job.id,
        name=job.name,
        project=job.project,
        owner=job.owner,
        state=job.state.value,
        directive=job.directive.value,
        spec=_spec_body(job),
        created_at=moment(job.created_at),
        started_at=moment_or_none(job.started_at),
        finished_at=moment_or_none(job.finished_at),
        jct_seconds=None if job.finished_at is None else job.finished_at - job.created_at,
        first_step=job.first_step,
        step=step,
        epoch=None if loses_all else finite(job.epoch),
        loss=loss_of(job, still),
        steps_per_second=None if is_silent else finite(steps_per_second),
        silent_seconds=None if is_silent else silent_seconds(newest, now),
        wanted=allocation_body(job.intended),
        running=allocation_body(job.running),
        membership_epoch=job.membership_epoch,
        global_batch=job.wanted_batch,
        progress=ahead.progress,
        remaining_steps=ahead.remaining_steps,
        remaining_seconds=ahead.remaining_seconds,
        expected=ahead.expected,
        longer_than_predicted=ahead.longer_than_predicted,
        finishing=ahead.finishing,
        standstill=still[job.id].words if job.id in still else None,
        awaited=awaited,
        reason=explanation.reason,
        message=explanation.message,
        limit_reached=explanation.limit_reached,
        profile=_profile(job),
        result=None if job.result is None else _result_body(job.result),
        failure=job.failure,
        attempt=job.attempt,
        retries=job.retries,
        retry_at=moment_or_none(job.retry_at) if awaits_retry(job) else None,
        last_error=job.last_error,
        rescales=job.rescales,
        deadline_promised_at=moment_or_none(promised_at(job)),
        begins_anew=begins_anew(job),
        lost_by_a_stop=lost_by_a_stop(job, step, memberships, began, now, report_seconds, newest).words or None,
        usage=None if usage is None else answers.JobUsage(**asdict(usage)),
        noise_scale=newest_noise_scale(newest),
        learning_rate=newest_learning_rate(newest),
    )


def _spec_body(job: JobRecord) -> JobSpec:
    """What was asked for, without the values of its variables: whoever may read a job may not have its secrets."""
    asked = job.asked
    return replace(asked, environment=dict.fromkeys(asked.environment, NOT_SHOWN))


def resources_body(resources: Resources) -> answers.NodeResources:
    """An amount of resources."""
    return answers.NodeResources(cpu=resources.cpu, memory_bytes=resources.memory_bytes, gpus=dict(resources.gpus))


def allocation_body(allocation: Allocation) -> answers.Allocation:
    """An allocation."""
    return answers.Allocation(workers=allocation.workers, servers=allocation.servers, gpu_type=allocation.gpu_type)


def allocation_point_bodies(
    job: JobRecord,
    memberships: Sequence[MembershipRecord],
    began: Mapping[str, float],
    last_steps: Mapping[int, LastStep],
) -> list[answers.AllocationPoint]:
    """The memberships of the job's history, oldest first. `began`, `last_steps`: as for `losses`."""
    lost, since = losses(job, memberships, began, last_steps), counts_from(job, (each.at for each in memberships))
    return [_allocation_point(*each, since) for each in zip(memberships, lost, strict=True)]


def counts_from(job: JobRecord, moments: Iterable[float]) -> float:
    """From when the seconds of its history count (POSIX): its submission, or the first of `moments` if that is older.

    A training that runs elsewhere may have begun before it was heard of, and another clock may be behind; what lies
    between two moments is true either way. `moments`: NaN where one is not known.
    """
    return min([job.created_at, *filter(math.isfinite, moments)])


def _allocation_point(membership: MembershipRecord, lost: Loss, since: float) -> answers.AllocationPoint:
    return answers.AllocationPoint(
        at=moment(membership.at),
        at_seconds=membership.at - since,
        membership_epoch=membership.epoch,
        step=membership.step,
        workers=len(membership.workers),
        servers=len(membership.servers),
        gpu_type=membership.gpu_type,
        global_batch=membership.global_batch,
        cause=membership.cause,
        pause_seconds=finite(membership.pause_seconds),
        pause_parts=None if membership.pause_parts is None else PauseParts(**membership.pause_parts),
        lost_steps=lost.steps,
        lost_seconds=lost.seconds,
    )


def task_body(task: TaskRecord, reported: ReportedUsage | None) -> answers.Task:
    """One task, with what it takes of its machine."""
    return answers.Task(
        name=task.key.name,
        role=task.key.role.value,
        rank=task.key.rank,
        node=task.node,
        gpu_type=task.gpu_type,
        started_at=moment(task.created_at),
        usage=None if reported is None else answers.TaskUsage(at=moment(reported.at), **reported.usage),
    )


def event_body(event: EventRecord) -> answers.Event:
    """Something that happened."""
    return answers.Event(
        id=event.id, at=moment(event.at), type=event.type, message=event.message, data=finite_document(event.data)
    )


def decision_body(decision: DecisionRecord) -> answers.Decision:
    """What a round decided for one job."""
    return answers.Decision(
        round_id=decision.round_id,
        at=moment(decision.at),
        allocation=allocation_body(decision.allocation),
        previous=allocation_body(decision.previous),
        reason=decision.reason,
        message=decision.message,
        gain=finite(decision.gain),
        next_gain=finite(decision.next_gain),
        batch=decision.batch,
        forecast=_forecast_body(decision.forecast),
    )


def _forecast_body(forecast: Forecast) -> answers.Forecast:
    steps, seconds = forecast.calibration.steps, forecast.calibration.seconds
    return answers.Forecast(
        job_id=forecast.job_id,
        total_steps=interval_body(forecast.total_steps),
        remaining_steps=interval_body(forecast.remaining_steps),
        confidence=finite(forecast.confidence),
        rule=forecast.rule,
        loss_curve=finite_document(forecast.loss_curve),
        speed_model=finite_document(forecast.speed_model),
        steps_per_second=finite(forecast.steps_per_second),
        remaining_seconds=interval_body(forecast.remaining_seconds),
        seconds_per_step=interval_body(forecast.seconds_per_step),
        calibration=answers.Calibration(
            steps=answers.Widening(down=steps.down, up=steps.up),
            seconds=answers.Widening(down=seconds.down, up=seconds.up),
        ),
        finished_runs=forecast.finished_runs,
        finished_runs_share=finite(forecast.finished_runs_share),
        speed_from=None if forecast.speed_from is None else forecast.speed_from.value,
        cost=interval_body(forecast.cost),
        converged=forecast.converged,
    )


def prediction_point_body(decision: DecisionRecord) -> answers.PredictionPoint:
    """What a round believed of the job's end, and the step the job was at: total minus what was left then.

    What was guessed from how long it had gone on was shown to nobody, and is not told; nor is the time left of a job
    that stood still then, or had yet to pass the step where it hung or failed.
    """
    total = interval_body(decision.forecast.total_steps)
    left = interval_body(decision.forecast.remaining_steps)
    seconds = interval_body(decision.forecast.remaining_seconds)
    step = _step_then(total, left)
    if decision.forecast.rule is None:
        total = seconds = None
    if decision.is_without_end:
        seconds = None
    return answers.PredictionPoint(at=moment(decision.at), step=step, total_steps=total, remaining_seconds=seconds)


def _step_then(total: answers.Interval | None, left: answers.Interval | None) -> int:
    return 0 if total is None or left is None else max(round(total.mean - left.mean), 0)


def round_body(record: RoundRecord) -> answers.Round:
    """One scheduling round."""
    return answers.Round(
        id=record.id,
        at=moment(record.at),
        trigger=record.trigger,
        seconds=record.seconds,
        phase_seconds=finite_document(record.phase_seconds),
        n_jobs=record.n_jobs,
        n_actions=record.n_actions,
        error=record.error,
    )


def wanted_body(wanted: WantedRecord) -> WantedMembership:
    """What a job's coordinator should have."""
    return WantedMembership(
        generation=wanted.generation,
        directive=wanted.directive.value,
        tasks=[_wanted_task_body(task) for task in wanted.tasks],
        global_batch=wanted.batch,
        membership_epoch=wanted.membership_epoch,
        step=wanted.step,
        limits=wanted.limits,
    )


def _wanted_task_body(task: PlacedTask) -> WantedTask:
    role = cast(Literal["worker", "server"], task.key.role.value)
    return WantedTask(name=task.key.name, role=role, rank=task.key.rank)


def _profile(job: JobRecord) -> JobProfile | None:
    try:
        return None if job.profile is None else read(JobProfile, job.profile)
    except ValueError:  # another release has written it
        return None


def _result_body(result: Document) -> JobResult | None:
    try:
        return read(JobResult, finite_document(result))
    except ValueError:
        return None
