"""What owners do with jobs that they have submitted: change, pause, run again, delete."""

from __future__ import annotations

import shutil
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Body, Query, Response
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from optimus_contract import answers
from optimus_contract.change import JobChange
from optimus_contract.codec import read
from optimus_contract.job import JobSpec
from optimus_scheduler.lifecycle import PauseRequested, ResumeRequested
from optimus_scheduler.model.format import lasted
from optimus_service.api.access import limits
from optimus_service.api.access.audit import Audit
from optimus_service.api.access.callers import Caller
from optimus_service.api.http import examples
from optimus_service.api.http.body import StrictRoute
from optimus_service.api.http.problems import Problem, documented, invalid, invalid_field
from optimus_service.api.http.validation import field_errors
from optimus_service.api.jobs import submission
from optimus_service.api.jobs.editing import Edit, edit_of, merged
from optimus_service.api.jobs.jobs import IdempotencyKey, shown
from optimus_service.api.services import AuditDep, CallerDep, Services, ServicesDep, TaskChecksDep
from optimus_service.api.task_checks import TaskChecks
from optimus_service.clusters.base import ClusterUnavailable
from optimus_service.insight.predictions.feasibility import objections, unpriced
from optimus_service.observe.spec import deadline_of
from optimus_service.requests import checked
from optimus_service.store.errors import UserNotFound
from optimus_service.store.records import JobRecord, asked_by
from optimus_service.store.repository import Repository

_ATTEMPTS = 50
"""A change is made anew when another one came in between: by the scheduler or another replica, as changes in this
process take turns. Each failed attempt is another's success."""

_log = structlog.get_logger(__name__)

router = APIRouter(route_class=StrictRoute, tags=["jobs"])


@router.patch("/v1/jobs/{job_id}", responses=documented(404, 409))
def change_job(
    job_id: str,
    change: Annotated[JobChange, Body(openapi_examples=examples.CHANGES)],
    services: ServicesDep,
    audit: AuditDep,
) -> answers.Job:
    """Change what a job may have, until when, or how it is called, while it is active. What is left out stays.

    An event says what was changed, with old and new values; a scheduling round follows at once. 409 when it has ended.
    """
    for _ in range(_ATTEMPTS):
        with services.edits.of(job_id):
            job = services.repository.jobs.get(job_id)
            edit = checked_edit(services, audit.caller, job, change)
            audit.data = {field: {"from": old, "to": new} for field, (old, new) in edit.changes.items()}
            is_done = not edit.changed or apply(services, job, edit, audit.caller.words_for(job))
        if is_done:
            return shown(services, [services.repository.jobs.get(job_id)])[0]
    raise Problem(409, "the job is being changed by others at this moment: try again")


def checked_edit(services: Services, caller: Caller, job: JobRecord, change: JobChange) -> Edit:
    """What a change means for the job. Raises `Problem` where it is refused."""
    _refuse_ended(job)
    _refuse_object(job)
    edit = _edit(job, change)
    wanted = read(JobSpec, edit.spec, name=job.name)
    in_force = limits.in_force(caller, wanted.project, services.repository, services.settings)
    limits.refuse_size(wanted, in_force, edit.changes)
    _refuse_impossible(services, job, edit)
    _refuse_without_effect(job, edit)
    return edit


def _edit(job: JobRecord, change: JobChange) -> Edit:
    document = merged(job.spec, change)
    try:
        wanted = checked(JobSpec, document)
    except ValidationError as error:
        # As if the whole specification had been sent: the fields have the same names in it.
        found = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
        raise invalid(field_errors(found, JobSpec)) from error
    return edit_of(job.spec, wanted)


def _refuse_ended(job: JobRecord) -> None:
    if job.state.is_final:
        retry = f"`optimus retry {job.id}` runs it again as it was, a new submission as you want it"
        again = "start it again where it ran" if job.is_tracked else retry
        raise Problem(409, f"the job has ended ({job.state}): nothing of it can be changed any more; {again}")


def _refuse_object(job: JobRecord) -> None:
    if job.object_uid is not None:
        raise Problem(409, "the job comes from a TrainingJob, which says what it is to be: change that (kubectl edit)")


_OF_SCHEDULED = ("workers", "servers", "priority", "retries", "deadline", "on_nonfinite")
"""Beginnings of fields by which the scheduler acts; of a job that is only watched they would change nothing."""


def _refuse_without_effect(job: JobRecord, edit: Edit) -> None:
    """Raise `Problem` (422) if nothing could come of the edit, as the job runs outside the cluster."""
    why = "the job runs outside the cluster and is only watched: only name, labels and convergence can be changed"
    idle = [field for field in edit.changes if job.is_tracked and field.startswith(_OF_SCHEDULED)]
    if idle:
        raise invalid([answers.ProblemError(field=field, message=why) for field in idle])


def _refuse_impossible(services: Services, job: JobRecord, edit: Edit) -> None:
    """Raise `Problem` (422) unless the changed job would be accepted if it were submitted now."""
    impossible = new_objections(services, job, edit)
    if impossible:
        raise invalid(impossible)
    if {"deadline", "deadline_seconds"} & edit.changes.keys():
        asked = asked_by(edit.spec)
        due = deadline_of(asked, job.created_at)
        if due is not None and due <= services.clock():
            if asked.deadline:
                raise invalid_field("deadline", "is in the past")
            ago = lasted(services.clock() - job.created_at)
            why = f"is in the past: the seconds count from the submission, which was {ago} ago"
            raise invalid_field("deadline_seconds", why)


def new_objections(services: Services, job: JobRecord, edit: Edit) -> list[answers.ProblemError]:
    """Why the job could never run with what is new in this edit; nothing where the cluster cannot be asked."""
    prices = services.settings.scheduling
    wanted = read(JobSpec, edit.spec)
    try:
        nodes = services.cluster.nodes()
    except ClusterUnavailable:
        nodes = ()
    errors = unpriced(wanted, prices) + objections(wanted, nodes)
    if not errors:
        return []
    # Nodes may have gone since it was submitted: that does not speak against the edit.
    present = job.asked
    known = unpriced(present, prices) + objections(present, nodes)
    return [each for each in errors if each not in known]


def apply(services: Services, job: JobRecord, edit: Edit, by: str) -> bool:
    """Store an edit of an active job, all of it at once, and act by it. `by`: whose it is, in words.

    False: the job was changed meanwhile.
    """
    try:
        with services.repository.write() as tx:
            stored = _store(tx, job, edit, by, services.clock())
    except _ChangedMeanwhileError:
        return False
    services.long_polls.notify(job.id, stored.generation)
    services.trigger_round("changed")
    return True


class _ChangedMeanwhileError(Exception):
    """Ends a transaction that must write nothing, neither the change nor its record."""


def _store(tx: Repository, job: JobRecord, edit: Edit, by: str, now: float) -> JobRecord:
    paused = job.asked.paused
    changes = {field: values for field, values in edit.changes.items() if field != "paused"}
    if changes and not tx.jobs.set_spec(job.id, job.spec, {**edit.spec, "paused": paused}, changes, now):
        raise _ChangedMeanwhileError
    pause = asked_by(edit.spec).paused
    if pause is paused:
        return tx.jobs.get(job.id)
    return tx.jobs.advance(job.id, _pause_of(tx, job.id, by) if pause else ResumeRequested(by), now)


# --- pause and resume ------------------------------------------------------------------------------------------------


@router.post("/v1/jobs/{job_id}/pause", responses=documented(404, 409))
def pause_job(job_id: str, services: ServicesDep, caller: CallerDep) -> answers.Job:
    """Let a job save what it can and give back what it has, until it is resumed. Its deadline runs on.

    A script that does not go on from checkpoints of its own begins anew then.

    Again is harmless. 409 when it has ended, is being finished or cancelled, or runs outside the cluster.
    """
    job = services.repository.jobs.get(job_id)
    _refuse_object(job)
    if job.is_tracked:
        raise Problem(409, "the job runs outside the cluster: pause it where it runs")
    return shown(services, [pause(services, job_id, caller.words_for(job))])[0]


def pause(services: Services, job_id: str, by: str) -> JobRecord:
    """The same for who knows that it can be."""
    job = services.repository.jobs.advance(job_id, _pause_of(services.repository, job_id, by), services.clock())
    services.long_polls.notify(job_id, job.generation)
    services.trigger_round("pause")
    return job


def _pause_of(repository: Repository, job_id: str, by: str) -> PauseRequested:
    return PauseRequested(bool(repository.tasks.select(job_id=job_id)), by)


@router.post("/v1/jobs/{job_id}/resume", responses=documented(404, 409))
def resume_job(job_id: str, services: ServicesDep, caller: CallerDep) -> answers.Job:
    """Let a paused job have tasks again; let a failed or cancelled one go on from its last checkpoint, under its id,
    with as many retries as at first; let one that waits after an error go on at once.

    Again is harmless while it is active. 409 when it succeeded, was neither paused nor resumed, or has no checkpoint.
    """
    job = services.repository.jobs.get(job_id)
    if job.owner_paused_at is not None:
        _refuse_object(job)
    if job.state.is_final:
        why_not = submission.why_not_resumable(job, services.settings, services.repository)
        if why_not is not None:
            raise Problem(409, why_not)
    with services.repository.write() as tx:
        if job.state.is_final:
            limits.refuse_waiting(tx, caller, job.project, services.settings)
        job = tx.jobs.advance(job_id, ResumeRequested(caller.words_for(job)), services.clock())
    services.long_polls.notify(job_id, job.generation)
    services.trigger_round("resume")
    return shown(services, [job])[0]


# --- ended jobs ------------------------------------------------------------------------------------------------------


@router.post("/v1/jobs/{job_id}/retry", status_code=201, responses={**examples.SUBMITTED, **documented(404, 409)})
async def retry_job(
    job_id: str,
    services: ServicesDep,
    task_checks: TaskChecksDep,
    caller: CallerDep,
    audit: AuditDep,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> answers.Job:
    """Run an ended job again from the beginning: a new job with the same specification, but for a date as deadline.

    To let a failed job go on from its checkpoint, resume it; to start from its parameters, submit with `from_job`. 409
    while it is active.
    """
    job, is_new = await task_checks.in_turn(_again, services, task_checks, job_id, idempotency_key, caller, audit)
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    if is_new:
        services.trigger_round("submit")
    else:
        response.status_code = 200
    return (await run_in_threadpool(shown, services, [job]))[0]


def _again(
    services: Services, checks: TaskChecks, job_id: str, key: str | None, caller: Caller, audit: Audit
) -> tuple[JobRecord, bool]:
    ended = services.repository.jobs.get(job_id)
    made_before = None if key is None else _made_before(services, ended, key, caller)
    if made_before is not None:
        audit.made(made_before.id)
        return made_before, False
    if not ended.state.is_final:
        raise Problem(409, f"the job is {ended.state} and has not ended: cancel it first (`optimus cancel {job_id}`)")
    if ended.is_tracked:
        raise Problem(409, "the job ran outside the cluster: start it again where it ran")
    owner = _owner_again(services, ended)
    job, is_new = submission.submit(services, checks, _same_again(ended), key, caller=caller, owner=owner, audit=audit)
    if is_new:
        words = {job.id: f"It is job {ended.id} again.", ended.id: f"Job {job.id} runs it again."}
        for each, message in words.items():
            services.repository.events.add(each, "Retried", message, {"from": ended.id, "to": job.id}, services.clock())
    return job, is_new


def _owner_again(services: Services, ended: JobRecord) -> str | None:
    """Whose the job is when it runs again; None: the caller's, since the name of its owner is
    another user's by now."""
    try:
        user = None if ended.owner is None else services.repository.people.user(ended.owner)
    except UserNotFound:
        return ended.owner
    return None if user is not None and ended.created_at < user.created_at else ended.owner


def _same_again(ended: JobRecord) -> JobSpec:
    document: dict[str, Any] = {**ended.spec, "paused": False}
    if ended.asked.deadline is not None:  # it was about that run
        document["deadline"] = None
    return read(JobSpec, document, name=ended.name)


def _made_before(services: Services, job: JobRecord, key: str, caller: Caller) -> JobRecord | None:
    """The job that a request with the same key made. Who says it by name means the new job by now, which is the same
    training: it may be active."""
    with submission.named_to(services, caller):
        return services.repository.jobs.find_submission(
            submission.own_key(caller, key), submission.hash_of(_same_again(job))
        )


@router.delete("/v1/jobs/{job_id}", status_code=204, responses=documented(404, 409))
def delete_job(
    job_id: str,
    services: ServicesDep,
    caller: CallerDep,
    checkpoints: Annotated[
        bool,
        Query(description="also delete its directory (checkpoints, model, logs) and what is at its checkpoint_url"),
    ] = False,
) -> None:
    """Delete an ended job with all that the service keeps of it: samples, events, decisions, what it taught.

    409 while it is active: cancel it first.
    """
    job = services.repository.jobs.get(job_id)
    if job.state.is_final:
        _refuse_needed(services, job, caller, checkpoints=checkpoints)
        if checkpoints and job.asked.checkpoint_url is not None:
            _empty_store(services, job, job.asked.checkpoint_url)
    services.repository.retention.delete_job(job_id)
    if checkpoints:
        _remove_directory(services, job)


def _refuse_needed(services: Services, job: JobRecord, caller: Caller, *, checkpoints: bool) -> None:
    if job.object_uid is not None:
        raise Problem(409, "the job comes from a TrainingJob, which would submit it again: delete that, the job stays")
    if any(task.key.job_id == job.id for task in services.repository.tasks.select(job_id=job.id)):
        raise Problem(409, "tasks of the job are still being stopped: try again in a moment")
    if not checkpoints:
        return
    if job.asked.checkpoint_url is None and services.settings.cluster != "local":
        fix = f"delete jobs/{job.id} there, and the job without its checkpoints"
        raise Problem(409, f"its checkpoints are on the volume of the cluster's jobs, which the service has not: {fix}")
    waiting = [each for each in services.repository.jobs.active() if each.asked.from_job == job.id]
    if waiting:
        shown_id = next((f"job {each.id}" for each in waiting if caller.reads(each.project)), "a job")
        raise Problem(409, f"{shown_id} starts from its checkpoint: wait for its end")


def _empty_store(services: Services, job: JobRecord, url: str) -> None:
    """Raise `Problem` (409) unless nothing is left at the job's `checkpoint_url`. Before the job is deleted: with it
    goes what is known of the place and its credentials."""
    asked = job.asked
    known = {
        "checkpoint_url": url,
        "environment": dict(asked.environment),
        "working_directory": asked.working_directory,
    }
    why_not = services.cluster.remove_checkpoints(known, job.id)
    if why_not is not None:
        raise Problem(409, f"its checkpoints at {url} could not be deleted, so the job stays: {why_not}")


def _remove_directory(services: Services, job: JobRecord) -> None:
    directory = services.settings.data_directory / "jobs" / job.id
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        _log.warning("the directory of a deleted job stays", job=job.id, error=str(error))
        raise Problem(
            409, f"the job is deleted; {directory} could not be deleted as a whole ({error.strerror}): delete the rest"
        ) from error
