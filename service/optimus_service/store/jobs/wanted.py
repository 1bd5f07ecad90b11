"""Statements about what jobs should have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Row, bindparam, select
from sqlalchemy.orm import Session

from optimus_contract.membership import Limits
from optimus_scheduler.lifecycle import InvalidTransition, TasksGranted
from optimus_scheduler.model import Allocation, Directive, JobState, PlacedTask, Role, SetWanted, TaskKey
from optimus_scheduler.retries import LONGEST_RETRY_SECONDS
from optimus_service.store.database import kept
from optimus_service.store.database.dialects import chunks
from optimus_service.store.database.subject import Subject
from optimus_service.store.database.tables import Base, JobRow
from optimus_service.store.errors import JobNotFound
from optimus_service.store.jobs.charging import charge
from optimus_service.store.jobs.rows import ACTIVE_STATES, STORED, locked, locked_together, records
from optimus_service.store.jobs.transitions import advance_row
from optimus_service.store.records import JobRecord, WantedRecord, asked_by

_JOBS: Final = Base.metadata.tables["jobs"]
_TASKS: Final = _JOBS.c.wanted_tasks
_WANTED_COLUMNS: Final = (
    *("generation", "directive", "wanted_workers", "wanted_servers", "wanted_gpu_type", "wanted_tasks"),
    *("wanted_batch", "membership_epoch", "step"),
)
_WANTED: Final = attrgetter(*_WANTED_COLUMNS)
"""What a `WantedRecord` is made of, of a row."""
_OF_JOB: Final = select(_JOBS.c.id, _JOBS.c.spec, *(_JOBS.c[name] for name in _WANTED_COLUMNS)).where(
    _JOBS.c.id == bindparam("of")
)
_OF_ACTIVE: Final = select(_JOBS.c.id, *kept.as_stored(_JOBS.c[name] for name in _WANTED_COLUMNS)).where(
    _JOBS.c.state.in_(ACTIVE_STATES)
)
_ACTIVE: Final = (
    select(*STORED, *kept.as_stored([_TASKS]), _JOBS.c.network.is_not(None).label("has_network"))
    .where(_JOBS.c.state.in_(ACTIVE_STATES))
    .order_by(_JOBS.c.created_at, _JOBS.c.id)
)
_RANK = {Directive.RUN: 0, Directive.PAUSE: 0, Directive.FINISH: 1, Directive.CANCEL: 2}
"""A directive gives way to those of its own rank and above: what ends a job is not undone by an older plan."""


class Wanted(Subject):
    """What jobs should have."""

    def put(self, changes: Sequence[SetWanted], now: float) -> list[tuple[str, int]]:
        """Store what jobs should have; a new generation for each of which it differs from what is wanted already.

        A round works on a snapshot that may be older than the job's directive: FINISH and CANCEL, once set, are not
        undone by it (CANCEL is above FINISH). A job that ended wants nothing any more, and stays as it is. A job that
        had nothing gets the event that tasks were granted.

        Returns:
            The jobs that have a new generation, with it.

        Raises:
            JobNotFound: one of the jobs does not exist; nothing was stored.
        """
        with self._write() as session:
            rows = locked_together(session, {change.job_id for change in changes})
            changed = []
            for change in changes:
                row = rows[change.job_id]
                before, had_nothing = row.generation, _allocation(row).is_empty
                put_into(row, change.allocation, change.directive, change.tasks, now, change.batch)
                if row.owner_paused_at is None and row.generation != before:
                    is_taken = change.allocation.is_empty and not had_nothing  # by whom, is told of the last time
                    keeps = change.allocation.is_empty or row.state == JobState.PAUSED.value  # until it trains again
                    row.paused_by = change.paused_by or (row.paused_by if keeps and not is_taken else None)
                if row.generation == before:
                    continue
                if had_nothing and not change.allocation.is_empty:
                    with suppress(InvalidTransition):  # it ended after the plan was made
                        advance_row(session, row, TasksGranted(change.allocation), now, self._backoff)
                changed.append((row.id, row.generation))
            return changed

    def get(self, job_id: str) -> WantedRecord:
        """What a job should have, with its limits; generation 0 and nothing before the first `put`.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._read() as session:
            row = session.execute(_OF_JOB, {"of": job_id}).one_or_none()
            if row is None:
                raise JobNotFound(job_id)
            rule = asked_by(row.spec).convergence
            return replace(_record(row), limits=Limits(max_steps=rule.max_steps, max_epochs=rule.max_epochs))

    def of_active_jobs(self) -> dict[str, WantedRecord]:
        """What each active job should have, by job id."""
        with self._read() as session:
            return _records(session, session.execute(_OF_ACTIVE), self._kept)

    def generations(self, job_ids: Collection[str]) -> dict[str, int]:
        """The wanted generation of each of these jobs that there is, by job id. Cheap: for long polls."""
        with self._read() as session:
            found: dict[str, int] = {}
            for chunk in chunks(job_ids):
                rows = session.execute(select(JobRow.id, JobRow.generation).where(JobRow.id.in_(chunk)))
                found.update((job_id, generation) for job_id, generation in rows)
            return found

    def go_beyond(self, job_id: str, generation: int) -> int:
        """Give a job's wanted tasks a generation above one that its coordinator knows of: that one was made after the
        backup from which this database was restored. What is wanted stays as it is.

        A job that is to run and has nothing yet stays as it is: what runs of it is not known before the next round.

        Returns:
            The job's generation.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._write() as session:
            row = locked(session, job_id)
            waits = row.directive == Directive.RUN.value and _allocation(row).is_empty
            if row.generation <= generation and not waits and not JobState(row.state).is_final:
                row.generation = generation + 1
            return row.generation


def put_into(
    row: JobRow,
    allocation: Allocation,
    directive: Directive,
    tasks: Sequence[PlacedTask],
    now: float,
    batch: int | None,
) -> int:
    """The same for a row that is locked."""
    job_id = row.id
    if JobState(row.state).is_final or (tasks and (row.owner_paused_at is not None or waits_for_retry(row, now))):
        return row.generation
    present = Directive(row.directive)
    if _RANK[directive] < _RANK[present]:
        directive = present
    stored_tasks = [_store_task(job_id, task) for task in sorted(tasks, key=lambda task: task.key)]
    changed_allocation = _allocation(row) != allocation
    before = (_allocation(row), present, row.wanted_tasks, row.wanted_batch)
    if before != (allocation, directive, stored_tasks, batch):
        if changed_allocation:
            charge(row, now)
        row.wanted_workers, row.wanted_servers, row.wanted_gpu_type = (
            allocation.workers,
            allocation.servers,
            allocation.gpu_type,
        )
        row.wanted_tasks = stored_tasks
        row.wanted_batch = batch
        row.directive = directive.value
        row.generation += 1
    return row.generation


def waits_for_retry(row: JobRow, now: float) -> bool:
    """Whether the job has failed since the caller's snapshot was taken: its tasks must not start before the wait is
    over."""
    if row.retry_at is None or row.directive != Directive.PAUSE.value:
        return False
    return 0.0 < row.retry_at - now <= LONGEST_RETRY_SECONDS  # further away: somebody has set the clock back


def active_with_wanted(
    session: Session, known: kept.Kept
) -> tuple[list[JobRecord], dict[str, WantedRecord], frozenset[str]]:
    """Active jobs, oldest first; what each should have; those of which the layers are known. One statement."""
    rows = session.execute(_ACTIVE).all()
    found = records(session, rows, known, are_all=True)
    return found, _records(session, rows, known), frozenset(row.id for row in rows if row.has_network)


def _records(session: Session, rows: Iterable[kept.AnyRow], known: kept.Kept) -> dict[str, WantedRecord]:
    """What active jobs should have, by job id: the very values of before where nothing changed."""
    dialect = session.get_bind().dialect

    def make(row: kept.AnyRow, _before: WantedRecord | None) -> WantedRecord:
        return _record(kept.read(row, [_TASKS], dialect))

    return {row.id: known.wanted.of(row.id, _WANTED(row), row, make, is_kept=True) for row in rows}


def _allocation(row: JobRow | Row[Any]) -> Allocation:
    return Allocation(row.wanted_workers, row.wanted_servers, row.wanted_gpu_type)


def _record(row: JobRow | Row[Any]) -> WantedRecord:
    return WantedRecord(
        generation=row.generation,
        directive=Directive(row.directive),
        allocation=_allocation(row),
        tasks=tuple(_load_task(row.id, stored) for stored in row.wanted_tasks),
        batch=row.wanted_batch,
        membership_epoch=row.membership_epoch,
        step=row.step,
    )


def _store_task(job_id: str, task: PlacedTask) -> list[Any]:
    assert task.key.job_id == job_id, f"task {task.key.name} does not belong to job {job_id}"
    return [task.key.role.value, task.key.rank, task.key.incarnation, task.node]


def _load_task(job_id: str, stored: list[Any]) -> PlacedTask:
    role, rank, incarnation, node = stored
    return PlacedTask(TaskKey(job_id, Role(role), rank, incarnation), node)
