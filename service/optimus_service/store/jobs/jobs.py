"""Statements about jobs: submission, listing, lifecycle."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Row,
    SelectBase,
    SQLColumnExpression,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    select,
    tuple_,
    union,
    update,
)
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased, undefer

from optimus_contract.job import JobSpec
from optimus_scheduler import lifecycle
from optimus_scheduler.lifecycle import (
    STORY_LENGTH,
    EmitEvent,
    EndRetryWait,
    Event,
    ForgetPromises,
    InvalidTransition,
    JobStatus,
    MarkFinished,
    MarkStarted,
    Reopen,
    ScheduleRetry,
    StoreResult,
)
from optimus_scheduler.model import NOTHING, Allocation, Directive, JobState
from optimus_scheduler.model.format import time_words
from optimus_scheduler.retries import Backoff
from optimus_service.store.database import kept
from optimus_service.store.database.dialects import chunks, insert_for, is_postgresql
from optimus_service.store.database.pages import DEFAULT_PAGE, check_limit, decode_cursor, encode_cursor, make_page
from optimus_service.store.database.subject import Subject
from optimus_service.store.database.tables import (
    JobHistoryRow,
    JobLabelRow,
    JobRow,
    ProjectRow,
    PromiseRow,
    SampleBatchRow,
    UserRow,
    join_float,
    split_float,
)
from optimus_service.store.errors import IdempotencyConflict, JobIdTaken, JobNotFound
from optimus_service.store.jobs import ended
from optimus_service.store.jobs.charging import charge
from optimus_service.store.records import (
    Document,
    JobRecord,
    KeptSubmission,
    NameMatch,
    NewJob,
    Page,
    PromisedDeadline,
    SubmittedJob,
    asked_by,
)
from optimus_service.store.rounds import history

Changes = Mapping[str, tuple[object, object]]
"""Old and new value by field."""
_LAST_CHARACTER = "\U0010ffff"
DEADLINE_PROMISED = "DeadlinePromised"
RETRY_SCHEDULED = "RetryScheduled"
ACTIVE_STATES = tuple(state.value for state in JobState if not state.is_final)
_LARGE = ("wanted_tasks", "network", "planned_rates")
"""Columns that are read only where they are asked for."""
COLUMNS = tuple(column for column in JobRow.__table__.c if column.name not in _LARGE)
"""What `record` is made of. Whoever reads many rows and changes none reads these, without the session: keeping track of
ten thousand objects costs more than reading them."""
STORED = kept.as_stored(COLUMNS)
# Made once: making a statement of SQLAlchemy anew costs more than the database takes to carry it out.
_OF_ID = select(*COLUMNS).where(JobRow.__table__.c.id == bindparam("of"))
_LOCKED = select(JobRow).where(JobRow.id == bindparam("of")).with_for_update(key_share=True)
Place = tuple[SQLColumnExpression[float], SQLColumnExpression[str]]
"""What jobs are listed by: when they were submitted, and their ids."""
_COUNTED_LABELS = 1000
"""Jobs of a label at most that are counted to see which of several labels is the rarest."""
LOOKED_THROUGH = 20_000
"""Jobs whose names one page of a search for a part of a name is made of: that takes some 30 ms."""


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
            if not create_many(session, [new], now):
                return _stored(session, job_id, idempotency_key, request_hash, object_uid), False
            return get(session, job_id), True

    def find_submission(self, idempotency_key: str, request_hash: str) -> JobRecord | None:
        """The job that a request with this key made; None if there was no such request.

        Raises:
            IdempotencyConflict: the key was used with another `request_hash`.
        """
        with self._read() as session:
            return find_submission(session, idempotency_key, request_hash)

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
            return create_many(session, new, now)

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
            row = locked(session, job_id)
            if row.spec != before:
                return False
            asked = asked_by(spec)
            row.spec, row.name = spec, asked.name
            words = "; ".join(f"{field}: {_said(old)} → {_said(new)}" for field, (old, new) in changes.items())
            data = {field: {"from": old, "to": new} for field, (old, new) in changes.items()}
            history.add_event(session, job_id, "JobChanged", f"Its owner changed {words}.", data, now)
            session.execute(delete(JobLabelRow).where(JobLabelRow.job_id == job_id))
            _add_labels(session, {job_id: asked}, row.created_at)
            session.flush()
            return True

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
    ) -> Page[JobRecord]:
        """Jobs that meet all given conditions, newest first; `projects`: jobs of any of these.

        `name_contains` is compared as `name_match` says. A part is looked for in the names of some thousand jobs at a
        time: a page may have fewer than `limit`, or none, and a cursor all the same, with which the search goes on.
        `labels`: all of them, with these values (None: with any). A `cursor` is good for the filters it was made with.

        Raises:
            InvalidCursor: the cursor was not handed out by this method.
        """
        check_limit(limit)
        with self._read() as session:
            if name_contains is not None and name_match == "one":
                name_contains, name_match = _meant(session, name_contains, projects), "id"
            chosen: list[ColumnElement[bool]] = [*in_projects(projects)]
            if states is not None:
                chosen.append(JobRow.state.in_([state.value for state in states]))
            if project is not None:
                chosen.append(JobRow.project == project)
            if owner is not None:
                # Not those of an earlier user of that name; where there is no user now, of whoever had it.
                since = select(UserRow.created_at).where(UserRow.name == owner).scalar_subquery()
                chosen += [JobRow.owner == owner, JobRow.created_at >= func.coalesce(since, 0.0)]
            # Of few jobs, found by their name or as active ones, each is asked for its labels; else a label has its own
            # order.
            by_name = name_contains is not None and name_match != "part"
            is_few = by_name or (states is not None and all(not state.is_final for state in states))
            label = None if is_few or not labels else _rarest(session, labels)
            place: Place = (JobRow.created_at, JobRow.id)
            if label is not None:
                chosen += [JobRow.id == JobLabelRow.job_id, *_is_label(JobLabelRow, label, labels[label])]
                place = (JobLabelRow.created_at, JobLabelRow.job_id)
            for name in labels.keys() - {label}:
                other = aliased(JobLabelRow)
                chosen.append(exists().where(other.job_id == JobRow.id, *_is_label(other, name, labels[name])))
            if cursor is not None:
                chosen.append(tuple_(*place) < tuple_(*decode_cursor("jobs", cursor, (float, str))))
            if name_contains is None:
                return _newest(session, chosen, limit, place)
            name_contains = name_contains.replace("\0", "\ufffd")
            if name_match == "part":
                return _with_part(session, chosen, name_contains, limit, place)
            # In a query of its own: the index of names is read, however few jobs have the name, not all jobs by their
            # age.
            return _newest(session, [*chosen, JobRow.id.in_(_named(session, name_contains, name_match))], limit, place)

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
            stored = select(SampleBatchRow.last_id).where(SampleBatchRow.job_id == JobRow.id).exists()
            known = select(JobHistoryRow.last_id).where(JobHistoryRow.job_id == JobRow.id).exists()
            statement = select(JobRow.id, JobRow.created_at, JobRow.state, stored | known)
            statement = statement.where(JobRow.created_at >= begin, JobRow.created_at < end, *in_projects(projects))
            if project is not None:
                statement = statement.where(JobRow.project == project)
            if after is not None:
                statement = statement.where(tuple_(JobRow.created_at, JobRow.id) > tuple_(after.created_at, after.id))
            rows = session.execute(statement.order_by(JobRow.created_at, JobRow.id).limit(limit))
            return [SubmittedJob(job_id, at, JobState(state), has_samples) for job_id, at, state, has_samples in rows]

    def active(self, projects: Collection[str] | None = None) -> list[JobRecord]:
        """All queued, running and paused jobs (of these projects), oldest first."""
        with self._read() as session:
            statement = select(*STORED).where(JobRow.state.in_(ACTIVE_STATES), *in_projects(projects))
            rows = session.execute(statement.order_by(JobRow.created_at, JobRow.id)).all()
            return records(session, rows, self._kept, are_all=projects is None)

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

    def advance(self, job_id: str, event: Event, now: float) -> JobRecord:
        """Apply `optimus_scheduler.lifecycle.advance` and carry out its effects.

        Persists the status, start and end times, the result and the emitted events. A changed directive is a new
        wanted generation, so that a coordinator that waits for one hears of it at once.

        Raises:
            JobNotFound: there is no such job.
            InvalidTransition: the event has no rule in the job's state; nothing was changed.
        """
        with self._write() as session:
            row = locked(session, job_id)
            advance_row(session, row, event, now, self._backoff)
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
                    advance_row(session, rows[job_id], event, now, self._backoff)
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


def create_many(session: Session, new: Sequence[NewJob], now: float) -> set[str]:
    """See `Jobs.create_many`."""
    statement = insert_for(session, JobRow).on_conflict_do_nothing().returning(JobRow.id)
    asked = {job.id: asked_by(job.spec) for job in new}
    made = set(session.scalars(statement, [_values(job, asked[job.id], now) for job in new]))
    stored = {job.id: asked[job.id] for job in new if job.id in made}
    if stored:
        events = [(job_id, "JobSubmitted", _submitted_words(each)) for job_id, each in stored.items()]
        history.add_events(session, events, now)
        _add_labels(session, stored, now)
    return made


def _values(job: NewJob, asked: JobSpec, now: float) -> dict[str, Any]:
    return {
        "id": job.id,
        "name": asked.name,
        "project": asked.project,
        "owner": job.owner,
        "spec": job.spec,
        "state": (JobState.PAUSED if asked.paused else JobState.QUEUED).value,
        "directive": Directive.RUN.value,
        "created_at": now,
        "idempotency_key": job.idempotency_key,
        "object_uid": job.object_uid,
        "request_hash": job.request_hash,
        "token_nonce": job.token_nonce,
        "heard_at": now if asked.tracked else None,
        "owner_paused_at": now if asked.paused else None,
        "profile": job.profile,
        "version": 1,
    }


def _submitted_words(asked: JobSpec) -> str:
    origin = asked.from_job
    start = "" if origin is None else f" It starts from the last checkpoint of job {origin}."
    start += " It is paused until its owner resumes it." if asked.paused else ""
    return f"The job was submitted.{start}"


def _stored(
    session: Session, job_id: str, idempotency_key: str | None, request_hash: str, object_uid: str | None
) -> JobRecord:
    """The job that stands in the way of a new one."""
    found = None
    if object_uid is not None:
        row = session.scalar(select(JobRow).where(JobRow.object_uid == object_uid))
        found = None if row is None else record(row)
    elif idempotency_key is not None:
        found = find_submission(session, idempotency_key, request_hash)
    if found is None:
        raise JobIdTaken(job_id)
    return found


def find_submission(session: Session, idempotency_key: str, request_hash: str) -> JobRecord | None:
    """See `Jobs.find_submission`."""
    row = session.scalar(select(JobRow).where(JobRow.idempotency_key == idempotency_key))
    if row is not None and row.request_hash != request_hash:
        raise IdempotencyConflict(idempotency_key, row.id)
    return None if row is None else record(row)


def forget_keys(session: Session, user: str) -> None:
    """Free the idempotency keys of a user who is removed: a later one of the same name may choose the same."""
    of_user = JobRow.idempotency_key.startswith(f"{user} ", autoescape=True)
    session.execute(update(JobRow).where(of_user).values(idempotency_key=None))


def by_id(session: Session, job_ids: Collection[str]) -> dict[str, JobRecord]:
    """See `Jobs.by_id`."""
    found: dict[str, JobRecord] = {}
    for chunk in chunks(job_ids):
        found |= {row.id: record(row) for row in session.scalars(select(JobRow).where(JobRow.id.in_(chunk)))}
    return found


def _said(value: object) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _add_labels(session: Session, jobs: Mapping[str, JobSpec], created_at: float) -> None:
    rows = [
        {"job_id": job_id, "name": name, "value": value, "created_at": created_at}
        for job_id, asked in jobs.items()
        for name, value in asked.labels.items()
    ]
    if rows:
        session.execute(insert(JobLabelRow), rows)


def date_labels(session: Session) -> None:
    """Write the moments of labels that a replica of an earlier release stored, which stand last in lists till then."""
    of_job = select(JobRow.created_at).where(JobRow.id == JobLabelRow.job_id).scalar_subquery()
    session.execute(update(JobLabelRow).where(JobLabelRow.created_at == 0.0).values(created_at=of_job))


def get(session: Session, job_id: str) -> JobRecord:
    """See `Jobs.get`."""
    row = session.execute(_OF_ID, {"of": job_id}).one_or_none()
    if row is None:
        raise JobNotFound(job_id)
    return record(row)


def _reported(
    session: Session, column: InstrumentedAttribute[Document | None], job_ids: Collection[str]
) -> dict[str, Document]:
    """What these jobs' tasks have reported of one kind, by job id."""
    found: dict[str, Document] = {}
    for chunk in chunks(job_ids):
        rows = session.execute(select(JobRow.id, column).where(JobRow.id.in_(chunk)))
        found |= {job_id: value for job_id, value in rows if value is not None}
    return found


def locked(session: Session, job_id: str) -> JobRow:
    """The job's row, kept from other writers until the transaction ends. Rows that refer to it can be added meanwhile.

    Raises:
        JobNotFound: there is none.
    """
    row = session.scalar(_LOCKED, {"of": job_id})
    if row is None:
        raise JobNotFound(job_id)
    return row


def locked_together(session: Session, job_ids: Collection[str]) -> dict[str, JobRow]:
    """The same for many jobs, with what they should have, by id. In one order, so that two callers wait for each other.

    Raises:
        JobNotFound: one of them does not exist.
    """
    found: dict[str, JobRow] = {}
    for chunk in chunks(job_ids):
        statement = select(JobRow).where(JobRow.id.in_(chunk)).order_by(JobRow.id)
        statement = statement.options(undefer(JobRow.wanted_tasks)).with_for_update(key_share=True)
        found |= {row.id: row for row in session.scalars(statement)}
    for job_id in job_ids:
        if job_id not in found:
            raise JobNotFound(job_id)
    return found


def _is_label(row: type[JobLabelRow], name: str, value: str | None) -> list[ColumnElement[bool]]:
    return [row.name == name, *(() if value is None else (row.value == value,))]


def _rarest(session: Session, labels: Mapping[str, str | None]) -> str:
    """The label that the fewest jobs have."""
    if len(labels) == 1:
        return next(iter(labels))

    def n_jobs(name: str) -> int:
        some = select(JobLabelRow.job_id).where(*_is_label(JobLabelRow, name, labels[name])).limit(_COUNTED_LABELS)
        return session.scalar(select(func.count()).select_from(some.subquery("looked_at"))) or 0

    return min(sorted(labels), key=n_jobs)


def _newest(session: Session, chosen: Sequence[ColumnElement[bool]], limit: int, place: Place) -> Page[JobRecord]:
    statement = select(JobRow, *place).where(*chosen).order_by(*(part.desc() for part in place))
    rows = session.execute(statement.limit(limit + 1)).all()
    return make_page("jobs", rows, limit, lambda row: (float(row[1]), row[2]), lambda row: record(row[0]))


def _with_part(
    session: Session, chosen: Sequence[ColumnElement[bool]], part: str, limit: int, place: Place
) -> Page[JobRecord]:
    """Those with this in their names among the newest `LOOKED_THROUGH` of the chosen; the next page goes on there."""
    places = select(*place, JobRow.name).where(*chosen).order_by(*(part.desc() for part in place))
    looked_at = places.limit(LOOKED_THROUGH).subquery("looked_at")
    at, id_, name = looked_at.c
    found = [JobRow.id == id_, name.icontains(part, autoescape=True)]
    page_ = _newest(session, found, limit, (at, id_))
    last = None if page_.next_cursor else session.execute(places.offset(LOOKED_THROUGH - 1).limit(1)).first()
    return page_ if last is None else Page(page_.items, encode_cursor("jobs", (float(last[0]), last[1])))


def _meant(session: Session, text: str, projects: Collection[str] | None) -> str:
    """The id of the job (of these projects) that is meant by an id or a name: of several jobs of that name the newest
    that is active, else the newest of all. The text itself where there is none."""
    text = text.replace("\0", "\ufffd")
    is_active = case((JobRow.state.in_(ACTIVE_STATES), 1), else_=0)
    is_id = case((JobRow.id == text, 1), else_=0)
    by_rule = (
        is_id.desc(),
        is_active.desc(),
        JobRow.created_at.desc(),
        JobRow.id.desc(),
    )
    either: SelectBase = union(_named(session, text, "exact"), _named(session, text, "id"))
    named = select(JobRow.id).where(JobRow.id.in_(either), *in_projects(projects))
    found = session.scalar(named.order_by(*by_rule))
    return text if found is None else found


def _named(session: Session, text: str, match: NameMatch) -> SelectBase:
    """The ids of jobs of this name."""
    ids = select(JobRow.id)
    if match == "id":
        return ids.where(JobRow.id == text)
    if match == "exact":
        return ids.where(JobRow.name == text)
    return union(*(ids.where(_begins(session, column, text)) for column in (JobRow.name, JobRow.id)))


def _begins(session: Session, column: InstrumentedAttribute[str], text: str) -> ColumnElement[bool]:
    """So that an index finds it: SQLite's LIKE, which looks away from case, uses none."""
    if is_postgresql(session):
        return column.startswith(text, autoescape=True)
    return (column >= text) & (column < text + _LAST_CHARACTER)


def in_projects(projects: Collection[str] | None) -> tuple[ColumnElement[bool], ...]:
    """The condition that a job is of one of these projects; none for None. Of no project: that nothing meets."""
    return () if projects is None else (JobRow.project.in_(sorted(projects)),)


def records(session: Session, rows: Sequence[kept.AnyRow], known: kept.Kept, *, are_all: bool) -> list[JobRecord]:
    """Active jobs by their rows, which begin with `STORED`. `are_all`: there are no others."""
    dialect = session.get_bind().dialect

    def make(row: kept.AnyRow, before: JobRecord | None) -> JobRecord:
        made = record(kept.read(row, COLUMNS, dialect))
        return made if before is None else made.after(before)

    if are_all:
        known.keep_only({row.id for row in rows})
    return [known.jobs.of(row.id, row[: len(COLUMNS)], row, make, is_kept=are_all) for row in rows]


def promise_deadlines(session: Session, promised: Sequence[PromisedDeadline]) -> None:
    """See `Rounds.put_expected_times`."""
    rows = locked_together(session, [each.job_id for each in promised]) if promised else {}
    for each in promised:
        row = rows[each.job_id]
        if row.state not in ACTIVE_STATES or row.promised_deadline == each.deadline:
            continue
        row.promised_deadline, row.promised_at = each.deadline, each.at
        history.add_event(session, row.id, DEADLINE_PROMISED, each.words, {"deadline": each.deadline}, each.at)


def advance_row(session: Session, row: JobRow, event: lifecycle.Event, now: float, backoff: Backoff) -> None:
    """The same for a row that is locked."""
    before = _status(row)
    try:
        after, effects = lifecycle.advance(before, event)
    except InvalidTransition as refusal:
        story = history.newest_types(session, row.id, STORY_LENGTH)
        raise InvalidTransition(replace(before, story=story), event) from refusal
    row.state, row.directive, row.failure = after.state.value, after.directive.value, after.failure
    row.attempt, row.retries = after.attempt, after.retries
    if after.owner_paused is not before.owner_paused:
        _set_owner_paused(row, after.owner_paused, now)
    row.paused_by = after.paused_by
    for effect in effects:
        _carry_out(session, row, effect, now, backoff)
    if after.state is not before.state:
        ended.note(session, row.project, before.state, after.state)
    has_ended = after.state.is_final and not before.state.is_final
    if has_ended:
        _want_nothing(row, now)
    if has_ended or after.directive is not before.directive:
        row.generation += 1


def _set_owner_paused(row: JobRow, paused: bool, now: float) -> None:
    row.owner_paused_at = now if paused else None
    row.promised_deadline = row.promised_at = None  # the time that a pause takes is its owner's
    if isinstance(row.spec, dict):
        row.spec = {**row.spec, "paused": paused}
    if not paused and row.wanted_at is not None:
        charge(row, now)  # while its owner did not want it to have anything it has not waited


def _status(row: JobRow) -> JobStatus:
    return JobStatus(
        JobState(row.state),
        Directive(row.directive),
        row.failure,
        has_trained=row.first_step is not None,
        attempt=row.attempt,
        retries=row.retries,
        most_retries=asked_by(row.spec).retries,
        owner_paused=row.owner_paused_at is not None,
        paused_by=row.paused_by,
    )


def _carry_out(session: Session, row: JobRow, effect: lifecycle.Effect, now: float, backoff: Backoff) -> None:
    match effect:
        case EmitEvent(type=event_type, message=message):
            history.add_event(session, row.id, event_type, message, {}, now)
        case MarkStarted():
            row.started_at = now if row.started_at is None else row.started_at
        case MarkFinished():
            row.finished_at, row.pruned_at = now, None
        case StoreResult(result=result):
            row.result = _result_document(result)
            if result.step > row.step and result.final_loss is not None:  # its last samples did not come
                row.loss, row.loss_kind = split_float(result.final_loss)
            row.step = max(row.step, result.step)
        case ScheduleRetry():
            _schedule_retry(session, row, effect, now, backoff.seconds(effect.number))
        case Reopen():
            row.finished_at = row.result = row.retry_at = row.last_error = row.formed_at = None
            row.promised_deadline = row.promised_at = None
        case EndRetryWait():
            row.retry_at = None
        case ForgetPromises():
            session.execute(delete(PromiseRow).where(PromiseRow.job_id == row.id))


def _schedule_retry(session: Session, row: JobRow, retry: ScheduleRetry, now: float, seconds: float) -> None:
    row.retry_at, row.last_error, row.formed_at = now + seconds, retry.error, None
    _want_nothing(row, now)
    message = f"Waits {time_words(seconds)} after an error (retry {retry.number} of {retry.most}): {retry.error}"
    data = {"retry": retry.number, "of": retry.most, "retry_at": row.retry_at, "error": retry.error}
    history.add_event(session, row.id, RETRY_SCHEDULED, message, data, now)


def _result_document(result: lifecycle.ResultReported) -> Document:
    return {
        "outcome": result.outcome.value,
        "step": result.step,
        "final_loss": result.final_loss,
        "metrics": dict(result.metrics),
        "error": result.error,
        "checkpoint": result.checkpoint,
        "model": result.model,
    }


def _want_nothing(row: JobRow, now: float) -> None:
    """A job that ended or waits for a retry wants no tasks and has none: those still there are being stopped."""
    charge(row, now)
    row.wanted_workers, row.wanted_servers, row.wanted_gpu_type = NOTHING.workers, NOTHING.servers, NOTHING.gpu_type
    row.running_workers, row.running_servers, row.running_gpu_type = NOTHING.workers, NOTHING.servers, NOTHING.gpu_type
    row.wanted_tasks = []


def record(row: JobRow | Row[Any]) -> JobRecord:
    """The row as a value."""
    return JobRecord(
        id=row.id,
        name=row.name,
        project=row.project,
        spec=row.spec if isinstance(row.spec, dict) else {},
        state=JobState(row.state),
        directive=Directive(row.directive),
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        generation=row.generation,
        wanted=Allocation(row.wanted_workers, row.wanted_servers, row.wanted_gpu_type),
        wanted_at=row.wanted_at,
        wanted_batch=row.wanted_batch,
        membership_epoch=row.membership_epoch,
        running=Allocation(row.running_workers, row.running_servers, row.running_gpu_type),
        step=row.step,
        step_at=row.step_at,
        formed_at=row.formed_at,
        first_step=row.first_step,
        epoch=row.epoch,
        loss=join_float(row.loss, row.loss_kind),
        profile=row.profile,
        planned_rates_version=row.planned_rates_version,
        result=row.result,
        failure=row.failure,
        attempt=row.attempt,
        retries=row.retries,
        retry_at=row.retry_at,
        last_error=row.last_error,
        heard_at=row.heard_at,
        owner_paused_at=row.owner_paused_at,
        paused_by=row.paused_by,
        promised_deadline=row.promised_deadline,
        promised_at=row.promised_at,
        object_uid=row.object_uid,
        owner=row.owner,
        token_nonce=row.token_nonce,
        coordinator_address=row.coordinator_address,
        rescales=row.rescales,
        version=row.version,
    )
