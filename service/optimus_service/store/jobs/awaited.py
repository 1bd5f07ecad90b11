"""The present state of the jobs that waiting jobs wait for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy.orm import Session

from optimus_service.store.database.kept import Kept
from optimus_service.store.jobs import rows
from optimus_service.store.records import Awaited, DecisionRecord, JobRecord
from optimus_service.store.rounds import history


def with_awaited(session: Session, decisions: Mapping[str, DecisionRecord], known: Kept) -> dict[str, DecisionRecord]:
    """These decisions, with `expected.behind` filled in. Two statements; none where no job waits."""
    awaited = {each for one in decisions.values() if one.expected is not None for each in one.expected.awaited}
    if not awaited:
        return dict(decisions)
    records = rows.by_id(session, awaited)
    latest = {**decisions, **history.latest_decisions(session, awaited - decisions.keys(), known)}
    return {job_id: _with_jobs_behind(one, records, latest) for job_id, one in decisions.items()}


def _with_jobs_behind(
    decision: DecisionRecord, records: Mapping[str, JobRecord], decisions: Mapping[str, DecisionRecord]
) -> DecisionRecord:
    expected = decision.expected
    if expected is None or not expected.awaited:
        return decision
    behind = tuple(Awaited(part, records.get(each), decisions.get(each)) for each, part in expected.awaited.items())
    return replace(decision, expected=replace(expected, behind=behind))
