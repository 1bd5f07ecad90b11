"""Everything that the service remembers, behind one class.

Each method is one transaction: it happened as a whole when the method returns, and not at all when it raises. What
belongs together is one transaction as well::

    with repository.write() as tx:
        tx.report_membership(job_id, report)
        tx.advance_job(job_id, event, now)

::

    Repository                      what the API writes: allowed to every replica
    ├── as_leader(fence) ─▶ LeaderRepository    what a round writes: each transaction checks that its token is in force
    └── reading()        ─▶ ReadingRepository   refuses to write: what the parts of a round keep between rounds

The statements themselves are in the modules by subject (`jobs`, `wanted`, `memberships`, `samples`, `tasks`, `history`,
`leases`, `retention`); each function there takes the session of the transaction it is part of.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MappingProxyType
from typing import Protocol

from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from optimus_scheduler.lifecycle import Event, InvalidTransition
from optimus_scheduler.model import JobState, Quota, SetWanted, TaskKey
from optimus_scheduler.retries import Backoff
from optimus_service.store import leases, nodes, people, projects
from optimus_service.store.database.dialects import mapped_errors
from optimus_service.store.database.engine import writing
from optimus_service.store.database.kept import Kept
from optimus_service.store.errors import DatabaseNotAvailable, InvalidValue, JobNotFound
from optimus_service.store.jobs import (
    awaited,
    charging,
    ended,
    jobs,
    memberships,
    promises,
    retention,
    sealed_rows,
    tasks,
    usage,
    wanted,
)
from optimus_service.store.jobs.jobs import Changes
from optimus_service.store.jobs.sealed_rows import Stored as StoredVariables
from optimus_service.store.leases import LEADER_LEASE
from optimus_service.store.records import (
    AddedSamples,
    AuditRecord,
    DecisionRecord,
    Document,
    EventRecord,
    ExpectedTimes,
    FinishedRunRecord,
    JobRecord,
    KeptHistory,
    KeptPromise,
    KeptSubmission,
    LeaseRecord,
    MembershipRecord,
    NameMatch,
    NewJob,
    Observed,
    Page,
    PostedSamples,
    ProjectRecord,
    PromisedDeadline,
    PromiseRecord,
    Pruned,
    PrunedRounds,
    RoundRecord,
    SampleBatch,
    SampleRecord,
    SubmittedJob,
    TaskRecord,
    TokenRecord,
    UsageRecord,
    UserRecord,
    WantedRecord,
)
from optimus_service.store.rounds import expected_times, history
from optimus_service.store.samples import histories, samples

__all__ = [
    "DEFAULT_PAGE",
    "LEADER_LEASE",
    "MAX_PAGE",
    "PRUNE_ROWS",
    "LeaderRepository",
    "ReadingRepository",
    "Repository",
]

DEFAULT_PAGE = 50
MAX_PAGE = 1000
"""Items of one page at most: bounds the memory of an answer."""
PRUNE_ROWS = 500
"""Rows that one `prune` deletes at most: bounds how long it keeps writers waiting."""


class ObserveTransaction(Protocol):
    """Is called with each transaction."""

    def __call__(self, kind: str, seconds: float, /, *, failed: bool) -> None: ...


def _ignore_transaction(_kind: str, _seconds: float, /, *, failed: bool) -> None:
    """For a repository that is not observed."""


class Repository:
    """The database, in the words of the domain. Safe to use from many threads at once.

    Every method may raise `DatabaseNotAvailable`, and every writing one `InvalidValue`; others are named. Methods that
    write about a job raise `JobNotFound` if there is none.
    """

    def __init__(
        self,
        engine: Engine,
        observe: ObserveTransaction = _ignore_transaction,
        backoff: Backoff | None = None,
        turn: AbstractContextManager[object] | None = None,
        kept: Kept | None = None,
    ) -> None:
        """`engine` comes from `create_engine_from_url`, its database was upgraded to the newest revision.

        `observe` is called with every transaction: `read` or `write`, its seconds, whether the database failed.
        `backoff`: how long jobs wait after errors of their code. `turn`: held while a transaction writes; None: a lock
        of this process with SQLite, nothing with PostgreSQL. `kept`: what another one of the same database keeps of
        rows, to share it.
        """
        self._engine = engine
        self._observe = observe
        self._backoff = backoff or Backoff()
        self._writing = writing(engine)
        self._answered_at = -math.inf
        self._kept = kept or Kept()
        # SQLite has one writer at a time and lets the others poll for their turn; threads of this process queue here.
        sqlite = engine.dialect.name == "sqlite"
        self._turn = turn or (threading.Lock() if sqlite else nullcontext())

    @contextmanager
    def _read(self) -> Iterator[Session]:
        with self._timed("read"), mapped_errors(), Session(self._engine) as session, session.begin():
            yield session

    @contextmanager
    def _write(self) -> Iterator[Session]:
        with self._timed("write"), mapped_errors(), self._turn, Session(self._writing) as session, session.begin():
            yield session
            charging.settle(session)
            ended.settle(session)

    @contextmanager
    def write(self) -> Iterator[Repository]:
        """One transaction: what is done with the yielded repository happens as a whole, or not at all when it raises.

        A call that fails inside is not observed: end the transaction with it. Other processes wait for its end, so
        do nothing slow in it.
        """
        with self._write() as session:
            yield _Transaction(self, session)

    @contextmanager
    def _timed(self, kind: str) -> Iterator[None]:
        started, failed = time.monotonic(), False
        try:
            yield
            self._answered_at = time.monotonic()
        except DatabaseNotAvailable:
            failed = True
            raise
        finally:
            self._observe(kind, time.monotonic() - started, failed=failed)

    def as_leader(self, fence: int) -> LeaderRepository:
        """The same database for what only the leader may write; `fence` is the token of its `LEADER_LEASE`."""
        return LeaderRepository(self, fence)

    def reading(self) -> ReadingRepository:
        """The same database for those who must not write."""
        return ReadingRepository(self)

    def ping(self) -> None:
        """Return if the database answers and has our tables."""
        with self._read() as session:
            session.execute(text("SELECT 1 FROM jobs LIMIT 1"))

    def revision(self) -> str | None:
        """The revision of the database; None while it has no tables of ours."""
        with self._read() as session:
            return MigrationContext.configure(session.connection()).get_current_revision()

    def answered_since(self, moment: float) -> bool:
        """Whether a transaction has succeeded since `moment` (of the monotonic clock)."""
        return self._answered_at >= moment

    def close(self) -> None:
        """Close the pooled connections. A later call opens new ones."""
        self._engine.dispose()

    # --- jobs --------------------------------------------------------------------------------------------------------

    def create_job(
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

        `spec` is a `JobSpec` as a document; its `name` and `project` are what `list_jobs` filters by. `profile`: a
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
            return jobs.create(
                session, job_id, spec, token_nonce, idempotency_key, request_hash, now, object_uid, owner, profile
            )

    def find_submission(self, idempotency_key: str, request_hash: str) -> JobRecord | None:
        """The job that a request with this key made; None if there was no such request.

        Raises:
            IdempotencyConflict: the key was used with another `request_hash`.
        """
        with self._read() as session:
            return jobs.find_submission(session, idempotency_key, request_hash)

    def find_submissions(self, keys: Collection[str]) -> dict[str, KeptSubmission]:
        """Which of these idempotency keys made a job, and by which request."""
        with self._read() as session:
            return jobs.find_submissions(session, keys)

    def create_jobs(self, new: Sequence[NewJob], now: float) -> set[str]:
        """Store many submitted jobs as `create_job` stores one; the ids of those that were stored.

        Of the others the id or the idempotency key is taken.
        """
        with self._write() as session:
            return jobs.create_many(session, new, now)

    def jobs_of_objects(self, uids: Collection[str]) -> dict[str, JobRecord]:
        """Active jobs that have a Kubernetes object for an origin, and all jobs of these objects, by its uid."""
        with self._read() as session:
            return jobs.of_objects(session, uids)

    def jobs_by_id(self, job_ids: Collection[str]) -> dict[str, JobRecord]:
        """Those of these jobs that there are."""
        with self._read() as session:
            return jobs.by_id(session, job_ids)

    def set_spec(self, job_id: str, before: Document, spec: Document, changes: Changes, now: float) -> bool:
        """Replace what an active job's owner asked for: the next round decides by it. An event says what changed.

        `before`: what `spec` was made from. `changes`: old and new value by field.

        Returns:
            False when the stored specification is not `before` any more: nothing was written.

        Raises:
            JobNotFound: there is none.
        """
        with self._write() as session:
            return jobs.set_spec(session, job_id, before, spec, changes, now)

    def delete_job(self, job_id: str) -> None:
        """Delete an ended job with all that is kept of it: samples, events, decisions, what it taught.

        In some transactions, so that others need not wait long.

        Raises:
            JobNotFound: there is none.
            JobIsActive: it has not ended.
        """
        done = False
        while not done:
            with self._write() as session:
                done = retention.remove_job(session, job_id, PRUNE_ROWS)

    def get_job(self, job_id: str) -> JobRecord:
        """One job, in any state.

        Raises:
            JobNotFound: there is none.
        """
        with self._read() as session:
            return jobs.get(session, job_id)

    def list_jobs(
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
        _check_limit(limit)
        with self._read() as session:
            return jobs.page(
                session, states, project, name_contains, cursor, limit, name_match, labels, owner, projects
            )

    def jobs_submitted(
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
            return jobs.submitted(session, begin, end, project, after, limit, projects)

    def active_jobs(self, projects: Collection[str] | None = None) -> list[JobRecord]:
        """All queued, running and paused jobs (of these projects), oldest first."""
        with self._read() as session:
            return jobs.active(session, projects, self._kept)

    def count_jobs_by_state(self, projects: Collection[str] | None = None) -> dict[JobState, int]:
        """The number of jobs (of these projects) in each state, zeros included."""
        with self._read() as session:
            return jobs.count_by_state(session, projects)

    def count_waiting(self, owner: str | None = None, project: str | None = None) -> int:
        """The number of queued and paused jobs of an owner, or of a project.

        In a transaction that writes, others who count the same wait until it ends (for a project: one with a row).
        """
        with self._write() as session:
            return jobs.count_waiting(session, owner, project)

    def interruptions(self, since: float, now: float) -> tuple[int, float]:
        """How often jobs that were submitted after `since` lost a task or went on after an error, and the seconds from
        their starts to their ends, or to `now`; all times are POSIX seconds."""
        with self._read() as session:
            return memberships.interruptions(session, since, now)

    def advance_job(self, job_id: str, event: Event, now: float) -> JobRecord:
        """Apply `optimus_scheduler.lifecycle.advance` and carry out its effects.

        Persists the status, start and end times, the result and the emitted events. A changed directive is a new
        wanted generation, so that a coordinator that waits for one hears of it at once.

        Raises:
            JobNotFound: there is no such job.
            InvalidTransition: the event has no rule in the job's state; nothing was changed.
        """
        with self._write() as session:
            return jobs.advance(session, job_id, event, now, self._backoff)

    def advance_jobs(self, events: Mapping[str, Event], now: float) -> dict[str, JobRecord | InvalidTransition]:
        """Apply one event to each of many jobs, by id: what `advance_job` returns or, instead of raising, why not.

        Raises:
            JobNotFound: one of them does not exist; nothing was changed.
        """
        with self._write() as session:
            return jobs.advance_together(session, events, now, self._backoff)

    def put_profile(self, job_id: str, profile: Document) -> None:
        """Store what the job's tasks know about it (`JobProfile`), replacing the former profile.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._write() as session:
            jobs.locked(session, job_id).profile = profile

    def put_network(self, job_id: str, network: Document) -> None:
        """Store the layers of what a job trains (`Network`), apart from the rest of the job.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._write() as session:
            jobs.locked(session, job_id).network = network

    def network_of(self, job_id: str) -> Document | None:
        """The layers of what a job trains, if its tasks have reported them; None for an unknown job."""
        with self._read() as session:
            return jobs.network_of(session, job_id)

    def networks_of(self, job_ids: Collection[str]) -> dict[str, Document]:
        """The layers of what these jobs train, by job id; jobs that have not reported them are left out."""
        with self._read() as session:
            return jobs.networks_of(session, job_ids)

    def put_planned_rates(self, job_id: str, rates: Document) -> None:
        """Store the learning rates that a job is to have (`PlannedRates`), in place of those reported before.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._write() as session:
            jobs.put_planned_rates(session, job_id, rates)

    def planned_rates_of(self, job_ids: Collection[str]) -> dict[str, Document]:
        """The learning rates that these jobs are to have, by job id; jobs that have not reported them are left out."""
        with self._read() as session:
            return jobs.planned_rates_of(session, job_ids)

    def coordinator_addresses(self) -> set[str]:
        """Where the coordinators of active jobs listen."""
        with self._read() as session:
            return jobs.coordinator_addresses(session)

    # --- variables of jobs -------------------------------------------------------------------------------------------

    def stored_variables(self) -> StoredVariables:
        """How many jobs have variables, sealed and in clear."""
        with self._read() as session:
            return sealed_rows.stored(session)

    def rewrite_variables(self, *, clear: bool = False) -> int:
        """Seal all variables with the engine's first key; or store all that can be opened in clear.

        In some transactions, so that others need not wait long. Again is harmless.

        Returns:
            The number of jobs whose row was changed.
        """
        after: str | None = ""
        changed = 0
        while after is not None:
            with self._write() as session:
                after, n = sealed_rows.rewrite(session, after, clear=clear)
            changed += n
        return changed

    # --- what a job should have --------------------------------------------------------------------------------------

    def set_wanted(self, changes: Sequence[SetWanted], now: float) -> list[tuple[str, int]]:
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
            return wanted.put(session, changes, now, self._backoff)

    def get_wanted(self, job_id: str) -> WantedRecord:
        """What a job should have; generation 0 and nothing before the first `set_wanted`.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._read() as session:
            return wanted.get(session, job_id)

    def wanted_of_active_jobs(self) -> dict[str, WantedRecord]:
        """What each active job should have, by job id."""
        with self._read() as session:
            return wanted.of_active_jobs(session)

    def observed(self) -> Observed:
        """What a round begins with: one transaction of five statements, however many jobs there are."""
        with self._read() as session:
            active, wanted_by_job, with_network = wanted.active_with_wanted(session, self._kept)
            return Observed(
                jobs=tuple(active),
                wanted=wanted_by_job,
                memberships=memberships.of_active_jobs(session),
                with_network=with_network,
                tasks=tuple(tasks.newest(session)),
                projects=tuple(projects.of_rounds(session)),
                members=tuple(people.member_limits(session)),
            )

    def generations(self, job_ids: Collection[str]) -> dict[str, int]:
        """The wanted generation of each of these jobs that there is, by job id. Cheap: for long polls."""
        with self._read() as session:
            return wanted.generations(session, job_ids)

    # --- what a job has ----------------------------------------------------------------------------------------------

    def report_membership(self, job_id: str, report: MembershipRecord) -> bool:
        """Store a membership epoch that a coordinator formed, with the event `MembershipChanged`. Again is harmless.

        Sets the job's `membership_epoch` and `running` (unless a newer epoch was reported) and counts a `rescale`. With
        `lost_steps` the job's `step` goes back to where the new membership began. State and start time are
        `advance_job`'s: call it (`MembershipFormed` or `Paused`) after this, whatever this returns.

        Returns:
            Whether this epoch had not been reported before.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._write() as session:
            return memberships.report(session, job_id, report)

    def heard(self, job_id: str, now: float) -> None:
        """Note that a tracked job still reports; of any other job nothing is noted."""
        with self._write() as session:
            memberships.heard(session, job_id, now)

    def memberships(self, job_id: str) -> list[MembershipRecord]:
        """All reported memberships of a job by epoch, oldest first; empty for an unknown job."""
        with self._read() as session:
            return memberships.of_job(session, job_id)

    def memberships_of(self, job_ids: Collection[str]) -> dict[str, list[MembershipRecord]]:
        """All reported memberships of each of these jobs that has any, oldest first, by job id."""
        with self._read() as session:
            return memberships.of_jobs(session, job_ids)

    def jobs_since(
        self, since: float, limit: int, projects: Collection[str] | None = None
    ) -> tuple[list[JobRecord], dict[str, list[MembershipRecord]]]:
        """Jobs (of these projects) that are active or ended after `since`; their memberships, oldest first, by job id.

        At most `limit` jobs: active ones first, then those that ended last.
        """
        with self._read() as session:
            return memberships.jobs_since(session, since, limit, projects)

    # --- telemetry ---------------------------------------------------------------------------------------------------

    def add_posts(self, posts: Sequence[PostedSamples]) -> list[AddedSamples | JobNotFound | InvalidValue]:
        """Count the samples that are new and belong to the histories of their jobs, in one transaction; of each post,
        the others:

        * `duplicate`: (membership_epoch, rank, sequence) was counted before, or stands earlier in this post.
        * `unknown_membership`: the epoch is above the newest reported one + 1 (one ahead may come before its report).
        * `old_membership`: the epoch has ended and the sample reaches beyond the step at which a later epoch began
          (these steps were rolled back), or the rank is not in that membership.

        Updates each job's `step` (never decreases here), `first_step`, `epoch` and `loss`. Acknowledged samples survive
        a killed process; see `store.database.engine` for what a power cut may lose. A post that cannot be stored
        keeps no other one from it. When this raises, nothing was stored of any.
        """
        with self._write() as session:
            return samples.add(session, posts)

    def samples_after_each(self, after_ids: Mapping[str, int], limit: int) -> dict[str, list[SampleBatch]]:
        """For each of these jobs the samples with an id above the given one, by id: `limit` or fewer for each, and what
        came in one post with the last of them.

        Reading on from the last id misses none. One statement, however many jobs there are. Jobs without such samples
        are left out.
        """
        with self._read() as session:
            return samples.after_each(session, after_ids, limit)

    def put_histories(self, kept: Mapping[str, KeptHistory]) -> None:
        """Keep what is known of these jobs by their samples, in the place of what was kept before.

        Samples that it was made of are deleted, but for the newest 2,000; a sample that is posted again when over 8,192
        later ones of its rank and epoch were counted is a duplicate. Jobs that are not there any more are left out.
        """
        with self._write() as session:
            histories.put(session, kept)

    def histories_of(self, job_ids: Collection[str]) -> dict[str, KeptHistory]:
        """What is kept of these jobs' samples; jobs of which nothing is are left out."""
        with self._read() as session:
            return histories.of_jobs(session, job_ids)

    def histories_reach(self, job_ids: Collection[str]) -> dict[str, int]:
        """The newest sample in what is kept of each of these jobs; one statement, however many there are."""
        with self._read() as session:
            return histories.reach(session, job_ids)

    def newest_samples_of_each(self, job_ids: Collection[str], limit: int) -> dict[str, list[SampleRecord]]:
        """The last samples of each of these jobs, newest first, `limit` at most for each; one statement."""
        with self._read() as session:
            return samples.newest_of_each(session, job_ids, limit)

    def newest_samples(self, job_id: str, limit: int) -> list[SampleRecord]:
        """The last samples of a job that were counted, newest first."""
        with self._read() as session:
            return samples.newest(session, job_id, limit)

    # --- what ended jobs taught --------------------------------------------------------------------------------------

    def add_finished_run(self, job_id: str, document: Document) -> None:
        """Keep what an ended job taught; nothing if that is there already."""
        with self._write() as session:
            histories.add_run(session, job_id, document)

    def finished_runs_after(self, after_id: int, newest: int) -> list[FinishedRunRecord]:
        """The `newest` of those with an id above `after_id`, by id."""
        with self._read() as session:
            return histories.runs_after(session, after_id, newest)

    def jobs_without_finished_run(self, since: float, limit: int) -> list[JobRecord]:
        """Jobs that succeeded at `since` or later and of which nothing is kept yet, the first to end first."""
        with self._read() as session:
            return histories.without_run(session, since, limit)

    # --- what was predicted of jobs ----------------------------------------------------------------------------------

    def promised_parts(self, job_ids: Collection[str]) -> dict[str, set[str]]:
        """The parts of their lives at which something was predicted of these jobs; jobs without any are left out."""
        with self._read() as session:
            return promises.parts_of(session, job_ids)

    def promises(self, job_id: str) -> list[PromiseRecord]:
        """What was predicted of one job at the parts of its life, in no order."""
        with self._read() as session:
            return promises.of_job(session, job_id)

    def kept_promises(self, since: float, newest: int, projects: Collection[str] | None = None) -> list[KeptPromise]:
        """The `newest` promises of jobs (of these projects; None: of all) that succeeded at `since` or later, the first
        to end first."""
        with self._read() as session:
            return promises.kept(session, since, newest, projects)

    # --- tasks -------------------------------------------------------------------------------------------------------

    def tasks(
        self, active_only: bool = True, job_id: str | None = None, job_ids: Collection[str] | None = None
    ) -> list[TaskRecord]:
        """Tasks by key: those that have not exited, or all of them; of one job, of some, or of all."""
        with self._read() as session:
            return tasks.select_tasks(session, active_only, job_id, job_ids)

    def worker_spans(self, job_ids: Collection[str]) -> dict[str, list[tuple[float, float | None]]]:
        """When each worker of these jobs was started, and had exited; jobs that never had any are left out."""
        with self._read() as session:
            return tasks.worker_spans(session, job_ids)

    def put_tasks(
        self, starts: Sequence[tuple[TaskKey, str, str | None]], addresses: Mapping[str, str], now: float
    ) -> None:
        """Remember tasks that are about to be started: key, node, and what the GPUs are.

        A task of a key that is known already stays as it is. `addresses`: where coordinators listen from now on, by
        job id.

        Raises:
            JobNotFound: one of the jobs does not exist; nothing was stored.
        """
        with self._write() as session:
            tasks.put_all(session, starts, addresses, now)

    def mark_unwanted(self, keys: Iterable[TaskKey], now: float) -> None:
        """These tasks left the wanted set; those that had left it before keep their time. Unknown keys are ignored."""
        with self._write() as session:
            tasks.mark_unwanted(session, keys, now)

    def mark_wanted(self, keys: Iterable[TaskKey]) -> None:
        """These tasks are wanted (again). Unknown keys are ignored."""
        with self._write() as session:
            tasks.mark_wanted(session, keys)

    def mark_exited(self, key: TaskKey, exit_code: int | None, now: float) -> None:
        """The task ended; the first report counts. An unknown key is ignored."""
        with self._write() as session:
            tasks.mark_exited(session, key, exit_code, now)

    def put_usage(self, job_id: str, usages: Mapping[str, Mapping[str, float]], now: float) -> None:
        """What these tasks of the job take of their machines now, by name. Names of no task alive are ignored.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._write() as session:
            tasks.put_usage(session, job_id, usages, now)

    # --- events, rounds, decisions -----------------------------------------------------------------------------------

    def add_event(self, job_id: str | None, event_type: str, message: str, data: Document, now: float) -> None:
        """Add to the list of what happened to a job, or (None) to the cluster.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._write() as session:
            if job_id is not None:
                jobs.locked(session, job_id)  # events of one job become visible in the order of their ids
            history.add_event(session, job_id, event_type, message, data, now)

    def events(
        self, job_id: str | None = None, cursor: str | None = None, limit: int = DEFAULT_PAGE
    ) -> Page[EventRecord]:
        """What happened to a job (None: to anything), newest first; empty for an unknown job.

        Raises:
            InvalidCursor: the cursor was not handed out by this method.
        """
        _check_limit(limit)
        with self._read() as session:
            return history.events(session, job_id, cursor, limit)

    def latest_event_types(self, event_types: Collection[str], job_ids: Collection[str]) -> dict[str, str]:
        """Which of these events has happened to each of these jobs last; jobs with none of them are left out."""
        with self._read() as session:
            return history.latest_event_types(session, event_types, job_ids)

    def add_round(
        self, record: RoundRecord, decisions: Sequence[DecisionRecord], promised: Sequence[PromiseRecord] = ()
    ) -> int:
        """Store a round, its decisions (their `id` and `round_id` are given here), and promises that are to be judged.

        Returns:
            The round's id.
        """
        with self._write() as session:
            promises.add(session, promised)
            return history.add_round(session, record, decisions)

    def put_expected_times(
        self,
        times: Sequence[ExpectedTimes],
        promised: Sequence[PromiseRecord] = (),
        deadlines: Sequence[PromisedDeadline] = (),
    ) -> None:
        """Store when jobs are expected to start and to end, in the place of all that was expected before.

        What is said of jobs that are not there any more is left out. `promised`: to be judged by the ends. `deadlines`:
        those that are promised now; jobs that have ended since are left out.
        """
        with self._write() as session:
            known = expected_times.replace_all(session, times)
            promises.add(session, [each for each in promised if each.job_id in known])
            jobs.promise_deadlines(session, [each for each in deadlines if each.job_id in known])

    def rounds(self, cursor: str | None = None, limit: int = DEFAULT_PAGE) -> Page[RoundRecord]:
        """Rounds, newest first.

        Raises:
            InvalidCursor: the cursor was not handed out by this method.
        """
        _check_limit(limit)
        with self._read() as session:
            return history.rounds(session, cursor, limit)

    def decisions(self, job_id: str, cursor: str | None = None, limit: int = DEFAULT_PAGE) -> Page[DecisionRecord]:
        """What was decided for a job, newest first; empty for an unknown job.

        Raises:
            InvalidCursor: the cursor was not handed out by this method.
        """
        _check_limit(limit)
        with self._read() as session:
            return history.decisions(session, job_id, cursor, limit)

    def latest_decisions(self, job_ids: Collection[str]) -> Mapping[str, DecisionRecord]:
        """What was decided last for each of these jobs, by job id; jobs without a decision are left out."""
        with self._read() as session:
            decisions = history.latest_decisions(session, job_ids, self._kept)
            return awaited.with_awaited(session, decisions, self._kept)

    # --- projects ----------------------------------------------------------------------------------------------------

    def projects(self) -> list[ProjectRecord]:
        """All projects that have a quota, by name."""
        with self._read() as session:
            return projects.every(session)

    def project(self, name: str) -> ProjectRecord:
        """One project's quota.

        Raises:
            ProjectNotFound: it has none.
        """
        with self._read() as session:
            return projects.get(session, name)

    def put_project(self, quota: Quota, now: float, limits: Mapping[str, object] = MappingProxyType({})) -> bool:
        """Give a project this quota and these limits in the place of any that it had; whether it had none."""
        with self._write() as session:
            return projects.put(session, quota, now, limits)

    def delete_project(self, name: str) -> None:
        """Take a project's quota away. Its jobs stay.

        Raises:
            ProjectNotFound: it has none.
        """
        with self._write() as session:
            projects.remove(session, name)

    def usage(self, month: str, now: float, projects: Collection[str] | None = None) -> list[UsageRecord]:
        """What jobs (of these projects) were given in a month such as 2026-11 (UTC) until now, by project, owner and
        GPU type. Cheap however many jobs have ended: it is added up when what jobs are given changes."""
        with self._read() as session:
            return usage.of_month(session, month, now, projects)

    # --- nodes -------------------------------------------------------------------------------------------------------

    def closed_nodes(self) -> dict[str, bool]:
        """Nodes that operators closed for new tasks; by name whether what is there is to move."""
        with self._read() as session:
            return nodes.closed(session)

    def close_node(self, name: str, *, emptied: bool) -> None:
        """Close a node; `emptied`: let its tasks move elsewhere."""
        with self._write() as session:
            nodes.close(session, name, emptied=emptied)

    def open_node(self, name: str) -> None:
        """Open a node again; nothing if it is open."""
        with self._write() as session:
            nodes.reopen(session, name)

    # --- who may do what, and who did --------------------------------------------------------------------------------

    def users(self) -> list[UserRecord]:
        """All users, by name."""
        with self._read() as session:
            return people.users(session)

    def user(self, name: str) -> UserRecord:
        """One user.

        Raises:
            UserNotFound: there is none.
        """
        with self._read() as session:
            return people.user(session, name)

    def create_user(self, record: UserRecord) -> None:
        """Store a new user.

        Raises:
            UserExists: one has this name.
        """
        with self._write() as session:
            people.create_user(session, record)

    def change_user(
        self,
        name: str,
        kind: str,
        role: str | None,
        projects: Mapping[str, str],
        limits: Mapping[str, object] = MappingProxyType({}),
    ) -> UserRecord:
        """Replace what a user may do and take. All of the user's tokens follow at once.

        Raises:
            UserNotFound: there is none.
        """
        with self._write() as session:
            return people.change_user(session, name, kind, role, projects, limits)

    def sign_in(self, wanted: UserRecord, token: TokenRecord, entry: AuditRecord) -> UserRecord:
        """Let somebody in whom the OpenID provider vouches for: the user of that subject gets these rights and this
        token, and the record says so, all or nothing. Whoever is new becomes a user of this name.

        Raises:
            UserExists: new, and somebody else has the name.
        """
        with self._write() as session:
            return people.sign_in(session, wanted, token, entry)

    def remove_user(self, name: str) -> None:
        """Delete a user with all tokens and idempotency keys. Jobs keep the name of their owner.

        Raises:
            UserNotFound: there is none.
        """
        with self._write() as session:
            people.remove_user(session, name)

    def tokens(self, of_user: str | None = None) -> list[TokenRecord]:
        """The tokens of a user, or (None) of all, the newest first; expired and revoked ones, too."""
        with self._read() as session:
            return people.tokens(session, of_user)

    def count_good_tokens(self, of_user: str, now: float) -> int:
        """The number of a user's tokens that are neither revoked nor expired."""
        with self._read() as session:
            return people.count_good_tokens(session, of_user, now)

    def token(self, token_id: str) -> TokenRecord:
        """One token.

        Raises:
            TokenNotFound: there is none.
        """
        with self._read() as session:
            return people.token(session, token_id)

    def token_with_user(self, token_id: str) -> tuple[TokenRecord, UserRecord] | None:
        """A token, good or not, with whose it is; None: there is none."""
        with self._read() as session:
            return people.token_with_user(session, token_id)

    def create_token(self, record: TokenRecord) -> None:
        """Store a new token.

        Raises:
            UserNotFound: its user is not there.
        """
        with self._write() as session:
            people.create_token(session, record)

    def revoke_token(self, token_id: str, now: float) -> None:
        """From now on the token is not good any more; one that was revoked before keeps its time."""
        with self._write() as session:
            people.revoke_token(session, token_id, now)

    def note_use(self, token_id: str, now: float) -> None:
        """The token was used now."""
        with self._write() as session:
            people.note_use(session, token_id, now)

    def audit(
        self, who: str | None = None, target: str | None = None, cursor: str | None = None, limit: int = DEFAULT_PAGE
    ) -> Page[AuditRecord]:
        """Who did what, newest first: one caller's, or what was done to one job, project, user or token.

        Raises:
            InvalidCursor: the cursor was not handed out by this method.
        """
        _check_limit(limit)
        with self._read() as session:
            return people.audit(session, who, target, cursor, limit)

    # --- who leads ---------------------------------------------------------------------------------------------------

    def acquire_lease(self, name: str, holder: str, ttl_seconds: float) -> LeaseRecord | None:
        """Take the lease if it is free or over, renew it if `holder` has it. None: somebody else has it.

        The token grows with each new holder; `as_leader` checks the one of `LEADER_LEASE`. `holder` must be unique
        among processes and their restarts. The lease ends by the database's clock, whatever those of the replicas say;
        should that one be set back, no lease lasts longer than `LONGEST_LEASE_SECONDS`.
        """
        with self._write() as session:
            return leases.acquire(session, name, holder, ttl_seconds)

    def current_lease(self, name: str) -> LeaseRecord | None:
        """Who had the lease last, whether or not it is over; None if nobody ever had it."""
        with self._read() as session:
            return leases.current(session, name)

    def release_lease(self, name: str, holder: str) -> None:
        """Give the lease up, so that another one need not wait until it is over. Nothing if `holder` has it not."""
        with self._write() as session:
            leases.release(session, name, holder)

    # --- retention ---------------------------------------------------------------------------------------------------

    def prune(self, now: float, keep_seconds: float, limit: int = PRUNE_ROWS) -> Pruned:
        """Delete samples, decisions, predictions and finished runs of jobs that ended over `keep_seconds` ago.

        Jobs, memberships and events stay. At most `limit` rows go in one call: call again until `total` is 0.
        """
        with self._write() as session:
            return retention.prune(session, now - keep_seconds, now, limit)

    def mend_after_upgrade(self) -> None:
        """Write what a replica of an earlier release left out: counts of ended jobs, moments of labels."""
        with self._write() as session:
            ended.recount(session)
        with self._write() as session:
            jobs.date_labels(session)

    def prune_rounds(self, now: float, keep_seconds: float, after: float, limit: int = PRUNE_ROWS) -> PrunedRounds:
        """Delete rounds of over `keep_seconds` ago that no decision belongs to: of `limit` rounds from `after` on
        (POSIX seconds), the oldest first. `next_after` is where to go on."""
        with self._write() as session:
            return retention.prune_rounds(session, now - keep_seconds, after, limit)


class LeaderRepository(Repository):
    """The database for the holder of one fencing token: every writing method may raise `StaleLeader`.

    Each transaction that writes first makes sure that the token is in force, and keeps others from taking the lease
    until it ends. So a leader that was paused anywhere, and replaced meanwhile, writes nothing when it goes on.
    """

    def __init__(self, repository: Repository, fence: int) -> None:
        super().__init__(
            repository._engine, repository._observe, repository._backoff, repository._turn, repository._kept
        )
        self._fence = fence

    @contextmanager
    def _write(self) -> Iterator[Session]:
        with super()._write() as session:
            leases.check_fence(session, self._fence)
            yield session

    def check_fence(self) -> None:
        """Return if the token is in force, and stays so for a second: for what is done to the cluster within it.

        Raises:
            StaleLeader: the lease was given to another process since, or may be any moment.
        """
        with self._read() as session:
            leases.check_lasts(session, self._fence)


class _Transaction(Repository):
    """The database inside of one transaction, which is not its own to end."""

    def __init__(self, repository: Repository, session: Session) -> None:
        super().__init__(repository._engine, repository._observe, repository._backoff)
        self._session = session

    @contextmanager
    def _read(self) -> Iterator[Session]:
        yield self._session

    @contextmanager
    def _write(self) -> Iterator[Session]:
        yield self._session
        self._session.flush()  # what comes next in the transaction finds it


class ReadingRepository(Repository):
    """The database for those who must not write: a writing method raises `RuntimeError`, which is a mistake in code."""

    def __init__(self, repository: Repository) -> None:
        super().__init__(repository._engine, repository._observe, repository._backoff, kept=repository._kept)

    @contextmanager
    def _write(self) -> Iterator[Session]:
        raise RuntimeError("this view of the database is for reading; what a round writes goes through `as_leader`")
        yield  # pragma: no cover - makes it a generator


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_PAGE:
        raise ValueError(f"limit must be from 1 to {MAX_PAGE}, not {limit}")
