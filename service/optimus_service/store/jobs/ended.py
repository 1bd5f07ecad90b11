"""How many jobs have ended, by project and state, so that nobody has to count a million jobs.

A transaction notes each job that ends, is taken up again or is deleted, and adds it up as it ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from sqlalchemy import delete, func, insert, select, text
from sqlalchemy.orm import Session

from optimus_scheduler.model import JobState
from optimus_service.store.database.dialects import insert_for, is_postgresql
from optimus_service.store.database.tables import EndedJobsRow, JobRow

_NOTED = "optimus ended jobs"
"""Of a session: what its transaction changes."""


def note(session: Session, project: str, before: JobState, after: JobState | None) -> None:
    """A job whose row is locked goes from one state to another; None: it is deleted."""
    noted: Counter[tuple[str, str]] = session.info.setdefault(_NOTED, Counter())
    if before.is_final:
        noted[project, before.value] -= 1
    if after is not None and after.is_final:
        noted[project, after.value] += 1


def settle(session: Session) -> None:
    """Store what was noted, as `charging.settle` does and after it: in one order, so that transactions only wait."""
    noted: Counter[tuple[str, str]] = session.info.pop(_NOTED, Counter())
    for (project, state), change in sorted(noted.items()):
        if change:
            statement = insert_for(session, EndedJobsRow).values(project=project, state=state, n_jobs=change)
            sums = {"n_jobs": EndedJobsRow.n_jobs + change}
            session.execute(statement.on_conflict_do_update(index_elements=["project", "state"], set_=sums))


def counted(session: Session, projects: Collection[str] | None) -> dict[str, int]:
    """Jobs (of these projects; None: of all) by final state."""
    statement = select(EndedJobsRow.state, func.sum(EndedJobsRow.n_jobs)).group_by(EndedJobsRow.state)
    if projects is not None:
        statement = statement.where(EndedJobsRow.project.in_(sorted(projects)))
    return {state: int(n_jobs) for state, n_jobs in session.execute(statement)}


def recount(session: Session) -> None:
    """Count the jobs themselves: during an upgrade a replica of an earlier release, which notes nothing, may end some.

    On PostgreSQL only, where other transactions that end jobs wait meanwhile: SQLite has no second replica.
    """
    if not is_postgresql(session):
        return
    session.execute(text("LOCK TABLE ended_jobs IN SHARE ROW EXCLUSIVE MODE"))
    session.execute(delete(EndedJobsRow))
    final = [state.value for state in JobState if state.is_final]
    counts = select(JobRow.project, JobRow.state, func.count()).where(JobRow.state.in_(final))
    names = ["project", "state", "n_jobs"]
    session.execute(insert(EndedJobsRow).from_select(names, counts.group_by(JobRow.project, JobRow.state)))
