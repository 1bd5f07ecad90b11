"""What a transition of a job's lifecycle writes: its new status, and the effects that go with it."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import delete
from sqlalchemy.orm import Session

from optimus_scheduler import lifecycle
from optimus_scheduler.lifecycle import (
    STORY_LENGTH,
    EmitEvent,
    EndRetryWait,
    ForgetPredictions,
    InvalidTransition,
    JobStatus,
    MarkFinished,
    MarkStarted,
    Reopen,
    ScheduleRetry,
    StoreResult,
)
from optimus_scheduler.model import NOTHING, Directive, JobState
from optimus_scheduler.model.format import retry_words
from optimus_scheduler.retries import Backoff
from optimus_service.store.database.tables import JobRow, PredictionRow, split_float
from optimus_service.store.jobs import ended, memberships
from optimus_service.store.jobs.charging import charge
from optimus_service.store.records import Document, asked_by, time_is_over_at
from optimus_service.store.rounds import history

RETRY_SCHEDULED = "RetryScheduled"


def advance_row(
    session: Session, row: JobRow, event: lifecycle.Event, now: float, backoff: Backoff, told_at: float | None = None
) -> None:
    """The same for a row that is locked."""
    told_at = now if told_at is None else told_at
    before = _status(row, told_at, backoff)
    try:
        after, effects = lifecycle.advance(before, event)
    except InvalidTransition as refusal:
        story = history.newest_types(session, row.id, STORY_LENGTH)
        raise InvalidTransition(replace(before, story=story), event) from refusal
    row.state, row.directive, row.failure = after.state.value, after.directive.value, after.failure
    row.attempt, row.retries = after.attempt, after.retries
    if after.owner_paused is not before.owner_paused:
        _set_owner_paused(row, after.owner_paused, now)
    row.paused_by = after.paused_by
    for effect in effects:
        if isinstance(effect, ScheduleRetry):
            _schedule_retry(session, row, effect, now, told_at, backoff)
        else:
            _carry_out(session, row, effect, now)
    if after.state is not before.state:
        ended.note(session, row.project, before.state, after.state)
        if before.state is JobState.RUNNING:
            memberships.end_newest(session, row.id, now)
    has_ended = after.state.is_final and not before.state.is_final
    if has_ended:
        _want_nothing(row, now)
    if has_ended or after.directive is not before.directive:
        row.generation += 1


def _set_owner_paused(row: JobRow, paused: bool, now: float) -> None:
    row.owner_paused_at = now if paused else None
    row.promised_deadline = row.promised_at = None  # the time that a pause takes is its owner's
    if isinstance(row.spec, dict):
        row.spec = {**row.spec, "paused": paused}
    if not paused and row.wanted_at is not None:
        charge(row, now)  # while its owner did not want it to have anything it has not waited


def _status(row: JobRow, now: float, backoff: Backoff) -> JobStatus:
    asked = asked_by(row.spec)
    return JobStatus(
        JobState(row.state),
        Directive(row.directive),
        row.failure,
        has_trained=row.first_step is not None,
        attempt=row.attempt,
        retries=row.retries,
        most_retries=asked.retries,
        is_retry_in_time=backoff.is_in_time(row.retries + 1, now, time_is_over_at(asked, row.started_at)),
        waits_for_retry=row.retries > 0 and row.retry_at is not None and row.retry_at > now,
        tells_steps=asked.command is None,
        owner_paused=row.owner_paused_at is not None,
        paused_by=row.paused_by,
    )


def _carry_out(session: Session, row: JobRow, effect: lifecycle.Effect, now: float) -> None:
    match effect:
        case EmitEvent(type=event_type, message=message):
            history.add_event(session, row.id, event_type, message, {}, now)
        case MarkStarted():
            row.started_at = now if row.started_at is None else row.started_at
        case MarkFinished():
            row.finished_at, row.pruned_at = now, None
        case StoreResult(result=result):
            row.result = _result_document(result)
            if result.step > row.step and result.final_loss is not None:  # its last samples did not come
                row.loss, row.loss_kind = split_float(result.final_loss)
            row.step = max(row.step, result.step)
        case Reopen(error=error):
            charge(row, now)  # since its end it has not waited
            if error is not None or row.retry_at is None:
                row.last_error = error  # else it was cancelled in the wait after one, which may come again
            row.finished_at = row.result = row.retry_at = row.formed_at = None
            row.promised_deadline = row.promised_at = None
        case EndRetryWait():
            if row.state == JobState.QUEUED.value or row.retry_at is not None:
                row.retry_at = now  # it waits from now on
        case ForgetPredictions():
            session.execute(delete(PredictionRow).where(PredictionRow.job_id == row.id))


def _schedule_retry(
    session: Session, row: JobRow, retry: ScheduleRetry, now: float, told_at: float, backoff: Backoff
) -> None:
    """`now`: when the error was; the wait is from when it was told."""
    seconds = backoff.seconds(retry.number)
    row.retry_at, row.last_error, row.formed_at = told_at + seconds, retry.error, None
    _want_nothing(row, now)
    message = retry_words(seconds, retry.number, retry.most, retry.error)
    data = {"retry": retry.number, "of": retry.most, "retry_at": row.retry_at, "error": retry.error}
    history.add_event(session, row.id, RETRY_SCHEDULED, message, data, now)


def _result_document(result: lifecycle.ResultReported) -> Document:
    return {
        "outcome": result.outcome.value,
        "step": result.step,
        "final_loss": result.final_loss,
        "metrics": dict(result.metrics),
        "error": result.error,
        "checkpoint": result.checkpoint,
        "model": result.model,
    }


def _want_nothing(row: JobRow, now: float) -> None:
    """A job that ended or waits for a retry wants no tasks and has none: those still there are being stopped."""
    charge(row, now)
    row.wanted_workers, row.wanted_servers, row.wanted_gpu_type = NOTHING.workers, NOTHING.servers, NOTHING.gpu_type
    row.running_workers, row.running_servers, row.running_gpu_type = NOTHING.workers, NOTHING.servers, NOTHING.gpu_type
    row.wanted_tasks = []
