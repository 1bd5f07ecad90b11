"""Statements about the memberships that coordinators formed, and so about which job had what over time."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Row, bindparam, func, or_, select, update
from sqlalchemy.orm import Session

from optimus_scheduler.model import Allocation, Directive, JobState, Role, TaskKey
from optimus_scheduler.model.format import size_words
from optimus_service.store.database.dialects import chunks, insert_for
from optimus_service.store.database.tables import Base, JobRow, MembershipRow, SampleBlockRow, TaskRow
from optimus_service.store.jobs.jobs import ACTIVE_STATES, in_projects, locked
from optimus_service.store.jobs.jobs import record as job_record
from optimus_service.store.records import REPLACED, JobRecord, MembershipRecord, asked_by
from optimus_service.store.rounds import history

_JOBS: Final = Base.metadata.tables["jobs"]
_MEMBERSHIPS: Final = Base.metadata.tables["memberships"]
_OF_ACTIVE_JOBS: Final = (
    select(_MEMBERSHIPS)
    .join(_JOBS, _JOBS.c.id == _MEMBERSHIPS.c.job_id)
    .where(_JOBS.c.state.in_(ACTIVE_STATES))
    .order_by(_MEMBERSHIPS.c.job_id, _MEMBERSHIPS.c.epoch)
)
_HEARD: Final = (
    update(_JOBS).where(_JOBS.c.id == bindparam("of"), _JOBS.c.heard_at.is_not(None)).values(heard_at=bindparam("now"))
)

Size = tuple[int, int, str | None]


def report(session: Session, job_id: str, report_: MembershipRecord) -> bool:
    """See `Repository.report_membership`."""
    assert report_.job_id == job_id, f"a membership of {report_.job_id} was reported for {job_id}"
    row = locked(session, job_id)
    report_ = replace(report_, gpu_type=_gpu_type(session, row, report_))
    if report_.cause == "resume":
        # Nobody had the state in memory: steps beyond the checkpoint are lost, and only the service knows of them all.
        report_ = replace(report_, lost_steps=max(report_.lost_steps, row.step - report_.step))
    if report_.cause == "coordinator_restart" and report_.pause_seconds is None:
        report_ = replace(report_, pause_seconds=_stood_still(session, row, report_))
    if report_.cause == "rescale" and _size_before(session, report_) == _size(report_):
        report_ = replace(report_, cause=REPLACED)
    if not _insert(session, report_):
        return False
    row.rescales += report_.cause == "rescale"
    if report_.epoch > row.membership_epoch:
        _make_current(session, row, report_)
    size = Allocation(len(report_.workers), len(report_.servers))
    words = f"{size_words(size)} ({report_.cause})"
    if report_.global_batch is not None:
        words += f", in batches of {report_.global_batch}"
    message = f"Membership epoch {report_.epoch} began at step {report_.step} with {words}{_costs(report_)}."
    data = {
        "epoch": report_.epoch,
        "generation": report_.generation,
        "step": report_.step,
        "workers": len(report_.workers),
        "servers": len(report_.servers),
        "cause": report_.cause,
        "pause_seconds": report_.pause_seconds,
        "pause_parts": None if report_.pause_parts is None else dict(report_.pause_parts),
        "lost_steps": report_.lost_steps,
        "message": report_.message,
        "global_batch": report_.global_batch,
    }
    history.add_event(session, job_id, "MembershipChanged", message, data, report_.at)
    return True


def _stood_still(session: Session, row: JobRow, report_: MembershipRecord) -> float | None:
    """Since the last step that is known of tasks that ended with their coordinator; None: others may have gone on."""
    before = _before(session, report_)
    if before is None or not set(before.workers).isdisjoint(report_.workers):
        return None
    # A job that goes on further than that made steps while nobody heard of them.
    if row.step_at is None or report_.step > row.step or report_.at < row.step_at:
        return None
    return report_.at - row.step_at


def _before(session: Session, report_: MembershipRecord) -> MembershipRow | None:
    """The membership before this one; None: this is the job's first."""
    earlier = select(MembershipRow).where(MembershipRow.job_id == report_.job_id, MembershipRow.epoch < report_.epoch)
    return session.scalars(earlier.order_by(MembershipRow.epoch.desc()).limit(1)).first()


def _size_before(session: Session, report_: MembershipRecord) -> Size | None:
    before = _before(session, report_)
    return None if before is None else _size(before)


def _size(membership: MembershipRecord | MembershipRow) -> Size:
    return len(membership.workers), len(membership.servers), membership.gpu_type


def _costs(report_: MembershipRecord) -> str:
    """`: 12 steps are lost; job-worker-0-0 was lost`, what a change cost and why; empty where nothing is to be said."""
    lost = report_.lost_steps
    said = [f"{lost} steps are lost" if lost > 1 else "1 step is lost"] if lost else []
    said += [report_.message] if report_.message else []
    return f": {'; '.join(said)}" if said else ""


def heard(session: Session, job_id: str, now: float) -> None:
    """See `Repository.heard`."""
    # Not through the row: its version guards what is decided, which this is not.
    session.connection().execute(_HEARD, {"of": job_id, "now": now})


def _insert(session: Session, report_: MembershipRecord) -> bool:
    values = {
        "job_id": report_.job_id,
        "epoch": report_.epoch,
        "generation": report_.generation,
        "at": report_.at,
        "step": report_.step,
        "workers": list(report_.workers),
        "servers": list(report_.servers),
        "n_workers": len(report_.workers),
        "cause": report_.cause,
        "pause_seconds": report_.pause_seconds,
        "pause_parts": None if report_.pause_parts is None else dict(report_.pause_parts),
        "lost_steps": report_.lost_steps,
        "message": report_.message,
        "gpu_type": report_.gpu_type,
        "global_batch": report_.global_batch,
    }
    statement = insert_for(session, MembershipRow).values(values).on_conflict_do_nothing()
    return session.execute(statement.returning(MembershipRow.epoch)).first() is not None


def _gpu_type(session: Session, row: JobRow, report_: MembershipRecord) -> str | None:
    """What the workers were started on: what is wanted may have changed since. A tracked job says it itself."""
    if not report_.workers:
        return None
    if row.heard_at is not None:
        return next(iter(asked_by(row.spec).gpu_types), None)
    first = report_.workers[0]
    workers = select(TaskRow).where(
        TaskRow.job_id == report_.job_id, TaskRow.role == Role.WORKER.value, TaskRow.rank == 0
    )
    return next((task.gpu_type for task in session.scalars(workers) if _name(task) == first), None)


def _name(task: TaskRow) -> str:
    return TaskKey(task.job_id, Role(task.role), task.rank, task.incarnation).name


def _make_current(session: Session, row: JobRow, report_: MembershipRecord) -> None:
    row.membership_epoch = report_.epoch
    waits_after_error = row.retry_at is not None and row.directive == Directive.PAUSE and not row.wanted_workers
    if not JobState(row.state).is_final and not waits_after_error:  # else the report is of tasks that are leaving
        row.running_workers, row.running_servers = len(report_.workers), len(report_.servers)
        row.running_gpu_type = report_.gpu_type
        row.formed_at = report_.at
    # Samples of the new epoch may have come before its report: they are beyond the rollback, if there was one.
    reached = _newest_step(session, report_) if report_.lost_steps else row.step
    row.step = max(report_.step, reached)


def _newest_step(session: Session, report_: MembershipRecord) -> int:
    """The highest step among the samples of the reported epoch and later ones; 0 without any."""
    statement = select(func.max(SampleBlockRow.max_step)).where(
        SampleBlockRow.job_id == report_.job_id, SampleBlockRow.membership_epoch >= report_.epoch
    )
    return session.scalar(statement) or 0


def of_job(session: Session, job_id: str) -> list[MembershipRecord]:
    """See `Repository.memberships`."""
    statement = select(MembershipRow).where(MembershipRow.job_id == job_id).order_by(MembershipRow.epoch)
    return [record(row) for row in session.scalars(statement)]


def of_jobs(session: Session, job_ids: Collection[str]) -> dict[str, list[MembershipRecord]]:
    """See `Repository.memberships_of`."""
    records: dict[str, list[MembershipRecord]] = {}
    for chunk in chunks(job_ids):
        statement = select(MembershipRow).where(MembershipRow.job_id.in_(chunk))
        for row in session.scalars(statement.order_by(MembershipRow.job_id, MembershipRow.epoch)):
            records.setdefault(row.job_id, []).append(record(row))
    return records


def of_active_jobs(session: Session) -> dict[str, list[MembershipRecord]]:
    """All reported memberships of each active job that has any, oldest first, by job id."""
    records: dict[str, list[MembershipRecord]] = {}
    for row in session.execute(_OF_ACTIVE_JOBS):
        records.setdefault(row.job_id, []).append(record(row))
    return records


def interruptions(session: Session, since: float, now: float) -> tuple[int, float]:
    """See `Repository.interruptions`."""
    jobs = JobRow.created_at >= since, JobRow.started_at.is_not(None)
    seconds = func.sum(func.coalesce(JobRow.finished_at, now) - JobRow.started_at)
    retries, running = session.execute(select(func.sum(JobRow.retries), seconds).where(*jobs)).one()
    lost = (
        select(func.count())
        .select_from(MembershipRow)
        .join(JobRow, JobRow.id == MembershipRow.job_id)
        .where(*jobs, MembershipRow.cause.in_(("worker_lost", "server_lost")))
    )
    return (session.scalar(lost) or 0) + int(retries or 0), max(0.0, float(running or 0.0))


def record(row: MembershipRow | Row[Any]) -> MembershipRecord:
    """A row as a value."""
    return MembershipRecord(
        job_id=row.job_id,
        epoch=row.epoch,
        generation=row.generation,
        at=row.at,
        step=row.step,
        workers=tuple(row.workers),
        servers=tuple(row.servers),
        cause=row.cause,
        pause_seconds=row.pause_seconds,
        pause_parts=row.pause_parts,
        lost_steps=row.lost_steps,
        message=row.message,
        gpu_type=row.gpu_type,
        global_batch=row.global_batch,
    )


def jobs_since(
    session: Session, since: float, limit: int, projects: Collection[str] | None
) -> tuple[list[JobRecord], dict[str, list[MembershipRecord]]]:
    """See `Repository.jobs_since`."""
    chosen = (
        select(JobRow)
        .where(or_(JobRow.finished_at.is_(None), JobRow.finished_at > since), *in_projects(projects))
        .order_by(func.coalesce(JobRow.finished_at, JobRow.created_at + 1e12).desc(), JobRow.id)
        .limit(limit)
    )
    jobs = [job_record(row) for row in session.scalars(chosen)]
    rows = session.scalars(
        select(MembershipRow)
        .where(MembershipRow.job_id.in_([job.id for job in jobs]))
        .order_by(MembershipRow.job_id, MembershipRow.epoch)
    )
    memberships: dict[str, list[MembershipRecord]] = {}
    for row in rows:
        memberships.setdefault(row.job_id, []).append(record(row))
    return jobs, memberships
