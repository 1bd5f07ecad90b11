"""Statements about what happened: events, rounds, decisions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from sqlalchemy import Select, Text, func, insert, or_, select, type_coerce
from sqlalchemy.orm import Session

from optimus_scheduler.model import Allocation
from optimus_service.store.database import kept
from optimus_service.store.database.dialects import chunks, set_of
from optimus_service.store.database.pages import Key, decode_cursor, make_page
from optimus_service.store.database.tables import Base, DecisionRow, EventRow, ExpectedTimesRow, JobRow, RoundRow
from optimus_service.store.records import DecisionRecord, Document, EventRecord, Page, RoundRecord
from optimus_service.store.rounds import forecasts
from optimus_service.store.rounds.expected_times import of_document

Paged = TypeVar("Paged", EventRow, RoundRow, DecisionRow)
Item = TypeVar("Item")
_DECISION = tuple(DecisionRow.__table__.c)
_ROUNDS: Final = Base.metadata.tables["rounds"]
_ADD_ROUND: Final = insert(_ROUNDS).returning(_ROUNDS.c.id)
_ADD_DECISION: Final = insert(Base.metadata.tables["decisions"])
_ADD_EVENT: Final = insert(Base.metadata.tables["events"])
_WITH_TIMES = select(
    *kept.as_stored(_DECISION),
    ExpectedTimesRow.at.label("expected_at"),
    ExpectedTimesRow.valid_until.label("expected_valid_until"),
    type_coerce(ExpectedTimesRow.document, Text).label("expected_document"),
).outerjoin(ExpectedTimesRow, ExpectedTimesRow.job_id == DecisionRow.job_id)


def add_event(session: Session, job_id: str | None, event_type: str, message: str, data: Document, now: float) -> None:
    """See `Events.add`. The caller has locked the job's row."""
    values = {"job_id": job_id, "at": now, "type": event_type, "message": message, "data": data}
    session.execute(_ADD_EVENT, values)


def add_events(session: Session, new: Sequence[tuple[str, str, str]], now: float) -> None:
    """The same for many jobs: id, type and message each."""
    rows = [
        {"job_id": job_id, "at": now, "type": event_type, "message": message, "data": {}}
        for job_id, event_type, message in new
    ]
    session.execute(_ADD_EVENT, rows)


def events(session: Session, job_id: str | None, cursor: str | None, limit: int) -> Page[EventRecord]:
    """See `Events.page`."""
    statement = select(EventRow)
    if job_id is not None:
        statement = statement.where(EventRow.job_id == job_id)
    return _page(session, "events", statement, EventRow, cursor, limit, _event)


def newest_types(session: Session, job_id: str, limit: int) -> tuple[str, ...]:
    """Types of the last events of a job, oldest first."""
    statement = select(EventRow.type).where(EventRow.job_id == job_id).order_by(EventRow.id.desc()).limit(limit)
    return tuple(reversed(session.scalars(statement).all()))


def latest_event_types(session: Session, event_types: Collection[str], job_ids: Collection[str]) -> dict[str, str]:
    """See `Events.latest_types`."""
    found: dict[str, str] = {}
    for chunk in chunks(job_ids):
        chosen = EventRow.job_id.in_(chunk), EventRow.type.in_(sorted(event_types))
        newest = select(func.max(EventRow.id)).where(*chosen).group_by(EventRow.job_id)
        rows = session.execute(select(EventRow.job_id, EventRow.type).where(EventRow.id.in_(newest)))
        found |= {job_id: kind for job_id, kind in rows if job_id is not None}
    return found


def events_of_type(session: Session, event_type: str, job_ids: Collection[str]) -> list[EventRecord]:
    """See `Events.of_type`."""
    chosen = EventRow.type == event_type, EventRow.job_id.in_(set_of(session, job_ids))
    return [_event(row) for row in session.scalars(select(EventRow).where(*chosen).order_by(EventRow.id))]


def add_round(session: Session, record: RoundRecord, decisions: Sequence[DecisionRecord]) -> int:
    """See `Rounds.add`."""
    round_id: int = session.execute(_ADD_ROUND, _round_values(record)).scalar_one()
    if decisions:
        session.execute(_ADD_DECISION, [_decision_values(round_id, decision) for decision in decisions])
    return round_id


def rounds(session: Session, cursor: str | None, limit: int) -> Page[RoundRecord]:
    """See `Rounds.page`."""
    return _page(session, "rounds", select(RoundRow), RoundRow, cursor, limit, _round)


def decisions(session: Session, job_id: str, cursor: str | None, limit: int) -> Page[DecisionRecord]:
    """See `Rounds.decisions`."""
    statement = select(DecisionRow).where(DecisionRow.job_id == job_id)
    return _page(session, "decisions", statement, DecisionRow, cursor, limit, _decision)


def sizes_given(session: Session, job_id: str) -> list[tuple[float, Allocation]]:
    """See `Rounds.sizes_given`."""
    one = DecisionRow
    changes = or_(one.workers != one.previous_workers, one.servers != one.previous_servers)
    rows = session.execute(
        select(one.at, one.workers, one.servers).where(one.job_id == job_id, changes).order_by(one.id)
    )
    return [(at, Allocation(workers, servers)) for at, workers, servers in rows]


def latest_decisions(session: Session, job_ids: Collection[str], known: kept.Kept) -> dict[str, DecisionRecord]:
    """See `Rounds.latest_decisions`. One look into the index per job, whatever the length of its history."""
    if not job_ids:
        return {}
    newest = select(func.max(DecisionRow.id)).where(DecisionRow.job_id == JobRow.id).scalar_subquery()
    ids = select(newest).where(JobRow.id.in_(set_of(session, job_ids)))
    dialect = session.get_bind().dialect

    def make(row: kept.AnyRow, _before: DecisionRecord | None) -> DecisionRecord:
        decision = _decision(kept.read(row, _DECISION, dialect))
        if row.expected_at is None:
            return decision
        document = json.loads(row.expected_document)
        times = of_document(row.job_id, row.expected_at, row.expected_valid_until, document)
        return replace(decision, expected=times)

    rows = session.execute(_WITH_TIMES.where(DecisionRow.id.in_(ids))).all()
    return {
        row.job_id: known.decisions.of(row.job_id, row, row, make, is_kept=row.job_id in known.jobs) for row in rows
    }


def _page(
    session: Session,
    listing: str,
    statement: Select[Paged],
    row_type: type[Paged],
    cursor: str | None,
    limit: int,
    item: Callable[[Paged], Item],
) -> Page[Item]:
    """A page by falling id."""
    if cursor is not None:
        (last,) = decode_cursor(listing, cursor, (int,))
        statement = statement.where(row_type.id < last)
    rows = session.scalars(statement.order_by(row_type.id.desc()).limit(limit + 1)).all()

    def key(row: Paged) -> Key:
        return (row.id,)

    return make_page(listing, rows, limit, key, item)


def _event(row: EventRow) -> EventRecord:
    return EventRecord(id=row.id, job_id=row.job_id, at=row.at, type=row.type, message=row.message, data=row.data)


def _round_values(record: RoundRecord) -> dict[str, Any]:
    return {
        "at": record.at,
        "trigger": record.trigger,
        "seconds": record.seconds,
        "phase_seconds": dict(record.phase_seconds),
        "n_jobs": record.n_jobs,
        "n_actions": record.n_actions,
        "error": record.error,
    }


def _round(row: RoundRow) -> RoundRecord:
    return RoundRecord(
        id=row.id,
        at=row.at,
        trigger=row.trigger,
        seconds=row.seconds,
        phase_seconds=row.phase_seconds,
        n_jobs=row.n_jobs,
        n_actions=row.n_actions,
        error=row.error,
    )


def _decision_values(round_id: int, record: DecisionRecord) -> dict[str, Any]:
    return {
        "round_id": round_id,
        "job_id": record.job_id,
        "at": record.at,
        "workers": record.allocation.workers,
        "servers": record.allocation.servers,
        "gpu_type": record.allocation.gpu_type,
        "previous_workers": record.previous.workers,
        "previous_servers": record.previous.servers,
        "previous_gpu_type": record.previous.gpu_type,
        "reason": record.reason,
        "message": record.message,
        "gain": _number_or_none(record.gain),
        "next_gain": _number_or_none(record.next_gain),
        "batch": record.batch,
        "forecast": forecasts.to_json(record.forecast) | forecasts.beside(record),
    }


def _number_or_none(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


def _decision(row: DecisionRow) -> DecisionRecord:
    return DecisionRecord(
        id=row.id,
        round_id=row.round_id,
        job_id=row.job_id,
        at=row.at,
        allocation=Allocation(row.workers, row.servers, row.gpu_type),
        previous=Allocation(row.previous_workers, row.previous_servers, row.previous_gpu_type),
        reason=row.reason,
        message=row.message,
        gain=row.gain,
        next_gain=row.next_gain,
        batch=row.batch,
        forecast=forecasts.from_json(row.job_id, row.forecast),
        step_at=forecasts.step_at(row.forecast),
        is_without_end=forecasts.is_without_end(row.forecast),
    )
