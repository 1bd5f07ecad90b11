"""The service's real SQLite database, with faults at its transactions.

A transaction of a fiber that writes lets others run before it begins, before its commit and after it. There its process
may be killed or paused, as armed by a fault. A full disk and a read-only database are SQLite's own errors: the
connections are given a page limit, or told to only query.
"""

from __future__ import annotations

import inspect
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event, exc

from optimus_service.settings import Settings
from optimus_service.store.database import engine as store_engine
from optimus_service.store.repository import ObserveTransaction, Repository
from optimus_world.kernel import Crashed, FiberLock, Kernel, Process

BUSY_SECONDS = 10.0
"""As `optimus_service.store.database.engine` has it for writers of other processes."""
PLACES = {"exits": "/optimus_service/loop/exits.py", "apply": "/optimus_service/loop/apply.py"}
"""Parts of a round by name, and their code: exit notices, and the actions of a plan."""
_JULIAN_DAY_OF_1970 = 2440587.5
_MAX_PAGES = 4_294_967_294


@dataclass
class Armed:
    """What is to happen to a process at one of its next transactions that write."""

    moment: str
    """begin, before (the commit) or after (it, and before its answer)."""
    after_n: int
    """So many such moments pass before."""
    thread: str
    """Whose; empty: anybody's; `round`: the loop's, within a round, or a part of it (`PLACES`)."""
    strike: Callable[[Process], None]


@dataclass
class _Transaction:
    """One that has begun."""

    tables: set[str] = field(default_factory=set)
    """That it writes."""
    holds: bool = False
    """The right to write, which only one transaction has."""


@dataclass
class Database:
    """The file, and what is wrong with it. All replicas share it."""

    kernel: Kernel
    path: Path
    wall: Callable[[], float]
    """The clock of the database's machine, POSIX seconds."""
    is_read_only: bool = False
    is_full: bool = False
    fails_to_commit: int = 0
    """So many of the next commits are rolled back by the disk."""
    loses_answer: int = 0
    """So many of the next commits are done, and their answers lost."""
    armed: dict[str, list[Armed]] = field(default_factory=dict)
    """By the name of the machine."""
    wrote: Callable[[Process | None, str, set[str], sqlite3.Connection], None] = lambda *_: None
    """Is told of each transaction that is about to be committed: process, fiber, tables, its connection."""
    is_in_round: Callable[[Process], bool] = lambda _process: False
    n_commits: int = 0
    written: set[str] = field(default_factory=set)
    """Tables that were written since the simulation last looked."""
    jobs_changed: Callable[[], None] = lambda: None
    """Is called after each commit of the table of jobs."""

    def __post_init__(self) -> None:
        self._writer = FiberLock(self.kernel)
        self._begun: dict[int, _Transaction] = {}
        """By the connection."""
        self._told: dict[int, tuple[bool, bool]] = {}
        """Whether each connection was told to only query, and that there is no room."""

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    @property
    def is_written(self) -> bool:
        """Whether a transaction has the right to write now."""
        holder = self._writer.holder
        return holder is not None and holder.process.is_alive

    def arm(self, machine: str, moment: str, after_n: int, thread: str, strike: Callable[[Process], None]) -> None:
        """Have something happen to the process on this machine."""
        self.armed.setdefault(machine, []).append(Armed(moment, after_n, thread, strike))

    # --- a replica's own access --------------------------------------------------------------------------------------

    def open(
        self, settings: Settings, observe: ObserveTransaction, engines: Any = store_engine, kind: Any = Repository
    ) -> Repository:
        """As a process opens it (`optimus_service.server.Machine.open_repository`), by what its release has."""
        backoff = settings.scheduling.retry_backoff
        opened: Repository = kind(self.engine(settings.url, engines), observe, backoff, FiberLock(self.kernel))
        return opened

    def engine(self, url: str, engines: Any) -> Engine:
        """The service's own engine, watched."""
        engine: Engine = engines.create_engine_from_url(url)
        event.listen(engine, "connect", self._connected)
        event.remove(engine, "begin", engines._begin_sqlite)  # what follows comes before the write lock is taken
        event.listen(engine, "begin", self._begins)
        event.listen(engine, "begin", engines._begin_sqlite)
        event.listen(engine, "before_cursor_execute", self._executes)
        dialect = engine.dialect
        commit, rollback = dialect.do_commit, dialect.do_rollback

        def do_commit(connection: Any) -> None:
            self._commits(connection, commit, rollback)

        def do_rollback(connection: Any) -> None:
            rollback(connection)
            self._over(connection)

        dialect.do_commit = do_commit  # type: ignore[method-assign,assignment]
        dialect.do_rollback = do_rollback  # type: ignore[method-assign,assignment]
        return engine

    def _connected(self, connection: Any, _entry: Any) -> None:
        connection.create_function("julianday", 1, lambda _now: self.wall() / 86400.0 + _JULIAN_DAY_OF_1970)
        self._told.pop(id(connection), None)
        connection.execute("PRAGMA busy_timeout = 0")  # others are waited for in virtual time: see `_begins`

    def _begins(self, connection: Any) -> None:
        self.kernel.check_alive()
        raw = connection.connection.dbapi_connection
        mine = self._begun[id(raw)] = _Transaction()
        writes = "IMMEDIATE" in connection.get_execution_options().get("optimus_sqlite_begin", "")
        if self._told.get(id(raw), (False, False)) != (self.is_read_only, self.is_full):
            self._told[id(raw)] = self.is_read_only, self.is_full
            raw.execute(f"PRAGMA query_only = {int(self.is_read_only)}")
            raw.execute(f"PRAGMA max_page_count = {1 if self.is_full else _MAX_PAGES}")
        if not writes or self.kernel.current() is None:
            return
        self.kernel.sleep(0.001)
        self._strike("begin")
        if not self._writer.acquire(BUSY_SECONDS):
            locked = _sqlite_error("database is locked", sqlite3.SQLITE_BUSY)
            raise exc.OperationalError("BEGIN IMMEDIATE", None, locked)  # as it comes from the statement itself
        mine.holds = True

    def _commits(self, connection: Any, commit: Callable[[Any], None], rollback: Callable[[Any], None]) -> None:
        fiber = self.kernel.current()
        begun = self._begun.get(id(connection.dbapi_connection))
        tables = set() if begun is None else begun.tables
        if not tables or fiber is None:
            commit(connection)
            self._over(connection)
            return
        self._strike("before")
        self.kernel.check_alive()
        if self.fails_to_commit > 0:
            self.fails_to_commit -= 1
            rollback(connection)
            self._over(connection)
            raise _sqlite_error("disk I/O error", sqlite3.SQLITE_IOERR)
        self.wrote(fiber.process, fiber.name, tables, connection.dbapi_connection)
        commit(connection)
        self.n_commits += 1
        self.written |= tables
        if "jobs" in tables:
            self.jobs_changed()
        self._over(connection)
        self._strike("after")
        self.kernel.check_alive()
        if self.loses_answer > 0:
            self.loses_answer -= 1
            raise _sqlite_error("disk I/O error", sqlite3.SQLITE_IOERR)

    def _over(self, connection: Any) -> None:
        begun = self._begun.pop(id(connection.dbapi_connection), None)
        if begun is not None and begun.holds:
            self._writer.release()

    def _executes(self, connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        words = statement.split(None, 3)
        begun = self._begun.get(id(connection.connection.dbapi_connection))
        if begun is not None and words and words[0] in ("INSERT", "UPDATE", "DELETE"):
            table = words[1] if words[0] == "UPDATE" else words[2]
            begun.tables.add(table.strip('"'))

    def _strike(self, moment: str) -> None:
        fiber = self.kernel.current()
        if fiber is None:
            return
        waiting = self.armed.get(fiber.process.name.partition("#")[0], [])
        if not waiting:
            return
        in_round = fiber.name == "loop" and self.is_in_round(fiber.process)
        threads = ("", fiber.name, "round", *_places()) if in_round else ("", fiber.name)
        for armed in [each for each in waiting if each.moment == moment and each.thread in threads]:
            armed.after_n -= 1
            if armed.after_n < 0:
                waiting.remove(armed)
                armed.strike(fiber.process)
                if not fiber.process.is_alive:
                    raise Crashed
                if fiber.process.paused_until > self.kernel.now:
                    self.kernel.sleep(0.0)

    # --- the simulation's own look -----------------------------------------------------------------------------------

    def look(self) -> sqlite3.Connection:
        """A connection that only reads, and knows no faults."""
        connection = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)
        connection.row_factory = sqlite3.Row
        return connection


def _places() -> list[str]:
    """The parts of a round in which the caller is."""
    found, frame = set[str](), inspect.currentframe()
    while frame is not None:
        found.add(frame.f_code.co_filename)
        frame = frame.f_back
    return [name for name, file in PLACES.items() if any(each.endswith(file) for each in found)]


def _sqlite_error(message: str, code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(message)
    error.sqlite_errorcode = code
    return error


_templates: dict[int, Path] = {}


def new_file(directory: Path, scratch: Path, engines: Any = store_engine) -> Path:
    """A database at the newest revision of a release. Its migrations run once in a process; later files are copies."""
    template = _templates.get(id(engines))
    if template is None or not template.exists():
        template = _templates[id(engines)] = scratch / f"template-{len(_templates)}.db"
        engines.upgrade(f"sqlite:///{template}")
    path = directory / "optimus.db"
    shutil.copy(template, path)
    return path
