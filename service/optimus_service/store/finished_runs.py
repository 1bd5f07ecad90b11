"""Statements about what ended jobs taught: kept apart from their samples, which are many and are deleted some day."""

from __future__ import annotations

from typing import Final

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from optimus_scheduler.model import JobState
from optimus_service.store.dialects import insert_for
from optimus_service.store.jobs import COLUMNS, record
from optimus_service.store.records import Document, FinishedRunRecord, JobRecord
from optimus_service.store.tables import Base, FinishedRunRow

_JOBS: Final = Base.metadata.tables["jobs"]
_RUNS: Final = Base.metadata.tables["finished_runs"]
_AFTER: Final = (
    select(_RUNS).where(_RUNS.c.id > bindparam("after_id")).order_by(_RUNS.c.id.desc()).limit(bindparam("newest"))
)
_WITHOUT_RUN: Final = (
    select(*COLUMNS)
    .where(
        _JOBS.c.finished_at >= bindparam("since"),
        _JOBS.c.state == JobState.SUCCEEDED.value,
        ~select(_RUNS.c.id).where(_RUNS.c.job_id == _JOBS.c.id).exists(),
    )
    .order_by(_JOBS.c.finished_at)
    .limit(bindparam("limit"))
)


def add(session: Session, job_id: str, document: Document) -> None:
    """See `Repository.add_finished_run`."""
    values = {"job_id": job_id, "document": document}
    session.execute(insert_for(session, FinishedRunRow).values(values).on_conflict_do_nothing())


def after(session: Session, after_id: int, newest: int) -> list[FinishedRunRecord]:
    """See `Repository.finished_runs_after`."""
    rows = session.execute(_AFTER, {"after_id": after_id, "newest": newest}).all()
    return [FinishedRunRecord(id=row.id, job_id=row.job_id, document=row.document) for row in reversed(rows)]


def without_run(session: Session, since: float, limit: int) -> list[JobRecord]:
    """See `Repository.jobs_without_finished_run`."""
    return [record(row) for row in session.execute(_WITHOUT_RUN, {"since": since, "limit": limit})]
