"""Deletes what is not needed any more, a bounded number of rows at a time."""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import CursorResult, delete, select, tuple_
from sqlalchemy.orm import Session

from optimus_scheduler.model import JobState
from optimus_service.store.errors import JobIsActive
from optimus_service.store.jobs import locked
from optimus_service.store.records import Pruned
from optimus_service.store.tables import DecisionRow, EventRow, FinishedRunRow, JobRow, PromiseRow, RoundRow, SampleRow


def prune(session: Session, before: float, limit: int) -> Pruned:
    """See `Repository.prune`."""
    samples = _delete_of_ended_jobs(session, SampleRow, before, limit)
    decisions = _delete_of_ended_jobs(session, DecisionRow, before, limit)
    finished_runs = _delete_of_ended_jobs(session, FinishedRunRow, before, limit)
    promises = _delete_promises(session, before, limit)
    decided = select(DecisionRow.id).where(DecisionRow.round_id == RoundRow.id).exists()
    old = select(RoundRow.id).where(RoundRow.at < before, ~decided).order_by(RoundRow.at).limit(limit)
    rounds = session.execute(delete(RoundRow).where(RoundRow.id.in_(old)))
    return Pruned(
        samples=samples,
        decisions=decisions,
        rounds=_count(rounds),
        finished_runs=finished_runs,
        promises=promises,
    )


def remove_job(session: Session, job_id: str, limit: int) -> bool:
    """See `Repository.delete_job`: `limit` rows of a kind at most go at once; whether the job itself is gone by now."""
    row = locked(session, job_id)
    if not JobState(row.state).is_final:
        raise JobIsActive(job_id, row.state)
    for kind in (SampleRow, DecisionRow, EventRow):
        ids = select(kind.id).where(kind.job_id == job_id).limit(limit)
        if _count(session.execute(delete(kind).where(kind.id.in_(ids)))) == limit:
            return False
    session.execute(delete(JobRow).where(JobRow.id == job_id))
    return True


def _delete_of_ended_jobs(
    session: Session, row_type: type[SampleRow | DecisionRow | FinishedRunRow], before: float, limit: int
) -> int:
    ended = select(JobRow.id).where(JobRow.finished_at < before)
    ids = select(row_type.id).where(row_type.job_id.in_(ended)).limit(limit)
    return _count(session.execute(delete(row_type).where(row_type.id.in_(ids))))


def _delete_promises(session: Session, before: float, limit: int) -> int:
    ended = select(JobRow.id).where(JobRow.finished_at < before)
    keys = select(PromiseRow.job_id, PromiseRow.part).where(PromiseRow.job_id.in_(ended)).limit(limit)
    return _count(session.execute(delete(PromiseRow).where(tuple_(PromiseRow.job_id, PromiseRow.part).in_(keys))))


def _count(result: Any) -> int:
    return cast(CursorResult[Any], result).rowcount
