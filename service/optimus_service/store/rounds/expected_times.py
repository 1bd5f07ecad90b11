"""Statements about when jobs are expected to start and to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from optimus_scheduler.ahead.queue import ExpectedCut
from optimus_scheduler.model import Interval
from optimus_service.store.database.dialects import chunks
from optimus_service.store.database.tables import ExpectedTimesRow, JobRow
from optimus_service.store.records import Document, ExpectedTimesRecord


def replace_all(session: Session, times: Sequence[ExpectedTimesRecord]) -> set[str]:
    """See `Rounds.put_expected_times`; which of the jobs there are."""
    session.execute(delete(ExpectedTimesRow))
    present: set[str] = set()
    for chunk in chunks([each.job_id for each in times]):
        present |= set(session.scalars(select(JobRow.id).where(JobRow.id.in_(chunk))))
    rows = [_values(each) for each in times if each.job_id in present]
    if rows:
        session.execute(insert(ExpectedTimesRow), rows)
    return present


def _values(each: ExpectedTimesRecord) -> dict[str, Any]:
    document: dict[str, Any] = {"start": _plain(each.start), "end": _plain(each.end), "steps_left": each.steps_left}
    document |= {"awaited": dict(each.awaited), "at_once": dict(each.at_once)}
    if each.cut is not None:
        document["cut"] = {**each.cut._asdict(), "at": _plain(each.cut.at)}
    if each.report_seconds:
        document["report_seconds"] = each.report_seconds
    if each.late_seconds is not None:
        document["late_seconds"] = _plain(each.late_seconds)
    if each.freed_by is not None:
        document["freed_by"] = each.freed_by
    return {"job_id": each.job_id, "at": each.at, "valid_until": each.valid_until, "document": document}


def of_document(job_id: str, at: float, valid_until: float, document: Document) -> ExpectedTimesRecord:
    """What was put, of the columns of its row."""
    return ExpectedTimesRecord(
        job_id=job_id,
        at=at,
        valid_until=valid_until,
        start=_interval(document["start"]),
        end=_interval(document["end"]),
        steps_left=document.get("steps_left"),  # an older release stored none
        report_seconds=document.get("report_seconds") or 0.0,
        late_seconds=_interval(document.get("late_seconds")),
        awaited=document.get("awaited") or {},
        at_once=document.get("at_once") or {},
        cut=_cut(document.get("cut")),
        freed_by=document.get("freed_by"),
    )


def _cut(stored: Document | None) -> ExpectedCut | None:
    if stored is None:
        return None
    return ExpectedCut(Interval(*stored["at"]), stored["pauses"], stored["job_id"], stored["why"])


def _plain(value: Interval | None) -> tuple[float, ...] | None:
    return None if value is None else tuple(value)


def _interval(bounds: list[float] | None) -> Interval | None:
    return None if bounds is None else Interval(*bounds)
