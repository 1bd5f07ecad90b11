"""Statements about what is known of jobs by their samples, as documents of `optimus_service.observe.history_state`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from optimus_service.store.dialects import chunks, insert_for
from optimus_service.store.tables import JobHistoryRow, JobRow


def put(session: Session, documents: Mapping[str, bytes]) -> None:
    """See `Repository.put_histories`."""
    statement = insert_for(session, JobHistoryRow)
    statement = statement.on_conflict_do_update(
        index_elements=[JobHistoryRow.job_id], set_={"document": statement.excluded.document}
    )
    for chunk in chunks(documents):
        there = select(JobRow.id).where(JobRow.id.in_(chunk)).with_for_update(read=True, key_share=True)
        rows = [{"job_id": job_id, "document": documents[job_id]} for job_id in session.scalars(there)]
        if rows:
            session.execute(statement, rows)


def of_jobs(session: Session, job_ids: Collection[str]) -> dict[str, bytes]:
    """See `Repository.histories_of`."""
    found: dict[str, bytes] = {}
    for chunk in chunks(job_ids):
        chosen = select(JobHistoryRow.job_id, JobHistoryRow.document).where(JobHistoryRow.job_id.in_(chunk))
        found.update((row.job_id, row.document) for row in session.execute(chosen))
    return found
