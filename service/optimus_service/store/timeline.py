"""Statements about who had what over time: memberships of jobs that were active at some moment since."""

from __future__ import annotations

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from optimus_service.store.jobs import record
from optimus_service.store.memberships import record as membership_record
from optimus_service.store.records import JobRecord, MembershipRecord
from optimus_service.store.tables import JobRow, MembershipRow


def jobs_since(session: Session, since: float, limit: int) -> tuple[list[JobRecord], dict[str, list[MembershipRecord]]]:
    """See `Repository.jobs_since`."""
    chosen = (
        select(JobRow)
        .where(or_(JobRow.finished_at.is_(None), JobRow.finished_at > since))
        .order_by(func.coalesce(JobRow.finished_at, JobRow.created_at + 1e12).desc(), JobRow.id)
        .limit(limit)
    )
    jobs = [record(row) for row in session.scalars(chosen)]
    rows = session.scalars(
        select(MembershipRow)
        .where(MembershipRow.job_id.in_([job.id for job in jobs]))
        .order_by(MembershipRow.job_id, MembershipRow.epoch)
    )
    memberships: dict[str, list[MembershipRecord]] = {}
    for row in rows:
        memberships.setdefault(row.job_id, []).append(membership_record(row))
    return jobs, memberships
