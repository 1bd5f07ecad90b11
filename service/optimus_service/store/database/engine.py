"""Opens the database, SQLite (WAL) or PostgreSQL by URL, and brings it to the newest revision.

What survives what: a transaction whose method returned survives the death of the service (kill -9) on both databases.
A power cut or a crash of the operating system loses nothing on PostgreSQL. On SQLite it may lose the last
transactions before it, without damage to the file: `synchronous=NORMAL` writes to the log at each commit and has the
disk confirm at each checkpoint only. Telemetry makes many small commits, which full synchronisation would slow
to the pace of the disk while every other writer waits; who needs more than that runs PostgreSQL.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Engine, event, exc, make_url
from sqlalchemy.pool import ConnectionPoolEntry

import optimus_service
from optimus_service.store.database.dialects import BoundedConnection, connect_to_postgresql, mapped_errors
from optimus_service.store.database.sealing import Keys, give_keys
from optimus_service.store.database.sqlite_file import WatchedFile
from optimus_service.store.errors import InvalidDatabaseUrl, NewerDatabase

_BUSY_SECONDS = 10
"""How long a SQLite writer waits for another process to end its transaction; ours take milliseconds."""
_LOCKED_SECONDS = 0.01
"""Between two attempts where SQLite does not wait by itself."""
_POOL_SECONDS = 10
"""How long a call waits for a free connection before it answers that the database is not available."""
_CONNECT_SECONDS = 5
"""How long connecting to PostgreSQL may take; a reachable one answers in milliseconds."""
_POSTGRESQL_OPTIONS = "-c statement_timeout=30s -c lock_timeout=10s -c idle_in_transaction_session_timeout=60s"
"""Bounds for everything: no query of ours takes seconds, no transaction of ours waits for anything but the database."""
_ANSWER_SECONDS = 40.0
"""How long one operation waits for an answer of PostgreSQL: longer than its own limits, whose messages say more."""
_SQLITE_BEGIN = "optimus_sqlite_begin"


def parse_url(url: str) -> URL:
    """The URL with the driver that we use.

    Raises:
        InvalidDatabaseUrl: malformed, an unsupported database, or a SQLite database without a file.
    """
    try:
        parsed = make_url(url)
    except exc.ArgumentError as error:
        raise InvalidDatabaseUrl(
            "the database URL cannot be parsed; expected sqlite:///PATH or postgresql://…"
        ) from error
    if parsed.drivername in ("postgresql", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise InvalidDatabaseUrl(f"{parsed.drivername} is not supported; use sqlite:///PATH or postgresql://…")
    if parsed.database in (None, "", ":memory:"):
        raise InvalidDatabaseUrl("SQLite needs a file (sqlite:///PATH): the service must find its jobs after a restart")
    return parsed


def create_engine_from_url(url: str, answer_seconds: float = _ANSWER_SECONDS, keys: Keys | None = None) -> Engine:
    """A pool of connections; nothing is connected yet.

    `answer_seconds`: how long one operation waits for an answer of PostgreSQL before the database is not available.
    `keys`: what variables of jobs are sealed and opened with; None: they are stored in clear.

    SQLite: WAL, foreign keys on, writers begin with BEGIN IMMEDIATE (see `writing`).

    Raises:
        InvalidDatabaseUrl: see `parse_url`.
    """
    parsed = parse_url(url)
    is_sqlite = parsed.get_backend_name() == "sqlite"
    engine = _sqlite_engine(parsed) if is_sqlite else _postgresql_engine(parsed, answer_seconds)
    give_keys(engine.dialect, keys)
    return engine


def writing(engine: Engine) -> Engine:
    """The same pool for transactions that write.

    On SQLite they take the write lock at their begin. A transaction that reads first and asks for the lock later
    would fail as soon as another one wrote in between, with no way out but to start again.
    """
    return engine.execution_options(**{_SQLITE_BEGIN: "BEGIN IMMEDIATE"})


def _sqlite_engine(url: URL) -> Engine:
    # The API's thread pool (40) and the loop fit in; an idle connection is only an open file.
    engine = sqlalchemy.create_engine(
        url,
        pool_size=10,
        max_overflow=40,
        pool_use_lifo=True,  # each keeps 2 MB of pages: few of them are warm, and of few
        pool_timeout=_POOL_SECONDS,
        hide_parameters=True,  # of statements in errors: users' secrets (`environment`) are among them
        connect_args={"timeout": _BUSY_SECONDS},
    )
    event.listen(engine, "connect", _prepare_sqlite)
    assert url.database is not None, "`parse_url` refuses others"
    WatchedFile(Path(url.database).absolute()).watch(engine)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _entry: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # sqlite3 must not begin transactions by itself: `_begin_sqlite` does
    _write_ahead(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")


def _write_ahead(connection: Any) -> None:
    """Take a new file to WAL. While another process does the same, SQLite says at once that the file is locked."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_LOCKED_SECONDS)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    statement = connection.get_execution_options().get(_SQLITE_BEGIN, "BEGIN")
    raw: Any = connection.connection.driver_connection
    try:
        # Past SQLAlchemy, which takes several times as long for it as SQLite does: each transaction begins here.
        raw.execute(statement)
    except sqlite3.Error as error:
        raise exc.DBAPIError.instance(statement, None, error, sqlite3.Error) from error


def _postgresql_engine(url: URL, answer_seconds: float) -> Engine:
    arguments: dict[str, Any] = {"connect_timeout": _CONNECT_SECONDS, "application_name": "optimus"}
    if "options" not in url.query:
        arguments["options"] = _POSTGRESQL_OPTIONS
    arguments = {name: value for name, value in arguments.items() if name not in url.query}
    engine = sqlalchemy.create_engine(
        url,
        pool_size=10,
        max_overflow=10,
        pool_timeout=_POOL_SECONDS,
        pool_pre_ping=True,
        hide_parameters=True,
        connect_args=arguments,
    )

    def connect(_dialect: Any, _entry: ConnectionPoolEntry, given: Any, options: dict[str, Any]) -> BoundedConnection:
        return connect_to_postgresql(answer_seconds, *given, **options)

    event.listen(engine, "do_connect", connect)
    return engine


# --- revisions --------------------------------------------------------------------------------------------------------


def upgrade(url: str) -> None:
    """Bring the database to the newest revision: all of it or, on an error, nothing. Again is harmless.

    Replicas that start together take turns.

    Raises:
        InvalidDatabaseUrl: the URL cannot be used.
        DatabaseNotAvailable: the database cannot be reached, or its tables are in use for too long.
        NewerDatabase: a newer version of Optimus has upgraded it.
    """
    _on_database(url, "head")


def downgrade(url: str, revision: str) -> None:
    """Take the database back to `revision` ("base": no tables). Data in what is dropped are lost.

    Raises:
        InvalidDatabaseUrl, DatabaseNotAvailable, NewerDatabase: as in `upgrade`.
    """
    _on_database(url, revision, down=True)


def current_revision(url: str) -> str | None:
    """The revision of the database; None while it has no tables of ours.

    Raises:
        InvalidDatabaseUrl, DatabaseNotAvailable: as in `upgrade`.
    """
    engine = create_engine_from_url(url)
    try:
        with mapped_errors(), engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    finally:
        engine.dispose()


def head_revision() -> str:
    """The newest revision that this installation knows."""
    head = ScriptDirectory.from_config(alembic_config()).get_current_head()
    assert head is not None, "there is at least one migration"
    return head


def alembic_config(engine: Engine | None = None) -> Config:
    """Alembic's configuration; `migrations/env.py` runs in a transaction of `engine`."""
    config = Config()
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["engine"] = engine
    return config


def check_revision(found: str | None) -> None:
    """Return if this version knows the revision `found` of a database.

    Raises:
        NewerDatabase: it does not.
    """
    known = {script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()}
    if found is not None and found not in known:
        raise NewerDatabase(found, head_revision())


def _on_database(url: str, revision: str, *, down: bool = False) -> None:
    check_revision(current_revision(url))
    engine = create_engine_from_url(url)
    try:
        with mapped_errors():
            (command.downgrade if down else command.upgrade)(alembic_config(writing(engine)), revision)
    finally:
        engine.dispose()


def _scripts() -> Path:
    """In a wheel the scripts are inside the package, in a checkout at the top level."""
    package = Path(optimus_service.__file__).parent
    inside = package / "migrations"
    return inside if inside.is_dir() else package.parents[1] / "migrations"
