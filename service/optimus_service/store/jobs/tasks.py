"""Statements about tasks that the service started."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter, itemgetter
from typing import Any, Final

from sqlalchemy import ColumnElement, CompoundSelect, Row, Update, bindparam, func, select, union, update
from sqlalchemy.orm import Session

from optimus_scheduler.model import Role, TaskKey
from optimus_service.store.database.dialects import chunks, insert_for, set_of
from optimus_service.store.database.subject import Subject
from optimus_service.store.database.tables import Base, JobRow, TaskRow
from optimus_service.store.errors import JobNotFound
from optimus_service.store.jobs.rows import ACTIVE_STATES, locked_together
from optimus_service.store.records import TaskAges, TaskRecord

_TASKS: Final = Base.metadata.tables["tasks"]
"""Read without the session: keeping track of ten thousand objects that nobody changes costs more than reading them."""


class Tasks(Subject):
    """Tasks that the service started."""

    def select(
        self, active_only: bool = True, job_id: str | None = None, job_ids: Collection[str] | None = None
    ) -> list[TaskRecord]:
        """Tasks by key: those that have not exited, or all of them; of one job, of some, or of all."""
        with self._read() as session:
            return select_tasks(session, active_only, job_id, job_ids)

    def with_exit_codes(self, codes: Collection[int], job_ids: Collection[str]) -> list[TaskRecord]:
        """Those of some jobs that ended with one of these exit codes, by key."""
        with self._read() as session:
            ended = _TASKS.c.exit_code.in_(codes), _TASKS.c.job_id.in_(set_of(session, job_ids))
            return _records(session.execute(select(_TASKS).where(*ended)))

    def ages(self, job_ids: Collection[str]) -> dict[str, TaskAges]:
        """Of the tasks that have not exited, by job; jobs without such tasks are left out. One statement, and a row for
        each job, however many tasks it has."""
        newest, highest = func.max(TaskRow.created_at), func.max(TaskRow.incarnation)
        with self._read() as session:
            alive = TaskRow.exited_at.is_(None), TaskRow.job_id.in_(set_of(session, job_ids))
            rows = session.execute(select(TaskRow.job_id, newest, highest).where(*alive).group_by(TaskRow.job_id))
            return {job_id: TaskAges(newest_at, incarnation) for job_id, newest_at, incarnation in rows}

    def worker_spans(self, job_ids: Collection[str]) -> dict[str, list[tuple[float, float | None]]]:
        """When each worker of these jobs was started, and had exited; jobs that never had any are left out."""
        with self._read() as session:
            found: dict[str, list[tuple[float, float | None]]] = {}
            columns = select(TaskRow.job_id, TaskRow.created_at, TaskRow.exited_at)
            for chunk in chunks(job_ids):
                of_them = columns.where(TaskRow.job_id.in_(chunk), TaskRow.role == Role.WORKER.value)
                for job_id, begin, end in session.execute(of_them):
                    found.setdefault(job_id, []).append((begin, end))
            return found

    def put(self, starts: Sequence[tuple[TaskKey, str, str | None]], addresses: Mapping[str, str], now: float) -> None:
        """Remember tasks that are about to be started: key, node, and what the GPUs are.

        A task of a key that is known already stays as it is. `addresses`: where coordinators listen from now on, by
        job id.

        Raises:
            JobNotFound: one of the jobs does not exist; nothing was stored.
        """
        with self._write() as session:
            rows = locked_together(session, {key.job_id for key, _, _ in starts} | addresses.keys())
            for job_id, address in addresses.items():
                rows[job_id].coordinator_address = address
            session.flush()
            values = [
                _key_values(key)
                | {"node": node, "created_at": now, "gpu_type": gpu_type, "attempt": rows[key.job_id].attempt}
                for key, node, gpu_type in sorted(starts)
            ]
            if values:
                session.execute(insert_for(session, TaskRow).on_conflict_do_nothing(), values)

    def mark_unwanted(self, keys: Iterable[TaskKey], now: float) -> None:
        """These tasks left the wanted set; those that had left it before keep their time. Unknown keys are ignored."""
        with self._write() as session:
            _update(session, keys, {"unwanted_since": now}, only_where_null=True)

    def mark_wanted(self, keys: Iterable[TaskKey]) -> None:
        """These tasks are wanted (again). Unknown keys are ignored."""
        with self._write() as session:
            _update(session, keys, {"unwanted_since": None})

    def mark_exited(self, key: TaskKey, exit_code: int | None, now: float) -> None:
        """The task ended; the first report counts. An unknown key is ignored."""
        with self._write() as session:
            _update(session, [key], {"exited_at": now, "exit_code": exit_code}, only_where_null=True)

    def put_usage(self, job_id: str, usages: Mapping[str, Mapping[str, float]], now: float) -> None:
        """What these tasks of the job take of their machines now, by name. Names of no task alive are ignored.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._write() as session:
            if session.get(JobRow, job_id) is None:
                raise JobNotFound(job_id)
            for task in select_tasks(session, active_only=True, job_id=job_id):  # sorted, as in `_update`
                if task.key.name in usages:
                    _update(session, [task.key], {"usage": dict(usages[task.key.name]), "usage_at": now})

    def silent_coordinators(self, since: float) -> list[TaskRecord]:
        """Wanted coordinators that have not exited, by key, which have told what they use, but not since then (POSIX
        seconds)."""
        with self._read() as session:
            return _records(session.execute(select(_TASKS).where(*_heard_coordinators(), TaskRow.usage_at < since)))

    def n_heard_coordinators(self) -> int:
        """Wanted coordinators that have not exited, and have told what they use."""
        with self._read() as session:
            return session.scalar(select(func.count()).select_from(_TASKS).where(*_heard_coordinators())) or 0


def _heard_coordinators() -> tuple[ColumnElement[bool], ...]:
    is_coordinator = TaskRow.role == Role.COORDINATOR.value
    return is_coordinator, TaskRow.exited_at.is_(None), TaskRow.unwanted_since.is_(None), TaskRow.usage_at.is_not(None)


def select_tasks(
    session: Session, active_only: bool, job_id: str | None, job_ids: Collection[str] | None = None
) -> list[TaskRecord]:
    """See `Tasks.select`."""
    statement = select(_TASKS)
    if active_only:
        statement = statement.where(TaskRow.exited_at.is_(None))
    if job_id is not None:
        statement = statement.where(TaskRow.job_id == job_id)
    if job_ids is not None:
        statement = statement.where(TaskRow.job_id.in_(set_of(session, job_ids)))
    return _records(session.execute(statement))


def newest(session: Session) -> list[TaskRecord]:
    """All that have not exited, and of each active job's (role, rank) the newest incarnation."""
    return _records(session.execute(_NEWEST))


def _newest() -> CompoundSelect[Any]:
    """A union, because each half has its index and their disjunction has none."""
    tasks, later, jobs = _TASKS, _TASKS.alias(), Base.metadata.tables["jobs"]
    replaced = select(later).where(
        later.c.job_id == tasks.c.job_id,
        later.c.role == tasks.c.role,
        later.c.rank == tasks.c.rank,
        later.c.incarnation > tasks.c.incarnation,
    )
    of_active_job = tasks.c.job_id.in_(select(jobs.c.id).where(jobs.c.state.in_(ACTIVE_STATES)))
    alive = select(tasks).where(tasks.c.exited_at.is_(None))
    return union(alive, select(tasks).where(of_active_job, ~replaced.exists()))


_NEWEST: Final = _newest()


def _records(rows: Iterable[Row[Any]]) -> list[TaskRecord]:
    # Sorted here, like `TaskKey`: PostgreSQL orders text by the rules of a language.
    return sorted(map(_record, rows), key=attrgetter("key"))


def _update(
    session: Session, keys: Iterable[TaskKey], values: Mapping[str, Any], *, only_where_null: bool = False
) -> None:
    """Set columns of these tasks; with `only_where_null` unless the first of them is set already."""
    # In one order, so that two writers of the same rows wait for each other instead of locking each other out.
    parameters = [
        {f"key_{name}": value for name, value in _key_values(key).items()} | dict(values) for key in sorted(keys)
    ]
    if parameters:
        session.connection().execute(_updating(next(iter(values)) if only_where_null else None), parameters)


@cache
def _updating(where_null: str | None) -> Update:
    """Sets the columns that its parameters name, of a task by its key."""
    statement = update(_TASKS).where(*(column == bindparam(f"key_{column.key}") for column in _TASKS.primary_key))
    return statement if where_null is None else statement.where(_TASKS.c[where_null].is_(None))


def _key_values(key: TaskKey) -> dict[str, Any]:
    return {"job_id": key.job_id, "role": key.role.value, "rank": key.rank, "incarnation": key.incarnation}


_ROLES: Final = {role.value: role for role in Role}
_NAMES = ("job_id", "role", "rank", "incarnation", "node", "created_at", "unwanted_since", "exited_at", "exit_code")
_COLUMNS: Final = itemgetter(*map(_TASKS.columns.keys().index, (*_NAMES, "gpu_type", "usage", "usage_at", "attempt")))
"""By position: each round reads tens of thousands of rows, and by name it takes longer."""


def _record(row: Row[Any]) -> TaskRecord:
    job_id, role, rank, incarnation, node, created_at, unwanted_since, exited_at, *others = _COLUMNS(row)
    exit_code, gpu_type, usage, usage_at, attempt = others
    return TaskRecord(
        key=TaskKey(job_id, _ROLES[role], rank, incarnation),
        node=node,
        created_at=created_at,
        unwanted_since=unwanted_since,
        exited_at=exited_at,
        exit_code=exit_code,
        gpu_type=gpu_type,
        usage=usage,
        usage_at=usage_at,
        attempt=attempt,
    )
