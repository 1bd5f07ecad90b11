"""Everything that the service remembers, by subject.

Each call (`repository.jobs.get(job_id)`) is one transaction: it happened as a whole when it returns, and not at all
when it raises. What belongs together is one transaction as well::

    with repository.write() as tx:
        tx.memberships.report(job_id, report)
        tx.jobs.advance(job_id, event, now)

::

    Repository                      what the API writes: allowed to every replica
    ├── as_leader(fence) ─▶ LeaderRepository    what a round writes: each transaction checks that its token is in force
    └── reading()        ─▶ ReadingRepository   refuses to write: what the parts of a round keep between rounds

A repository has one attribute per subject (`jobs`, `wanted`, `samples`, `leases` ...): a `Subject`, in the module that
has its statements. What joins subjects is here (`observed`).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from optimus_scheduler.retries import Backoff
from optimus_service.store import leases, people, projects
from optimus_service.store.database.dialects import mapped_errors
from optimus_service.store.database.engine import writing
from optimus_service.store.database.kept import Kept
from optimus_service.store.database.pages import DEFAULT_PAGE, MAX_PAGE
from optimus_service.store.errors import DatabaseNotAvailable
from optimus_service.store.events import Events, Rounds
from optimus_service.store.histories import FinishedRuns, Histories
from optimus_service.store.jobs import charging, ended, memberships, tasks, wanted
from optimus_service.store.jobs.jobs import Jobs
from optimus_service.store.jobs.memberships import Memberships
from optimus_service.store.jobs.retention import PRUNE_ROWS, Retention
from optimus_service.store.jobs.sealed_rows import Variables
from optimus_service.store.jobs.shown_predictions import ShownPredictions
from optimus_service.store.jobs.tasks import Tasks
from optimus_service.store.jobs.usage import Usage
from optimus_service.store.jobs.wanted import Wanted
from optimus_service.store.leases import LEADER_LEASE, Leases
from optimus_service.store.nodes import ClosedNodes
from optimus_service.store.people import People
from optimus_service.store.projects import Projects
from optimus_service.store.records import Observed
from optimus_service.store.samples.samples import Samples

__all__ = [
    "DEFAULT_PAGE",
    "LEADER_LEASE",
    "MAX_PAGE",
    "PRUNE_ROWS",
    "LeaderRepository",
    "ReadingRepository",
    "Repository",
]


class ObserveTransaction(Protocol):
    """Is called with each transaction."""

    def __call__(self, kind: str, seconds: float, /, *, failed: bool) -> None: ...


def _ignore_transaction(_kind: str, _seconds: float, /, *, failed: bool) -> None:
    """For a repository that is not observed."""


_TURN_SECONDS = 20.0
"""How long a writer waits for others of this process: each of them may wait for half as long for other processes."""


class OneWriter:
    """Lets one thread at a time write.

    Raises `DatabaseNotAvailable` on entering when the turn of this thread does not come in time: the database is locked
    by another process, and each of the threads before waits for that.
    """

    def __init__(self, seconds: float = _TURN_SECONDS) -> None:
        self._lock, self._seconds = threading.Lock(), seconds

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=self._seconds):
            why = f"writers before this one have waited for the database for more than {self._seconds:.0f} s"
            raise DatabaseNotAvailable(why, "the database is busy")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


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
        self._turn = turn or (OneWriter() if sqlite else nullcontext())

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

    @property
    def jobs(self) -> Jobs:
        """Jobs: submission, listing, lifecycle."""
        return Jobs(self)

    @property
    def variables(self) -> Variables:
        """Variables of stored jobs: how many are sealed, and sealing them anew."""
        return Variables(self)

    @property
    def wanted(self) -> Wanted:
        """What jobs should have."""
        return Wanted(self)

    @property
    def memberships(self) -> Memberships:
        """The memberships that coordinators formed, and so which job had what over time."""
        return Memberships(self)

    @property
    def tasks(self) -> Tasks:
        """Tasks that the service started."""
        return Tasks(self)

    @property
    def shown_predictions(self) -> ShownPredictions:
        """What was predicted of jobs and is judged by their ends."""
        return ShownPredictions(self)

    @property
    def usage(self) -> Usage:
        """What jobs were given."""
        return Usage(self)

    @property
    def retention(self) -> Retention:
        """Deletes what is not needed any more."""
        return Retention(self)

    @property
    def samples(self) -> Samples:
        """Telemetry."""
        return Samples(self)

    @property
    def histories(self) -> Histories:
        """What is known of jobs by their samples, as documents."""
        return Histories(self)

    @property
    def finished_runs(self) -> FinishedRuns:
        """What ended jobs taught."""
        return FinishedRuns(self)

    @property
    def events(self) -> Events:
        """What happened, to jobs and to the cluster."""
        return Events(self)

    @property
    def rounds(self) -> Rounds:
        """Rounds, their decisions, and what is expected of jobs since."""
        return Rounds(self)

    @property
    def projects(self) -> Projects:
        """Projects and their quotas."""
        return Projects(self)

    @property
    def nodes(self) -> ClosedNodes:
        """Nodes that operators closed."""
        return ClosedNodes(self)

    @property
    def people(self) -> People:
        """Users, their tokens, and the record of who did what."""
        return People(self)

    @property
    def leases(self) -> Leases:
        """Leases: who may do what only one process at a time may do."""
        return Leases(self)

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
