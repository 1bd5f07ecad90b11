"""Statements about the memberships that coordinators formed, and so about which job had what over time."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Row, and_, bindparam, func, or_, select, update
from sqlalchemy.orm import Session

from optimus_scheduler.model import Allocation, Directive, JobState, Role, TaskKey
from optimus_scheduler.model.format import size_words
from optimus_service.store.database.dialects import chunks, insert_for
from optimus_service.store.database.subject import Subject
from optimus_service.store.database.tables import Base, JobRow, MembershipRow, SampleBlockRow, TaskRow, split_float
from optimus_service.store.jobs.rows import ACTIVE_STATES, COLUMNS, in_projects, locked
from optimus_service.store.jobs.rows import record as job_record
from optimus_service.store.records import REPLACED, JobRecord, MembershipRecord, asked_by
from optimus_service.store.rounds import history
from optimus_service.store.samples.samples import newest

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

_ENDED: Final = (
    select(*COLUMNS)
    .where(_JOBS.c.finished_at.is_not(None), _JOBS.c.started_at.is_not(None))
    .order_by(_JOBS.c.finished_at.desc())
    .limit(bindparam("most"))
)
_BEFORE: Final = func.lag(_MEMBERSHIPS.c.n_workers, 1, 0).over(
    partition_by=_MEMBERSHIPS.c.job_id, order_by=_MEMBERSHIPS.c.epoch
)
_SIZES: Final = (
    select(_MEMBERSHIPS.c.job_id, _MEMBERSHIPS.c.epoch, _MEMBERSHIPS.c.n_workers, _BEFORE.label("before"))
    .where(_MEMBERSHIPS.c.job_id.in_(bindparam("of", expanding=True)))
    .subquery()
)
_STARTS: Final = (
    select(_MEMBERSHIPS)
    .join(_SIZES, and_(_SIZES.c.job_id == _MEMBERSHIPS.c.job_id, _SIZES.c.epoch == _MEMBERSHIPS.c.epoch))
    .where(_SIZES.c.before == 0, _SIZES.c.n_workers > 0)
    .order_by(_MEMBERSHIPS.c.job_id, _MEMBERSHIPS.c.epoch)
)

Size = tuple[int, int, str | None]


class Memberships(Subject):
    """The memberships that coordinators formed, and so which job had what over time."""

    def report(self, job_id: str, report: MembershipRecord) -> bool:
        """Store a membership epoch that a coordinator formed, with the event `MembershipChanged`. Again is harmless.

        Sets the job's `membership_epoch` and `running` (unless a newer epoch was reported) and counts a `rescale`, but
        not one that only puts tasks in the places of others: that is stored as `replaced`. With `lost_steps` the job's
        `step` goes back to where the new membership began, and loss and epoch are what was told since then. State and
        start time are `Jobs.advance`'s: call it (`MembershipFormed` or `Paused`) after this, whatever this returns.

        Returns:
            Whether this epoch had not been reported before.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._write() as session:
            assert report.job_id == job_id, f"a membership of {report.job_id} was reported for {job_id}"
            row = locked(session, job_id)
            report = replace(report, gpu_type=_gpu_type(session, row, report))
            began_at = (row.profile or {}).get("began_at_step") or 0
            if report.step < began_at and _before(session, report) is None:
                report = replace(report, step=began_at)  # its first steps came before its report
            if report.cause in ("resume", "coordinator_restart"):
                # Where nobody had the state in memory, steps beyond the checkpoint are lost, and only the service knows
                # all of them.
                report = replace(report, lost_steps=max(report.lost_steps, _made(session, row, report) - report.step))
            if report.cause == "coordinator_restart" and report.pause_seconds is None:
                report = replace(report, pause_seconds=_stood_still(session, row, report))
            if report.cause == "rescale" and _is_replacement(session, row, report):
                report = replace(report, cause=REPLACED)
            if _has_lost_its_tasks(row, report.at):
                report = replace(report, ended_at=report.at)
            if not _insert(session, report):
                return False
            row.rescales += report.cause == "rescale"
            if report.epoch > row.membership_epoch:
                _make_current(session, row, report)
            size = Allocation(len(report.workers), len(report.servers))
            words = f"{size_words(size)} ({report.cause})"
            if report.global_batch is not None:
                words += f", in batches of {report.global_batch}"
            costs = _costs(report, at_most=not report.step and _is_beginning_open(row))
            message = f"Membership epoch {report.epoch} began at step {report.step} with {words}{costs}."
            data = {
                "epoch": report.epoch,
                "generation": report.generation,
                "step": report.step,
                "workers": len(report.workers),
                "servers": len(report.servers),
                "cause": report.cause,
                "pause_seconds": report.pause_seconds,
                "pause_parts": None if report.pause_parts is None else dict(report.pause_parts),
                "lost_steps": report.lost_steps,
                "message": report.message,
                "global_batch": report.global_batch,
            }
            history.add_event(session, job_id, "MembershipChanged", message, data, report.at)
            return True

    def began_at(self, job_id: str, step: int, now: float) -> None:
        """Its first steps tell that a script began from `step`, with a checkpoint from before the job, and not from 0
        as its memberships so far say: they began there, and lost the less. Told with the event `BeganFurtherOn`."""
        with self._write() as session:
            row = locked(session, job_id)
            statement = select(MembershipRow).where(MembershipRow.job_id == job_id, MembershipRow.step < step)
            found = [each for each in session.scalars(statement.order_by(MembershipRow.epoch)) if each.n_workers]
            if row.first_step is not None:
                row.first_step = max(row.first_step, step + 1)
            had_lost = any(each.lost_steps for each in found)
            for each in found:
                each.lost_steps = max(each.lost_steps - (step - each.step), 0)
                each.step = step
            if not found:
                return
            epochs = [each.epoch for each in found]
            began = f"epoch {epochs[0]}" if len(epochs) == 1 else f"epochs {', '.join(map(str, epochs))}"
            words = f"Membership {began} began at step {step}, with a checkpoint from before the job, as its steps tell"
            n_lost = sum(each.lost_steps for each in found)
            lost = "1 step was" if n_lost == 1 else f"{n_lost} steps were"
            words += f": {lost} lost, and not more." if had_lost else "."
            history.add_event(session, job_id, "BeganFurtherOn", words, {"step": step, "epochs": epochs}, now)

    def heard(self, job_id: str, now: float) -> None:
        """Note that a tracked job still reports; of any other job nothing is noted."""
        with self._write() as session:
            # Not through the row: its version guards what is decided, which this is not.
            session.connection().execute(_HEARD, {"of": job_id, "now": now})

    def of_job(self, job_id: str) -> list[MembershipRecord]:
        """All reported memberships of a job by epoch, oldest first; empty for an unknown job."""
        with self._read() as session:
            statement = select(MembershipRow).where(MembershipRow.job_id == job_id).order_by(MembershipRow.epoch)
            return [record(row) for row in session.scalars(statement)]

    def of_jobs(self, job_ids: Collection[str]) -> dict[str, list[MembershipRecord]]:
        """All reported memberships of each of these jobs that has any, oldest first, by job id."""
        with self._read() as session:
            records: dict[str, list[MembershipRecord]] = {}
            for chunk in chunks(job_ids):
                statement = select(MembershipRow).where(MembershipRow.job_id.in_(chunk))
                for row in session.scalars(statement.order_by(MembershipRow.job_id, MembershipRow.epoch)):
                    records.setdefault(row.job_id, []).append(record(row))
            return records

    def starts_of_ended(self, jobs: int) -> list[tuple[JobRecord, list[MembershipRecord]]]:
        """The memberships with which the `jobs` that ended last got tasks and had none before, oldest first, and of
        which job they are."""
        with self._read() as session:
            found = [(job_record(row), list[MembershipRecord]()) for row in session.execute(_ENDED, {"most": jobs})]
            of_job = {job.id: starts for job, starts in found}
            for chunk in chunks(of_job):
                for row in session.execute(_STARTS, {"of": chunk}):
                    of_job[row.job_id].append(record(row))
            return found

    def interruptions(self, since: float, now: float) -> tuple[int, float]:
        """How often jobs that were submitted after `since` lost a task or went on after an error, and the seconds from
        their starts to their ends, or to `now`; all times are POSIX seconds."""
        with self._read() as session:
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

    def jobs_since(
        self, since: float, limit: int, projects: Collection[str] | None = None
    ) -> tuple[list[JobRecord], dict[str, list[MembershipRecord]]]:
        """Jobs (of these projects) that are active or ended after `since`; their memberships, oldest first, by job id.

        At most `limit` jobs: active ones first, then those that ended last.
        """
        with self._read() as session:
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


def _made(session: Session, row: JobRow, report: MembershipRecord) -> int:
    """The steps that the job had made when this membership began, those that were rolled back not counted."""
    if not _newest_step(session, report):
        return row.step
    # Samples of the new epoch came before its report, and `row.step` may be theirs.
    earlier = MembershipRow.job_id == report.job_id, MembershipRow.epoch < report.epoch
    rolled_back = select(func.max(MembershipRow.epoch)).where(*earlier, MembershipRow.lost_steps > 0)
    since = session.scalar(rolled_back) or 0
    began = session.scalar(select(func.max(MembershipRow.step)).where(*earlier, MembershipRow.epoch >= since)) or 0
    epochs = SampleBlockRow.membership_epoch >= since, SampleBlockRow.membership_epoch < report.epoch
    told = select(func.max(SampleBlockRow.max_step)).where(SampleBlockRow.job_id == report.job_id, *epochs)
    return max(began, session.scalar(told) or 0)


def _stood_still(session: Session, row: JobRow, report: MembershipRecord) -> float | None:
    """Since the last step that is known of tasks that ended with their coordinator; None: others may have gone on."""
    before = _before(session, report)
    if before is None or not set(before.workers).isdisjoint(report.workers):
        return None
    # A job that goes on further than that made steps while nobody heard of them.
    if row.step_at is None or report.step > row.step or report.at < row.step_at:
        return None
    return report.at - row.step_at


def _before(session: Session, report: MembershipRecord) -> MembershipRow | None:
    """The membership before this one; None: this is the job's first."""
    earlier = select(MembershipRow).where(MembershipRow.job_id == report.job_id, MembershipRow.epoch < report.epoch)
    return session.scalars(earlier.order_by(MembershipRow.epoch.desc()).limit(1)).first()


def _is_replacement(session: Session, row: JobRow, report: MembershipRecord) -> bool:
    """Whether tasks took the place of others: its size is as before, or it has had, since that size is wanted, all that
    is wanted, so that what was missing had been lost or had left."""
    before = _before(session, report)
    if before is not None and _size(before) == _size(report):
        return True
    since = select(MembershipRow).where(
        MembershipRow.job_id == report.job_id,
        MembershipRow.epoch < report.epoch,
        MembershipRow.at >= (math.inf if row.wanted_at is None else row.wanted_at),
    )
    wanted = row.wanted_workers, row.wanted_servers, row.wanted_gpu_type
    return any(_size(each) == wanted for each in session.scalars(since))


def _size(membership: MembershipRecord | MembershipRow) -> Size:
    return len(membership.workers), len(membership.servers), membership.gpu_type


def _is_beginning_open(row: JobRow) -> bool:
    """Whether a script has told too few steps to know whether it began from step 0 or further on (`began_at`)."""
    return asked_by(row.spec).command is not None and (row.profile or {}).get("began_at_step", 0) is None


def _costs(report: MembershipRecord, *, at_most: bool) -> str:
    """`: 12 steps are lost; job-worker-0-0 was lost`, what a change cost and why; empty where nothing is to be said."""
    lost = report.lost_steps
    about = "at least " if report.lost_at_least else "about " * report.tells_some or "at most " * at_most
    said = [f"{about}{lost} steps are lost" if lost > 1 else f"{about}1 step is lost"] if lost else []
    said += [report.message] if report.message else []
    return f": {'; '.join(said)}" if said else ""


def _insert(session: Session, report: MembershipRecord) -> bool:
    values = {
        "job_id": report.job_id,
        "epoch": report.epoch,
        "generation": report.generation,
        "at": report.at,
        "step": report.step,
        "workers": list(report.workers),
        "servers": list(report.servers),
        "n_workers": len(report.workers),
        "cause": report.cause,
        "pause_seconds": report.pause_seconds,
        "pause_parts": None if report.pause_parts is None else dict(report.pause_parts),
        "lost_steps": report.lost_steps,
        "message": report.message,
        "gpu_type": report.gpu_type,
        "global_batch": report.global_batch,
        "ended_at": report.ended_at if report.workers else None,
    }
    statement = insert_for(session, MembershipRow).values(values).on_conflict_do_nothing()
    return session.execute(statement.returning(MembershipRow.epoch)).first() is not None


def _gpu_type(session: Session, row: JobRow, report: MembershipRecord) -> str | None:
    """What the workers were started on: what is wanted may have changed since. A tracked job says it itself."""
    if not report.workers:
        return None
    if row.heard_at is not None:
        return next(iter(asked_by(row.spec).gpu_types), None)
    first = report.workers[0]
    workers = select(TaskRow).where(
        TaskRow.job_id == report.job_id, TaskRow.role == Role.WORKER.value, TaskRow.rank == 0
    )
    return next((task.gpu_type for task in session.scalars(workers) if _name(task) == first), None)


def _name(task: TaskRow) -> str:
    return TaskKey(task.job_id, Role(task.role), task.rank, task.incarnation).name


def _make_current(session: Session, row: JobRow, report: MembershipRecord) -> None:
    row.membership_epoch = report.epoch
    if not _has_lost_its_tasks(row, report.at):
        row.running_workers, row.running_servers = len(report.workers), len(report.servers)
        row.running_gpu_type = report.gpu_type
        row.formed_at = report.at
        if report.workers:
            row.retry_at = None  # the try has begun: nothing is waited for any more
    if not report.lost_steps:
        row.step = max(report.step, row.step)
        return
    # Samples of the new epoch may have come before its report: they are beyond the rollback, and what was told of the
    # steps that are lost holds no more.
    row.step = max(report.step, _newest_step(session, report))
    told = [each for each in newest(session, report.job_id, _OVERTOOK) if each.membership_epoch >= report.epoch]
    told.sort(key=lambda each: each.step, reverse=True)
    row.epoch = told[0].data_epoch if told else None
    row.loss, row.loss_kind = split_float(next((each.loss for each in told if each.loss is not None), None))


def _has_lost_its_tasks(row: JobRow, at: float) -> bool:
    """Whether a membership that began at this time is of tasks that are leaving: the job has ended or waits for a
    retry."""
    # Before its try is due, a report is of tasks that are leaving after the error; after that it is of the job itself.
    is_before_try = row.retry_at is not None and at < row.retry_at
    return JobState(row.state).is_final or (
        is_before_try and row.directive == Directive.PAUSE and not row.wanted_workers
    )


def end_newest(session: Session, job_id: str, now: float) -> None:
    """The job has lost what its newest membership has, unless that has nothing."""
    newest = select(func.max(MembershipRow.epoch)).where(MembershipRow.job_id == job_id).scalar_subquery()
    statement = update(MembershipRow).where(
        MembershipRow.job_id == job_id,
        MembershipRow.epoch == newest,
        MembershipRow.n_workers > 0,
        MembershipRow.ended_at.is_(None),
    )
    session.execute(statement.values(ended_at=now), execution_options={"synchronize_session": False})


_OVERTOOK: Final = 500
"""So many samples are looked at for those that came before the report of their membership."""


def _newest_step(session: Session, report: MembershipRecord) -> int:
    """The highest step among the samples of the reported epoch and later ones; 0 without any."""
    statement = select(func.max(SampleBlockRow.max_step)).where(
        SampleBlockRow.job_id == report.job_id, SampleBlockRow.membership_epoch >= report.epoch
    )
    return session.scalar(statement) or 0


def of_active_jobs(session: Session) -> dict[str, list[MembershipRecord]]:
    """All reported memberships of each active job that has any, oldest first, by job id."""
    records: dict[str, list[MembershipRecord]] = {}
    for row in session.execute(_OF_ACTIVE_JOBS):
        records.setdefault(row.job_id, []).append(record(row))
    return records


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
        ended_at=row.ended_at,
    )
