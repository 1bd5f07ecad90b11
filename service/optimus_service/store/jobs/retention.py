"""Deletes what is not needed any more, a bounded number of rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from sqlalchemy import CursorResult, delete, select, tuple_, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from optimus_scheduler.model import JobState
from optimus_service.store.database.subject import Subject
from optimus_service.store.database.tables import (
    DecisionRow,
    EventRow,
    FinishedRunRow,
    JobHistoryRow,
    JobRow,
    PredictionRow,
    RoundRow,
    SampleBatchRow,
    SampleBlockRow,
)
from optimus_service.store.errors import JobIsActive
from optimus_service.store.jobs import ended, submission, taught
from optimus_service.store.jobs.rows import locked
from optimus_service.store.records import Pruned, PrunedRounds

Key = tuple[InstrumentedAttribute[Any], ...]
_BATCH_KEY: Final[Key] = (SampleBatchRow.job_id, SampleBatchRow.last_id)
_BLOCK_KEY: Final[Key] = (
    SampleBlockRow.job_id,
    SampleBlockRow.membership_epoch,
    SampleBlockRow.rank,
    SampleBlockRow.number,
)
_SAMPLES: Final[tuple[Key, ...]] = (_BATCH_KEY, _BLOCK_KEY, (JobHistoryRow.job_id,))
_PREDICTION_KEY: Final[Key] = (PredictionRow.job_id, PredictionRow.part)
PRUNE_ROWS = 500
"""Rows that one `prune` deletes at most: bounds how long it keeps writers waiting."""
_JOBS_AT_ONCE = 100
"""That one transaction looks at: most have few rows, and after the first time none."""


class Retention(Subject):
    """Deletes what is not needed any more."""

    def delete_job(self, job_id: str) -> None:
        """Delete an ended job with all that is kept of it: samples, events, decisions, what it taught.

        In some transactions, so that others need not wait long.

        Raises:
            JobNotFound: there is none.
            JobIsActive: it has not ended.
        """
        done = False
        while not done:
            with self._write() as session:
                done = remove_job(session, job_id, PRUNE_ROWS)

    def prune(self, now: float, keep_seconds: float, limit: int = PRUNE_ROWS) -> Pruned:
        """Delete samples, decisions, predictions and finished runs of jobs that ended over `keep_seconds` ago.

        Jobs, memberships and events stay. At most `limit` rows go in one call: call again until `total` is 0.
        """
        with self._write() as session:
            return prune(session, now - keep_seconds, now, limit)

    def mend_after_upgrade(self) -> None:
        """Write what a replica of an earlier release left out: counts of ended jobs, moments of labels, tasks of
        finished runs."""
        with self._write() as session:
            ended.recount(session)
        with self._write() as session:
            submission.date_labels(session)
        is_done = False
        while not is_done:
            with self._write() as session:
                is_done = taught.name_tasks(session, PRUNE_ROWS) < PRUNE_ROWS

    def prune_rounds(self, now: float, keep_seconds: float, after: float, limit: int = PRUNE_ROWS) -> PrunedRounds:
        """Delete rounds of over `keep_seconds` ago that no decision belongs to: of `limit` rounds from `after` on
        (POSIX seconds), the oldest first. `next_after` is where to go on."""
        with self._write() as session:
            return prune_rounds(session, now - keep_seconds, after, limit)


def prune(session: Session, before: float, now: float, limit: int) -> Pruned:
    """See `Retention.prune`."""
    # Jobs that are through carry a mark, and are in no index that this reads: a million of them cost nothing.
    due = select(JobRow.id).where(JobRow.pruned_at.is_(None), JobRow.finished_at < before)
    job_ids = session.scalars(due.order_by(JobRow.finished_at).limit(_JOBS_AT_ONCE)).all()
    budget = _Budget(session, job_ids, limit)
    found = Pruned(
        samples=sum(budget.delete(key) for key in _SAMPLES),
        decisions=budget.delete((DecisionRow.id,)),
        finished_runs=budget.delete((FinishedRunRow.id,)),
        predictions=budget.delete(_PREDICTION_KEY),
        jobs=len(job_ids) if budget.left > 0 else 0,
    )
    if found.jobs:
        session.execute(update(JobRow).where(JobRow.id.in_(job_ids)).values(pruned_at=now))
    return found


class _Budget:
    """How many rows of these jobs may still be deleted."""

    def __init__(self, session: Session, job_ids: Sequence[str], limit: int) -> None:
        self._session = session
        self._job_ids = job_ids
        self.left = limit

    def delete(self, key: Key) -> int:
        """Delete rows of one table, as far as the budget goes."""
        if self.left <= 0 or not self._job_ids:
            return 0
        table = key[0].class_
        keys = select(*key).where(table.job_id.in_(self._job_ids)).limit(self.left)
        n = _count(self._session.execute(delete(table).where(tuple_(*key).in_(keys))))
        self.left -= n
        return n


def prune_rounds(session: Session, before: float, after: float, limit: int) -> PrunedRounds:
    """See `Retention.prune_rounds`."""
    old = select(RoundRow.id, RoundRow.at).where(RoundRow.at < before, RoundRow.at >= after)
    page = session.execute(old.order_by(RoundRow.at).limit(limit)).all()
    if not page:
        return PrunedRounds(0, None)
    decided = select(DecisionRow.id).where(DecisionRow.round_id == RoundRow.id).exists()
    ids = [row.id for row in page]
    deleted = _count(session.execute(delete(RoundRow).where(RoundRow.id.in_(ids), ~decided)))
    # Rounds of one moment that do not fit on a page would be read for ever, were none of them deleted.
    is_last = len(page) < limit or (page[-1].at == after and deleted == 0)
    return PrunedRounds(deleted, None if is_last else page[-1].at)


def remove_job(session: Session, job_id: str, limit: int) -> bool:
    """See `Retention.delete_job`: `limit` rows of a kind at most go at once; whether the job itself is gone by now."""
    row = locked(session, job_id)
    if not JobState(row.state).is_final:
        raise JobIsActive(job_id, row.state)
    for key in (_BATCH_KEY, _BLOCK_KEY, (DecisionRow.id,), (EventRow.id,)):
        table = key[0].class_
        chosen = select(*key).where(table.job_id == job_id).limit(limit)
        if _count(session.execute(delete(table).where(tuple_(*key).in_(chosen)))) == limit:
            return False
    ended.note(session, row.project, JobState(row.state), None)
    session.execute(delete(JobRow).where(JobRow.id == job_id))
    return True


def _count(result: Any) -> int:
    return cast(CursorResult[Any], result).rowcount
