"""Statements about what is known of jobs by their samples, as documents of `optimus_service.observe.histories`.

What is known replaces the samples that it was made of: of a job's samples only the newest stay, so that a job costs the
same room after a year as after an hour.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, Final

from sqlalchemy import Select, and_, bindparam, delete, func, select
from sqlalchemy.orm import aliased

from optimus_scheduler.model import JobState
from optimus_service.store.database.dialects import chunks, insert_for, is_postgresql, keys_as_table
from optimus_service.store.database.subject import Subject
from optimus_service.store.database.tables import (
    Base,
    FinishedRunRow,
    JobHistoryRow,
    JobRow,
    SampleBatchRow,
    SampleBlockRow,
)
from optimus_service.store.jobs.rows import COLUMNS, record
from optimus_service.store.jobs.taught import task_key, task_taught
from optimus_service.store.records import Document, FinishedRunRecord, JobRecord, KeptHistory
from optimus_service.store.samples.counting import BLOCKS_KEPT

SAMPLES_KEPT: Final = 2000
"""Newest samples of a job that stay, and those that nothing is known of yet."""
_POSTS_AT_ONCE: Final = 300
"""Posts of one job that are deleted with one history: bounds the transaction where a long job has many."""

_OLD_BATCHES = (
    select(SampleBatchRow.last_id)
    .where(SampleBatchRow.job_id == bindparam("of"), SampleBatchRow.last_id <= bindparam("until"))
    .order_by(SampleBatchRow.last_id)
    .limit(_POSTS_AT_ONCE)
)
_FORGET_BATCHES = delete(SampleBatchRow).where(
    SampleBatchRow.job_id == bindparam("of"), SampleBatchRow.last_id.in_(_OLD_BATCHES)
)
_LATER = aliased(SampleBlockRow)
_HAS_LATER = (
    select(_LATER.number)
    .where(
        _LATER.job_id == SampleBlockRow.job_id,
        _LATER.membership_epoch == SampleBlockRow.membership_epoch,
        _LATER.rank == SampleBlockRow.rank,
        _LATER.number >= SampleBlockRow.number + BLOCKS_KEPT,
    )
    .exists()
)
_FORGET_BLOCKS = delete(SampleBlockRow).where(SampleBlockRow.job_id == bindparam("of"), _HAS_LATER)


class Histories(Subject):
    """What is known of jobs by their samples, as documents."""

    def put(self, kept: Mapping[str, KeptHistory]) -> None:
        """Keep what is known of these jobs by their samples, in the place of what was kept before.

        Samples that it was made of are deleted, but for the newest 2,000; a sample that is posted again when over 8,192
        later ones of its rank and epoch were counted is a duplicate. Jobs that are not there any more are left out.
        """
        with self._write() as session:
            statement = insert_for(session, JobHistoryRow)
            statement = statement.on_conflict_do_update(
                index_elements=[JobHistoryRow.job_id],
                set_={"document": statement.excluded.document, "last_id": statement.excluded.last_id},
            )
            connection = session.connection()
            for chunk in chunks(kept):
                there = list(
                    session.scalars(select(JobRow.id).where(JobRow.id.in_(chunk)).with_for_update(key_share=True))
                )
                if there:
                    rows = [{"job_id": job_id, **_values(kept[job_id])} for job_id in there]
                    session.execute(statement, rows)
                    old = [{"of": job_id, "until": kept[job_id].last_id - SAMPLES_KEPT} for job_id in there]
                    connection.execute(_FORGET_BATCHES, old)
                    connection.execute(_FORGET_BLOCKS, [{"of": job_id} for job_id in there])

    def of_jobs(self, job_ids: Collection[str]) -> dict[str, KeptHistory]:
        """What is kept of these jobs' samples; jobs of which nothing is are left out."""
        with self._read() as session:
            found: dict[str, KeptHistory] = {}
            for chunk in chunks(job_ids):
                rows = session.scalars(select(JobHistoryRow).where(JobHistoryRow.job_id.in_(chunk)))
                found |= {row.job_id: KeptHistory(row.last_id, row.document) for row in rows}
            return found

    def reach(self, job_ids: Collection[str]) -> dict[str, int]:
        """The newest sample in what is kept of each of these jobs; one statement, however many there are."""
        with self._read() as session:
            rows = session.execute(_reach(is_postgresql(session)), {"job_ids": list(job_ids)})
            return {row.job_id: row.last_id for row in rows}


class FinishedRuns(Subject):
    """What ended jobs taught."""

    def add(self, job_id: str, document: Document) -> None:
        """Keep what an ended job taught; nothing if that is there already."""
        with self._write() as session:
            values = {"job_id": job_id, "document": document, "task": task_taught(document)}
            session.execute(insert_for(session, FinishedRunRow).values(values).on_conflict_do_nothing())

    def after(self, after_id: int, newest: int) -> list[FinishedRunRecord]:
        """The `newest` of those with an id above `after_id`, by id."""
        with self._read() as session:
            rows = session.execute(_AFTER, {"after_id": after_id, "newest": newest}).all()
            return [FinishedRunRecord(id=row.id, job_id=row.job_id, document=row.document) for row in reversed(rows)]

    def of_tasks(self, tasks: Collection[str], until_id: int, newest: int) -> list[FinishedRunRecord]:
        """The `newest` of each of these tasks that teach anything, with an id of `until_id` at most, by id."""
        with self._read() as session:
            statement = _of_tasks(is_postgresql(session))
            values = {"tasks": list(map(task_key, tasks)), "until_id": until_id, "others": newest - 1}
            rows = sorted(session.execute(statement, values), key=lambda row: row.id)
            return [FinishedRunRecord(id=row.id, job_id=row.job_id, document=row.document) for row in rows]

    def n_of(self, job_ids: Collection[str]) -> int:
        """How many of these jobs' runs there are."""
        with self._read() as session:
            return session.scalar(_n_of(is_postgresql(session)), {"job_ids": list(job_ids)}) or 0

    def jobs_of(self, job_ids: Collection[str]) -> set[str]:
        """Those of these jobs whose runs there are."""
        with self._read() as session:
            chosen = (select(_RUNS.c.job_id).where(_RUNS.c.job_id.in_(chunk)) for chunk in chunks(job_ids))
            return {job_id for statement in chosen for job_id in session.scalars(statement)}

    def n_between(self, first_id: int, last_id: int) -> int:
        """How many of these ids there are: fewer than before, once jobs were deleted."""
        with self._read() as session:
            return session.scalar(_N_BETWEEN, {"first_id": first_id, "last_id": last_id}) or 0

    def jobs_between(self, first_id: int, last_id: int) -> set[str]:
        """The jobs of these ids."""
        with self._read() as session:
            return set(session.scalars(_JOBS_BETWEEN, {"first_id": first_id, "last_id": last_id}))

    def jobs_without(self, since: float, limit: int) -> list[JobRecord]:
        """Jobs that succeeded at `since` or later and of which nothing is kept yet, the first to end first."""
        with self._read() as session:
            return [record(row) for row in session.execute(_WITHOUT_RUN, {"since": since, "limit": limit})]


def _values(kept: KeptHistory) -> dict[str, Any]:
    return {"last_id": kept.last_id, "document": kept.document}


@cache
def _reach(for_postgresql: bool) -> Select[tuple[str, int]]:
    histories = Base.metadata.tables["job_histories"]
    job_ids = keys_as_table(for_postgresql, "job_ids")
    return select(histories.c.job_id, histories.c.last_id).join(job_ids, histories.c.job_id == job_ids.c.value)


# --- what ended jobs taught: kept apart from their samples, which are many and are deleted some day ------------------

_JOBS: Final = Base.metadata.tables["jobs"]
_RUNS: Final = Base.metadata.tables["finished_runs"]
_AFTER: Final = (
    select(_RUNS).where(_RUNS.c.id > bindparam("after_id")).order_by(_RUNS.c.id.desc()).limit(bindparam("newest"))
)


@cache
def _of_tasks(for_postgresql: bool) -> Select[Any]:
    """From the oldest that is one of the newest of its task on: for each task two looks at the index."""
    tasks, earlier = keys_as_table(for_postgresql, "tasks"), _RUNS.alias("earlier")
    oldest = (
        select(earlier.c.id)
        .where(earlier.c.task == tasks.c.value, earlier.c.id <= bindparam("until_id"))
        .order_by(earlier.c.id.desc())
        .limit(1)
        .offset(bindparam("others"))
        .scalar_subquery()
    )
    bounds = _RUNS.c.id >= func.coalesce(oldest, 0), _RUNS.c.id <= bindparam("until_id")
    chosen = select(_RUNS.c.id, _RUNS.c.job_id, _RUNS.c.document)
    return chosen.select_from(tasks.join(_RUNS, and_(_RUNS.c.task == tasks.c.value, *bounds)))


@cache
def _n_of(for_postgresql: bool) -> Select[Any]:
    job_ids = keys_as_table(for_postgresql, "job_ids")
    return select(func.count()).select_from(job_ids.join(_RUNS, _RUNS.c.job_id == job_ids.c.value))


_BETWEEN: Final = _RUNS.c.id.between(bindparam("first_id"), bindparam("last_id"))
_N_BETWEEN: Final = select(func.count()).select_from(_RUNS).where(_BETWEEN)
_JOBS_BETWEEN: Final = select(_RUNS.c.job_id).where(_BETWEEN)
_WITHOUT_RUN: Final = (
    select(*COLUMNS)
    .where(
        _JOBS.c.finished_at >= bindparam("since"),
        _JOBS.c.state == JobState.SUCCEEDED.value,
        ~select(_RUNS.c.id).where(_RUNS.c.job_id == _JOBS.c.id).exists(),
    )
    .order_by(_JOBS.c.finished_at)
    .limit(bindparam("limit"))
)
