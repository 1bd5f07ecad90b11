"""The rows of jobs: made into records, and kept from other writers while they are changed."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import lru_cache
from sys import intern
from typing import Any

from sqlalchemy import ColumnElement, Row, bindparam, select
from sqlalchemy.orm import Session, undefer

from optimus_scheduler.model import Allocation, Directive, JobState
from optimus_service.store.database import kept
from optimus_service.store.database.dialects import chunks
from optimus_service.store.database.tables import JobRow, join_float
from optimus_service.store.errors import JobNotFound
from optimus_service.store.records import JobRecord

ACTIVE_STATES = tuple(state.value for state in JobState if not state.is_final)
_LARGE = ("wanted_tasks", "network", "planned_rates")
"""Columns that are read only where they are asked for."""
COLUMNS = tuple(column for column in JobRow.__table__.c if column.name not in _LARGE)
"""What `record` is made of. Whoever reads many rows and changes none reads these, without the session: keeping track of
ten thousand objects costs more than reading them."""
STORED = kept.as_stored(COLUMNS)
# Made once: making a statement of SQLAlchemy anew costs more than the database takes to carry it out.
_OF_ID = select(*COLUMNS).where(JobRow.__table__.c.id == bindparam("of"))
_LOCKED = select(JobRow).where(JobRow.id == bindparam("of")).with_for_update(key_share=True)


def get(session: Session, job_id: str) -> JobRecord:
    """See `Jobs.get`."""
    row = session.execute(_OF_ID, {"of": job_id}).one_or_none()
    if row is None:
        raise JobNotFound(job_id)
    return record(row)


def by_id(session: Session, job_ids: Collection[str]) -> dict[str, JobRecord]:
    """See `Jobs.by_id`."""
    found: dict[str, JobRecord] = {}
    for chunk in chunks(job_ids):
        found |= {row.id: record(row) for row in session.scalars(select(JobRow).where(JobRow.id.in_(chunk)))}
    return found


def locked(session: Session, job_id: str) -> JobRow:
    """The job's row, kept from other writers until the transaction ends. Rows that refer to it can be added meanwhile.

    Raises:
        JobNotFound: there is none.
    """
    row = session.scalar(_LOCKED, {"of": job_id})
    if row is None:
        raise JobNotFound(job_id)
    return row


def locked_together(session: Session, job_ids: Collection[str]) -> dict[str, JobRow]:
    """The same for many jobs, with what they should have, by id. In one order, so that two callers wait for each other.

    Raises:
        JobNotFound: one of them does not exist.
    """
    found: dict[str, JobRow] = {}
    for chunk in chunks(job_ids):
        statement = select(JobRow).where(JobRow.id.in_(chunk)).order_by(JobRow.id)
        statement = statement.options(undefer(JobRow.wanted_tasks)).with_for_update(key_share=True)
        found |= {row.id: row for row in session.scalars(statement)}
    for job_id in job_ids:
        if job_id not in found:
            raise JobNotFound(job_id)
    return found


def in_projects(projects: Collection[str] | None) -> tuple[ColumnElement[bool], ...]:
    """The condition that a job is of one of these projects; none for None. Of no project: that nothing meets."""
    return () if projects is None else (JobRow.project.in_(sorted(projects)),)


def records(session: Session, rows: Sequence[kept.AnyRow], known: kept.Kept, *, are_all: bool) -> list[JobRecord]:
    """Active jobs by their rows, which begin with `STORED`. `are_all`: there are no others."""
    dialect = session.get_bind().dialect

    def make(row: kept.AnyRow, before: JobRecord | None) -> JobRecord:
        stored = kept.read(row, COLUMNS, dialect)
        if before is not None:
            return record(stored).after(before)
        stored.spec = _with_shared_parts(stored.spec)
        return record(stored)

    if are_all:
        known.keep_only({row.id for row in rows})
    return [known.jobs.of(row.id, row[: len(COLUMNS)], row, make, is_kept=are_all) for row in rows]


def record(row: JobRow | Row[Any]) -> JobRecord:
    """The row as a value."""
    return JobRecord(
        id=row.id,
        name=row.name,
        project=row.project,
        spec=row.spec if isinstance(row.spec, dict) else {},
        state=JobState(row.state),
        directive=Directive(row.directive),
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        generation=row.generation,
        wanted=Allocation(row.wanted_workers, row.wanted_servers, row.wanted_gpu_type),
        wanted_at=row.wanted_at,
        wanted_batch=row.wanted_batch,
        membership_epoch=row.membership_epoch,
        running=Allocation(row.running_workers, row.running_servers, row.running_gpu_type),
        step=row.step,
        step_at=row.step_at,
        formed_at=row.formed_at,
        first_step=row.first_step,
        epoch=row.epoch,
        loss=join_float(row.loss, row.loss_kind),
        profile=row.profile,
        planned_rates_version=row.planned_rates_version,
        result=row.result,
        failure=row.failure,
        attempt=row.attempt,
        retries=row.retries,
        retry_at=row.retry_at,
        last_error=row.last_error,
        heard_at=row.heard_at,
        owner_paused_at=row.owner_paused_at,
        paused_by=row.paused_by,
        promised_deadline=row.promised_deadline,
        promised_at=row.promised_at,
        object_uid=row.object_uid,
        owner=row.owner,
        token_nonce=row.token_nonce,
        coordinator_address=row.coordinator_address,
        rescales=row.rescales,
        version=row.version,
    )


def _with_shared_parts(document: Any) -> Any:
    """The same; names of fields, and parts that are equal, are the very same in all documents: else each has its own,
    most of its memory. Nobody changes a record's specification."""
    if not isinstance(document, dict):
        return document
    return {
        intern(name): _part(json.dumps(value)) if isinstance(value, dict | list | str) else value
        for name, value in document.items()
    }


@lru_cache(maxsize=1024)
def _part(text: str) -> Any:
    return json.loads(text)
