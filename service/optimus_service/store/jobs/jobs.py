"""Statements about jobs: submission, listing, lifecycle, and what their tasks have reported of them.

Statements of more than a few lines are in modules of their own: `submission`, `listing`, `transitions`; `rows` has what
all of them use.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from sqlalchemy import and_, func, not_, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from optimus_scheduler.lifecycle import Event, InvalidTransition
from optimus_scheduler.model import JobState
from optimus_service.store.database.dialects import chunks
from optimus_service.store.database.pages import DEFAULT_PAGE, check_limit
from optimus_service.store.database.subject import Subject
from optimus_service.store.database.tables import JobRow, ProjectRow, UserRow
from optimus_service.store.jobs import ended, listing, submission, transitions
from optimus_service.store.jobs.rows import (
    ACTIVE_STATES,
    STORED,
    by_id,
    get,
    in_projects,
    locked,
    locked_together,
    record,
    records,
)
from optimus_service.store.jobs.submission import Changes
from optimus_service.store.records import Document, JobRecord, KeptSubmission, NameMatch, NewJob, Page, SubmittedJob


class Jobs(Subject):
    """Jobs: submission, listing, lifecycle."""

    def create(
        self,
        job_id: str,
        spec: Document,
        token_nonce: str,
        idempotency_key: str | None,
        request_hash: str,
        now: float,
        object_uid: str | None = None,
        owner: str | None = None,
        profile: Document | None = None,
    ) -> tuple[JobRecord, bool]:
        """Store a submitted job (queued) and the event `JobSubmitted`.

        `spec` is a `JobSpec` as a document; its `name` and `project` are what `page` filters by. `profile`: a
        `JobProfile` as a document, of what is known before its tasks report one.

        Returns:
            The job, and whether this call made it: with a known idempotency key and an equal `request_hash` the job
            of the first request comes back, however many requests race. So it does with a known `object_uid`, of the
            Kubernetes object that is the job's origin; such a job has no idempotency key.

        Raises:
            IdempotencyConflict: the key was used with another `request_hash`.
            JobIdTaken: another job has this id.
        """
        with self._write() as session:
            new = NewJob(job_id, spec, token_nonce, idempotency_key, request_hash, object_uid, owner, profile)
            if not submission.create_many(session, [new], now):
                return submission.stored(session, job_id, idempotency_key, request_hash, object_uid), False
            return get(session, job_id), True

    def find_submission(self, idempotency_key: str, request_hash: str) -> JobRecord | None:
        """The job that a request with this key made; None if there was no such request.

        Raises:
            IdempotencyConflict: the key was used with another `request_hash`.
        """
        with self._read() as session:
            return submission.find_submission(session, idempotency_key, request_hash)

    def find_submissions(self, keys: Collection[str]) -> dict[str, KeptSubmission]:
        """Which of these idempotency keys made a job, and by which request."""
        with self._read() as session:
            found: dict[str, KeptSubmission] = {}
            for chunk in chunks(keys):
                statement = select(JobRow.idempotency_key, JobRow.id, JobRow.name, JobRow.request_hash)
                rows = session.execute(statement.where(JobRow.idempotency_key.in_(chunk)))
                found |= {key: KeptSubmission(*rest) for key, *rest in rows if key is not None}
            return found

    def create_many(self, new: Sequence[NewJob], now: float) -> set[str]:
        """Store many submitted jobs as `create` stores one; the ids of those that were stored.

        Of the others the id or the idempotency key is taken.
        """
        with self._write() as session:
            return submission.create_many(session, new, now)

    def of_objects(self, uids: Collection[str]) -> dict[str, JobRecord]:
        """Active jobs that have a Kubernetes object for an origin, and all jobs of these objects, by its uid."""
        with self._read() as session:
            of_some_object = JobRow.object_uid.is_not(None)
            rows = session.scalars(select(JobRow).where(of_some_object, JobRow.state.in_(ACTIVE_STATES))).all()
            found = {row.object_uid: record(row) for row in rows}
            for chunk in chunks(set(uids) - set(found)):
                ended = session.scalars(select(JobRow).where(JobRow.object_uid.in_(chunk))).all()
                found |= {row.object_uid: record(row) for row in ended}
            return {uid: job for uid, job in found.items() if uid is not None}

    def by_id(self, job_ids: Collection[str]) -> dict[str, JobRecord]:
        """Those of these jobs that there are."""
        with self._read() as session:
            return by_id(session, job_ids)

    def set_spec(self, job_id: str, before: Document, spec: Document, changes: Changes, now: float) -> bool:
        """Replace what an active job's owner asked for: the next round decides by it. An event says what changed.

        `before`: what `spec` was made from. `changes`: old and new value by field.

        Returns:
            False when the stored specification is not `before` any more: nothing was written.

        Raises:
            JobNotFound: there is none.
        """
        with self._write() as session:
            return submission.set_spec(session, job_id, before, spec, changes, now)

    def get(self, job_id: str) -> JobRecord:
        """One job, in any state.

        Raises:
            JobNotFound: there is none.
        """
        with self._read() as session:
            return get(session, job_id)

    def page(
        self,
        states: Collection[JobState] | None = None,
        project: str | None = None,
        name_contains: str | None = None,
        cursor: str | None = None,
        limit: int = DEFAULT_PAGE,
        name_match: NameMatch = "part",
        labels: Mapping[str, str | None] = MappingProxyType({}),
        owner: str | None = None,
        projects: Collection[str] | None = None,
        *,
        starting: bool = False,
    ) -> Page[JobRecord]:
        """Jobs that meet all given conditions, newest first; `projects`: jobs of any of these. `starting`: beside those
        in `states` those that have been given tasks that are on their way.

        `name_contains` is compared as `name_match` says. A part is looked for in the names of some thousand jobs at a
        time: a page may have fewer than `limit`, or none, and a cursor all the same, with which the search goes on.
        `labels`: all of them, with these values (None: with any). A `cursor` is good for the filters it was made with.

        Raises:
            InvalidCursor: the cursor was not handed out by this method.
        """
        check_limit(limit)
        with self._read() as session:
            return listing.page(
                session,
                states,
                project,
                name_contains,
                cursor,
                limit,
                name_match,
                labels,
                owner,
                projects,
                starting=starting,
            )

    def submitted(
        self,
        begin: float,
        end: float,
        project: str | None,
        after: SubmittedJob | None,
        limit: int,
        projects: Collection[str] | None = None,
    ) -> list[SubmittedJob]:
        """Jobs submitted from `begin` until `end` (POSIX seconds), of one project or (None) of all, oldest first.

        `projects`: of these only. `after`: only those after this one, which an earlier call returned.
        """
        with self._read() as session:
            return listing.submitted(session, begin, end, project, after, limit, projects)

    def active(self, projects: Collection[str] | None = None) -> list[JobRecord]:
        """All queued, running and paused jobs (of these projects), oldest first."""
        with self._read() as session:
            statement = select(*STORED).where(JobRow.state.in_(ACTIVE_STATES), *in_projects(projects))
            rows = session.execute(statement.order_by(JobRow.created_at, JobRow.id)).all()
            return records(session, rows, self._kept, are_all=projects is None)

    def begun(self) -> list[JobRecord]:
        """All active jobs that have had tasks or were paused, oldest first."""
        has_begun = or_(JobRow.state != JobState.QUEUED.value, JobRow.started_at.is_not(None))
        with self._read() as session:
            statement = select(*STORED).where(JobRow.state.in_(ACTIVE_STATES), has_begun)
            rows = session.execute(statement.order_by(JobRow.created_at, JobRow.id)).all()
            return records(session, rows, self._kept, are_all=False)

    def without_step_since(self, since: float) -> list[JobRecord]:
        """Running jobs whose newest step came before that (POSIX seconds), any order."""
        with self._read() as session:
            chosen = JobRow.state == JobState.RUNNING.value, JobRow.step_at < since
            return records(session, session.execute(select(*STORED).where(*chosen)).all(), self._kept, are_all=False)

    def not_as_wanted(self, since: float) -> list[str]:
        """The ids of running jobs that train with other numbers of tasks than they are to have, or have made no step
        since then (POSIX seconds)."""
        is_complete = and_(
            JobRow.running_workers == JobRow.wanted_workers, JobRow.running_servers == JobRow.wanted_servers
        )
        makes_steps = and_(JobRow.step_at.is_not(None), JobRow.step_at >= since)
        chosen = JobRow.state == JobState.RUNNING.value, not_(and_(is_complete, makes_steps))
        with self._read() as session:
            return list(session.scalars(select(JobRow.id).where(*chosen)))

    def newest(self, most: int) -> dict[str, JobState]:
        """The jobs on the cluster that were submitted last, oldest first: their states, by id."""
        with self._read() as session:
            statement = select(JobRow.id, JobRow.state).where(JobRow.heard_at.is_(None))
            rows = session.execute(statement.order_by(JobRow.created_at.desc(), JobRow.id.desc()).limit(most)).all()
            return {job_id: JobState(state) for job_id, state in reversed(rows)}

    def lengths_of_ended(self, most: int) -> tuple[float, ...]:
        """Seconds from the first tasks to the end of the jobs on the cluster that ended last, the newest last."""
        with self._read() as session:
            chosen = JobRow.finished_at.is_not(None), JobRow.started_at.is_not(None), JobRow.heard_at.is_(None)
            statement = select(JobRow.started_at, JobRow.finished_at).where(*chosen)
            rows = session.execute(statement.order_by(JobRow.finished_at.desc(), JobRow.id.desc()).limit(most)).all()
            return tuple(max((ended or 0.0) - (began or 0.0), 0.0) for began, ended in reversed(rows))

    def count_by_state(self, projects: Collection[str] | None = None) -> dict[JobState, int]:
        """The number of jobs (of these projects) in each state, zeros included."""
        with self._read() as session:
            active_ones = select(JobRow.state, func.count()).where(
                JobRow.state.in_(ACTIVE_STATES), *in_projects(projects)
            )
            counts = dict(session.execute(active_ones.group_by(JobRow.state)).all()) | ended.counted(session, projects)
            return {state: counts.get(state.value, 0) for state in JobState}

    def count_waiting(self, owner: str | None = None, project: str | None = None) -> int:
        """The number of queued and paused jobs of an owner, or of a project.

        In a transaction that writes, others who count the same wait until it ends (for a project: one with a row).
        """
        with self._write() as session:
            holder: type[UserRow | ProjectRow] = ProjectRow if owner is None else UserRow
            session.get(holder, project if owner is None else owner, with_for_update={"key_share": True})
            is_one = JobRow.project == project if owner is None else JobRow.owner == owner
            waiting = (JobState.QUEUED.value, JobState.PAUSED.value)
            return session.scalar(select(func.count()).where(is_one, JobRow.state.in_(waiting))) or 0

    def advance(self, job_id: str, event: Event, now: float, *, told_at: float | None = None) -> JobRecord:
        """Apply `optimus_scheduler.lifecycle.advance` and carry out its effects.

        `told_at`: when this was told, where that is after it happened, as the service was away: a retry waits from
        then on.

        Persists the status, start and end times, the result and the emitted events. A changed directive is a new
        wanted generation, so that a coordinator that waits for one hears of it at once.

        Raises:
            JobNotFound: there is no such job.
            InvalidTransition: the event has no rule in the job's state; nothing was changed.
        """
        with self._write() as session:
            row = locked(session, job_id)
            transitions.advance_row(session, row, event, now, self._backoff, told_at)
            session.flush()
            return record(row)

    def advance_together(self, events: Mapping[str, Event], now: float) -> dict[str, JobRecord | InvalidTransition]:
        """Apply one event to each of many jobs, by id: what `advance` returns or, instead of raising, why not.

        Raises:
            JobNotFound: one of them does not exist; nothing was changed.
        """
        with self._write() as session:
            found: dict[str, JobRecord | InvalidTransition] = {}
            rows = locked_together(session, events)
            for job_id, event in events.items():
                try:
                    transitions.advance_row(session, rows[job_id], event, now, self._backoff)
                except InvalidTransition as refusal:
                    found[job_id] = refusal
            session.flush()
            return {job_id: record(row) for job_id, row in rows.items()} | found

    def put_profile(self, job_id: str, profile: Document) -> None:
        """Store what the job's tasks know about it (`JobProfile`), replacing the former profile.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._write() as session:
            locked(session, job_id).profile = profile

    def put_network(self, job_id: str, network: Document) -> None:
        """Store the layers of what a job trains (`Network`), apart from the rest of the job.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._write() as session:
            locked(session, job_id).network = network

    def network_of(self, job_id: str) -> Document | None:
        """The layers of what a job trains, if its tasks have reported them; None for an unknown job."""
        with self._read() as session:
            return session.scalar(select(JobRow.network).where(JobRow.id == job_id))

    def networks_of(self, job_ids: Collection[str]) -> dict[str, Document]:
        """The layers of what these jobs train, by job id; jobs that have not reported them are left out."""
        with self._read() as session:
            return _reported(session, JobRow.network, job_ids)

    def put_planned_rates(self, job_id: str, rates: Document) -> None:
        """Store the learning rates that a job is to have (`PlannedRates`), in place of those reported before.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._write() as session:
            row = locked(session, job_id)
            row.planned_rates, row.planned_rates_version = rates, row.planned_rates_version + 1

    def planned_rates_of(self, job_ids: Collection[str]) -> dict[str, Document]:
        """The learning rates that these jobs are to have, by job id; jobs that have not reported them are left out."""
        with self._read() as session:
            return _reported(session, JobRow.planned_rates, job_ids)

    def coordinator_addresses(self) -> set[str]:
        """Where the coordinators of active jobs listen."""
        with self._read() as session:
            address = JobRow.coordinator_address
            return set(session.scalars(select(address).where(JobRow.state.in_(ACTIVE_STATES), address.is_not(None))))


def _reported(
    session: Session, column: InstrumentedAttribute[Document | None], job_ids: Collection[str]
) -> dict[str, Document]:
    """What these jobs' tasks have reported of one kind, by job id."""
    found: dict[str, Document] = {}
    for chunk in chunks(job_ids):
        rows = session.execute(select(JobRow.id, column).where(JobRow.id.in_(chunk)))
        found |= {job_id: value for job_id, value in rows if value is not None}
    return found
