"""Statements about what was used in a month: what is added up already, and what jobs have had since."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import or_, select

from optimus_service.store.database.subject import Subject
from optimus_service.store.database.tables import JobRow, UsageRow
from optimus_service.store.jobs.charging import Amount, Key, add, months
from optimus_service.store.jobs.rows import ACTIVE_STATES, in_projects
from optimus_service.store.records import UsageRecord


class Usage(Subject):
    """What jobs were given."""

    def of_month(self, month: str, now: float, projects: Collection[str] | None = None) -> list[UsageRecord]:
        """What jobs (of these projects) were given in a month such as 2026-11 (UTC) until now, by project, owner and
        GPU type. Cheap however many jobs have ended: it is added up when what jobs are given changes."""
        with self._read() as session:
            of_projects = () if projects is None else (UsageRow.project.in_(sorted(projects)),)
            stored = session.scalars(select(UsageRow).where(UsageRow.month == month, *of_projects))
            sums = {
                (month, row.project, row.owner, row.gpu_type): Amount(
                    row.worker_seconds, row.core_seconds, row.gpu_seconds
                )
                for row in stored
            }
            holding = or_(JobRow.wanted_workers > 0, JobRow.wanted_servers > 0)
            for job in session.scalars(
                select(JobRow).where(JobRow.state.in_(ACTIVE_STATES), holding, *in_projects(projects))
            ):
                for part, seconds in months(job.wanted_at, now):
                    if part == month:
                        add(sums, job, month, seconds)
            return [_record(key, sums[key]) for key in sorted(sums)]


def _record(key: Key, amount: Amount) -> UsageRecord:
    month, project, owner, gpu_type = key
    return UsageRecord(
        month=month,
        project=project,
        owner=owner or None,
        gpu_type=gpu_type or None,
        worker_seconds=amount.worker_seconds,
        core_seconds=amount.core_seconds,
        gpu_seconds=amount.gpu_seconds,
    )
