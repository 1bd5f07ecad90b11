"""Statements about projects and their quotas."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import Row, delete, select
from sqlalchemy.orm import Session

from optimus_scheduler.model import Quota
from optimus_service.store.database.dialects import insert_for
from optimus_service.store.database.subject import Subject
from optimus_service.store.database.tables import Base, ProjectRow
from optimus_service.store.errors import ProjectNotFound
from optimus_service.store.records import ProjectRecord

_EVERY: Final = select(Base.metadata.tables["projects"])


class Projects(Subject):
    """Projects and their quotas."""

    def all(self) -> list[ProjectRecord]:
        """All projects that have a quota, by name."""
        with self._read() as session:
            return every(session)

    def get(self, name: str) -> ProjectRecord:
        """One project's quota.

        Raises:
            ProjectNotFound: it has none.
        """
        with self._read() as session:
            row = session.get(ProjectRow, name)
            if row is None:
                raise ProjectNotFound(name)
            return _record(row)

    def put(self, quota: Quota, now: float, limits: Mapping[str, object] = MappingProxyType({})) -> bool:
        """Give a project this quota and these limits in the place of any that it had; whether it had none."""
        with self._write() as session:
            is_new = session.get(ProjectRow, quota.project) is None
            values = {
                "share": quota.share,
                "cpu": quota.cpu,
                "memory_bytes": quota.memory_bytes,
                "gpus": dict(quota.gpus),
                "may_borrow": quota.may_borrow,
                "limits": dict(limits),
                "updated_at": now,
            }
            statement = insert_for(session, ProjectRow).values(name=quota.project, **values)
            session.execute(statement.on_conflict_do_update(index_elements=["name"], set_=values))
            return is_new

    def remove(self, name: str) -> None:
        """Take a project's quota away. Its jobs stay.

        Raises:
            ProjectNotFound: it has none.
        """
        with self._write() as session:
            gone = session.execute(delete(ProjectRow).where(ProjectRow.name == name).returning(ProjectRow.name)).first()
            if gone is None:
                raise ProjectNotFound(name)


def every(session: Session) -> list[ProjectRecord]:
    """See `Projects.all`."""
    return sorted((_record(row) for row in session.execute(_EVERY)), key=lambda one: one.quota.project)


def of_rounds(session: Session) -> list[ProjectRecord]:
    """Those that are guaranteed something, may not borrow, or whose jobs may hold so many workers together: what rounds
    have to know. Others have limits only that are looked at when jobs are submitted."""
    return [
        each
        for each in every(session)
        if each.quota != Quota(each.quota.project) or each.limits.get("workers_together") is not None
    ]


def _record(row: ProjectRow | Row[Any]) -> ProjectRecord:
    quota = Quota(row.name, row.share, row.cpu, row.memory_bytes, row.gpus, row.may_borrow)
    return ProjectRecord(quota, row.updated_at, row.limits or {})
