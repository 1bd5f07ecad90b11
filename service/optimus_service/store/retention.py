"""Deletes what is not needed any more, a bounded number of rows at a time."""

from __future__ import annotations

from typing import Any, Final, cast

from sqlalchemy import CursorResult, delete, select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from optimus_scheduler.model import JobState
from optimus_service.store.errors import JobIsActive
from optimus_service.store.jobs import locked
from optimus_service.store.records import Pruned
from optimus_service.store.tables import (
    DecisionRow,
    EventRow,
    FinishedRunRow,
    JobHistoryRow,
    JobRow,
    PromiseRow,
    RoundRow,
    SampleBatchRow,
    SampleBlockRow,
)

Key = tuple[InstrumentedAttribute[Any], ...]
_BATCH_KEY: Final[Key] = (SampleBatchRow.job_id, SampleBatchRow.last_id)
_BLOCK_KEY: Final[Key] = (
    SampleBlockRow.job_id,
    SampleBlockRow.membership_epoch,
    SampleBlockRow.rank,
    SampleBlockRow.number,
)
_PROMISE_KEY: Final[Key] = (PromiseRow.job_id, PromiseRow.part)


def prune(session: Session, before: float, limit: int) -> Pruned:
    """See `Repository.prune`."""
    samples = _delete_keyed(session, _BATCH_KEY, before, limit) + _delete_keyed(session, _BLOCK_KEY, before, limit)
    samples += _delete_keyed(session, (JobHistoryRow.job_id,), before, limit)
    decisions = _delete_of_ended_jobs(session, DecisionRow, before, limit)
    finished_runs = _delete_of_ended_jobs(session, FinishedRunRow, before, limit)
    promises = _delete_keyed(session, _PROMISE_KEY, before, limit)
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
    for key in (_BATCH_KEY, _BLOCK_KEY, (DecisionRow.id,), (EventRow.id,)):
        table = key[0].class_
        chosen = select(*key).where(table.job_id == job_id).limit(limit)
        if _count(session.execute(delete(table).where(tuple_(*key).in_(chosen)))) == limit:
            return False
    session.execute(delete(JobRow).where(JobRow.id == job_id))
    return True


def _delete_of_ended_jobs(
    session: Session, row_type: type[DecisionRow | FinishedRunRow], before: float, limit: int
) -> int:
    ended = select(JobRow.id).where(JobRow.finished_at < before)
    ids = select(row_type.id).where(row_type.job_id.in_(ended)).limit(limit)
    return _count(session.execute(delete(row_type).where(row_type.id.in_(ids))))


def _delete_keyed(session: Session, key: Key, before: float, limit: int) -> int:
    """Rows of a table whose key has several columns."""
    table = key[0].class_
    ended = select(JobRow.id).where(JobRow.finished_at < before)
    keys = select(*key).where(table.job_id.in_(ended)).limit(limit)
    return _count(session.execute(delete(table).where(tuple_(*key).in_(keys))))


def _count(result: Any) -> int:
    return cast(CursorResult[Any], result).rowcount
