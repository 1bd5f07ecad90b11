"""Which jobs wait, in the order in which they are expected to start."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from optimus_scheduler.model import Directive
from optimus_service.store.expected_times import record_of
from optimus_service.store.jobs import ACTIVE_STATES
from optimus_service.store.records import QueuedRecord
from optimus_service.store.tables import ExpectedTimesRow, JobRow


def waiting(session: Session, now: float) -> list[QueuedRecord]:
    """See `Repository.queue`."""
    statement = (
        select(JobRow.id, JobRow.project, JobRow.created_at, JobRow.spec, ExpectedTimesRow, JobRow.retry_at)
        .join(ExpectedTimesRow, ExpectedTimesRow.job_id == JobRow.id, isouter=True)
        .where(
            JobRow.state.in_(ACTIVE_STATES),
            JobRow.wanted_workers == 0,
            JobRow.wanted_servers == 0,
            JobRow.owner_paused_at.is_(None),
            JobRow.heard_at.is_(None),
            JobRow.directive != Directive.CANCEL.value,
        )
    )
    rows = session.execute(statement).all()
    ordered = sorted(
        rows, key=lambda row: (_start(row[4], row.retry_at, now), -_priority(row.spec), row.created_at, row.id)
    )
    return [QueuedRecord(number, row.id, row.project) for number, row in enumerate(ordered, 1)]


def _start(expected: ExpectedTimesRow | None, retry_at: float | None, now: float) -> float:
    """When it is expected to start, not before its retry; infinity: nothing can be said."""
    start = None if expected is None or expected.good_until < now else record_of(expected).start
    if retry_at is not None and retry_at > now:
        return retry_at if start is None else max(start.mean, retry_at)
    return math.inf if start is None else start.mean


def _priority(spec: Any) -> float:
    value = spec.get("priority") if isinstance(spec, dict) else None
    return float(value) if isinstance(value, int | float) else 1.0
