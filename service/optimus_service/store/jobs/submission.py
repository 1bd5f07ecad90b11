"""Statements about what owners ask for: jobs that are submitted, and what is changed of one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session

from optimus_contract.job import JobSpec
from optimus_scheduler.model import Directive
from optimus_service.store.database.dialects import insert_for
from optimus_service.store.database.tables import JobLabelRow, JobRow, PredictionRow
from optimus_service.store.errors import IdempotencyConflict, JobIdTaken
from optimus_service.store.jobs.rows import locked, record
from optimus_service.store.records import Document, JobRecord, NewJob, asked_by, begins_as
from optimus_service.store.rounds import history

Changes = Mapping[str, tuple[object, object]]
"""Old and new value by field."""


def create_many(session: Session, new: Sequence[NewJob], now: float) -> set[str]:
    """See `Jobs.create_many`."""
    statement = insert_for(session, JobRow).on_conflict_do_nothing().returning(JobRow.id)
    asked = {job.id: asked_by(job.spec) for job in new}
    made = set(session.scalars(statement, [_values(job, asked[job.id], now) for job in new]))
    stored = {job.id: asked[job.id] for job in new if job.id in made}
    if stored:
        events = [(job_id, "JobSubmitted", _submitted_words(each)) for job_id, each in stored.items()]
        history.add_events(session, events, now)
        _add_labels(session, stored, now)
    return made


def _values(job: NewJob, asked: JobSpec, now: float) -> dict[str, Any]:
    state, owner_paused_at = begins_as(asked, now)
    return {
        "id": job.id,
        "name": asked.name,
        "project": asked.project,
        "owner": job.owner,
        "spec": job.spec,
        "state": state.value,
        "directive": Directive.RUN.value,
        "created_at": now,
        "idempotency_key": job.idempotency_key,
        "object_uid": job.object_uid,
        "request_hash": job.request_hash,
        "token_nonce": job.token_nonce,
        "heard_at": now if asked.tracked else None,
        "owner_paused_at": owner_paused_at,
        "profile": job.profile,
        "version": 1,
    }


def _submitted_words(asked: JobSpec) -> str:
    origin = asked.from_job
    start = "" if origin is None else f" It starts from the last checkpoint of job {origin}."
    start += " It is paused until its owner resumes it." if asked.paused else ""
    return f"The job was submitted.{start}"


def stored(
    session: Session, job_id: str, idempotency_key: str | None, request_hash: str, object_uid: str | None
) -> JobRecord:
    """The job that stands in the way of a new one."""
    found = None
    if object_uid is not None:
        row = session.scalar(select(JobRow).where(JobRow.object_uid == object_uid))
        found = None if row is None else record(row)
    elif idempotency_key is not None:
        found = find_submission(session, idempotency_key, request_hash)
    if found is None:
        raise JobIdTaken(job_id)
    return found


def find_submission(session: Session, idempotency_key: str, request_hash: str) -> JobRecord | None:
    """See `Jobs.find_submission`."""
    row = session.scalar(select(JobRow).where(JobRow.idempotency_key == idempotency_key))
    if row is not None and row.request_hash != request_hash:
        raise IdempotencyConflict(idempotency_key, row.id)
    return None if row is None else record(row)


def forget_keys(session: Session, user: str) -> None:
    """Free the idempotency keys of a user who is removed: a later one of the same name may choose the same."""
    of_user = JobRow.idempotency_key.startswith(f"{user} ", autoescape=True)
    session.execute(update(JobRow).where(of_user).values(idempotency_key=None))


_LIMITS = frozenset({"convergence.max_steps", "convergence.max_epochs"})
"""To which a job's coordinator keeps by itself."""


def set_spec(session: Session, job_id: str, before: Document, spec: Document, changes: Changes, now: float) -> bool:
    """See `Jobs.set_spec`."""
    row = locked(session, job_id)
    if row.spec != before:
        return False
    asked = asked_by(spec)
    row.spec, row.name = spec, asked.name
    if _LIMITS & changes.keys():
        row.generation += 1  # its coordinator hears of it at once
    if any(field.startswith("convergence.") for field in changes):  # nobody could foresee another end
        session.execute(delete(PredictionRow).where(PredictionRow.job_id == job_id))
    words = "; ".join(f"{field}: {_said(old)} → {_said(new)}" for field, (old, new) in changes.items())
    data = {field: {"from": old, "to": new} for field, (old, new) in changes.items()}
    history.add_event(session, job_id, "JobChanged", f"Its owner changed {words}.", data, now)
    session.execute(delete(JobLabelRow).where(JobLabelRow.job_id == job_id))
    _add_labels(session, {job_id: asked}, row.created_at)
    session.flush()
    return True


def _said(value: object) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _add_labels(session: Session, jobs: Mapping[str, JobSpec], created_at: float) -> None:
    rows = [
        {"job_id": job_id, "name": name, "value": value, "created_at": created_at}
        for job_id, asked in jobs.items()
        for name, value in asked.labels.items()
    ]
    if rows:
        session.execute(insert(JobLabelRow), rows)


def date_labels(session: Session) -> None:
    """Write the moments of labels that a replica of an earlier release stored, which stand last in lists till then."""
    of_job = select(JobRow.created_at).where(JobRow.id == JobLabelRow.job_id).scalar_subquery()
    session.execute(update(JobLabelRow).where(JobLabelRow.created_at == 0.0).values(created_at=of_job))
