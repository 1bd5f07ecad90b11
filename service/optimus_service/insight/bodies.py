"""Stored records as bodies of the API. Pure; every number that is not finite becomes null on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal, cast

from optimus_scheduler.model import Allocation, JobState, PlacedTask
from optimus_service.contract import (
    AllocationBody,
    AllocationPointBody,
    DecisionBody,
    EventBody,
    IntervalBody,
    JobBody,
    JobProfileBody,
    JobResultBody,
    JobSpecBody,
    JobUsageBody,
    PredictionPointBody,
    RoundBody,
    TaskBody,
    TaskUsageBody,
    WantedBody,
    WantedTaskBody,
)
from optimus_service.contract.stored import as_stored
from optimus_service.contract.times import moment, moment_or_none
from optimus_service.insight.progress import explain, finite, finite_document, interval, outlook
from optimus_service.insight.usage import ToldUsage, job_usage
from optimus_service.observe.noise import newest_noise_scale
from optimus_service.store.records import (
    DecisionRecord,
    Document,
    EventRecord,
    JobRecord,
    MembershipRecord,
    RoundRecord,
    Sample,
    TaskRecord,
    WantedRecord,
)


def job_body(
    job: JobRecord, decision: DecisionRecord | None, steps_per_second: float | None, newest: Sequence[Sample] = ()
) -> JobBody:
    """A job with what its latest decision and its newest samples say of it."""
    usage = job_usage(newest)
    ahead = outlook(job, decision)
    explanation = explain(job, decision)
    # Not validated: rules for requests would be asked of the stored specification again.
    return JobBody.model_construct(
        id=job.id,
        name=job.name,
        project=job.project,
        state=job.state.value,
        directive=job.directive.value,
        spec=_spec_body(job),
        created_at=moment(job.created_at),
        started_at=moment_or_none(job.started_at),
        finished_at=moment_or_none(job.finished_at),
        jct_seconds=None if job.finished_at is None else job.finished_at - job.created_at,
        first_step=job.first_step,
        step=job.step,
        epoch=finite(job.epoch),
        loss=finite(job.loss),
        steps_per_second=finite(steps_per_second),
        wanted=allocation_body(job.wanted),
        running=allocation_body(job.running),
        membership_epoch=job.membership_epoch,
        global_batch=job.wanted_batch,
        progress=ahead.progress,
        remaining_steps=ahead.remaining_steps,
        remaining_seconds=ahead.remaining_seconds,
        reason=explanation.reason,
        message=explanation.message,
        profile=None if job.profile is None else as_stored(JobProfileBody, job.profile),
        result=None if job.result is None else _result_body(job.result),
        failure=job.failure,
        attempt=job.attempt,
        retries=job.retries,
        retry_at=moment_or_none(job.retry_at) if job.state is JobState.PAUSED else None,
        last_error=job.last_error,
        rescales=job.rescales,
        usage=None if usage is None else JobUsageBody(**asdict(usage)),
        noise_scale=newest_noise_scale(newest),
    )


def _spec_body(job: JobRecord) -> JobSpecBody:
    found = as_stored(JobSpecBody, job.spec, name=job.name, task="")
    assert found is not None, "everything else has a default"
    return found


def allocation_body(allocation: Allocation) -> AllocationBody:
    """An allocation."""
    return AllocationBody(workers=allocation.workers, servers=allocation.servers, gpu_type=allocation.gpu_type)


def allocation_point_body(membership: MembershipRecord, job: JobRecord) -> AllocationPointBody:
    """One membership of the job's history."""
    return AllocationPointBody(
        at=moment(membership.at),
        at_seconds=membership.at - job.created_at,
        membership_epoch=membership.epoch,
        step=membership.step,
        workers=len(membership.workers),
        servers=len(membership.servers),
        gpu_type=membership.gpu_type,
        global_batch=membership.global_batch,
        cause=membership.cause,
        pause_seconds=finite(membership.pause_seconds),
        lost_steps=membership.lost_steps,
    )


def task_body(task: TaskRecord, told: ToldUsage | None) -> TaskBody:
    """One task, with what it takes of its machine."""
    return TaskBody(
        name=task.key.name,
        role=task.key.role.value,
        rank=task.key.rank,
        node=task.node,
        gpu_type=task.gpu_type,
        started_at=moment(task.created_at),
        usage=None if told is None else TaskUsageBody(at=moment(told.at), **told.usage),
    )


def event_body(event: EventRecord) -> EventBody:
    """Something that happened."""
    return EventBody(
        id=event.id, at=moment(event.at), type=event.type, message=event.message, data=finite_document(event.data)
    )


def decision_body(decision: DecisionRecord) -> DecisionBody:
    """What a round decided for one job."""
    return DecisionBody(
        round_id=decision.round_id,
        at=moment(decision.at),
        allocation=allocation_body(decision.allocation),
        previous=allocation_body(decision.previous),
        reason=decision.reason,
        message=decision.message,
        gain=finite(decision.gain),
        next_gain=finite(decision.next_gain),
        batch=decision.batch,
        forecast=finite_document(decision.forecast),
    )


def prediction_point_body(decision: DecisionRecord) -> PredictionPointBody:
    """What a round believed of the job's end, and the step the job was at: total minus what was left then."""
    total = interval(decision.forecast.get("total_steps"))
    left = interval(decision.forecast.get("remaining_steps"))
    return PredictionPointBody(at=moment(decision.at), step=_step_then(total, left), total_steps=total)


def _step_then(total: IntervalBody | None, left: IntervalBody | None) -> int:
    return 0 if total is None or left is None else max(round(total.mean - left.mean), 0)


def round_body(record: RoundRecord) -> RoundBody:
    """One scheduling round."""
    return RoundBody(
        id=record.id,
        at=moment(record.at),
        trigger=record.trigger,
        seconds=record.seconds,
        phase_seconds=finite_document(record.phase_seconds),
        n_jobs=record.n_jobs,
        n_actions=record.n_actions,
        error=record.error,
    )


def wanted_body(wanted: WantedRecord) -> WantedBody:
    """What a job's coordinator should have."""
    return WantedBody(
        generation=wanted.generation,
        directive=wanted.directive.value,
        tasks=[_wanted_task_body(task) for task in wanted.tasks],
        global_batch=wanted.batch,
        membership_epoch=wanted.membership_epoch,
    )


def _wanted_task_body(task: PlacedTask) -> WantedTaskBody:
    role = cast(Literal["worker", "server"], task.key.role.value)
    return WantedTaskBody(name=task.key.name, role=role, rank=task.key.rank)


def _result_body(result: Document) -> JobResultBody | None:
    known: dict[str, Any] = {name: result[name] for name in JobResultBody.model_fields if name in result}
    return as_stored(JobResultBody, finite_document(known))
