"""Statements about what ended jobs taught: kept apart from their samples, which are many and are deleted some day."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from optimus_scheduler.model import JobState
from optimus_service.store.dialects import insert_for
from optimus_service.store.jobs import record
from optimus_service.store.records import Document, FinishedRunRecord, JobRecord
from optimus_service.store.tables import FinishedRunRow, JobRow


def add(session: Session, job_id: str, document: Document) -> None:
    """See `Repository.add_finished_run`."""
    values = {"job_id": job_id, "document": document}
    session.execute(insert_for(session, FinishedRunRow).values(values).on_conflict_do_nothing())


def after(session: Session, after_id: int, newest: int) -> list[FinishedRunRecord]:
    """See `Repository.finished_runs_after`."""
    statement = select(FinishedRunRow).where(FinishedRunRow.id > after_id)
    rows = session.scalars(statement.order_by(FinishedRunRow.id.desc()).limit(newest)).all()
    return [FinishedRunRecord(id=row.id, job_id=row.job_id, document=row.document) for row in reversed(rows)]


def without_run(session: Session, since: float, limit: int) -> list[JobRecord]:
    """See `Repository.jobs_without_finished_run`."""
    kept = select(FinishedRunRow.id).where(FinishedRunRow.job_id == JobRow.id).exists()
    statement = (
        select(JobRow)
        .where(JobRow.finished_at >= since, JobRow.state == JobState.SUCCEEDED.value, ~kept)
        .order_by(JobRow.finished_at)
        .limit(limit)
    )
    return [record(row) for row in session.scalars(statement)]
