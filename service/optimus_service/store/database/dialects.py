"""What differs between SQLite and PostgreSQL: statements, limits, clocks, connections, and the errors of drivers."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast

import psycopg
from psycopg import errors as postgresql_errors
from psycopg.abc import PQGen
from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Double,
    SelectBase,
    TableValuedAlias,
    Text,
    bindparam,
    exc,
    extract,
    func,
    select,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from optimus_service.store.database.tables import Base, Json
from optimus_service.store.errors import DatabaseNotAvailable, InvalidValue

_KEYS_AT_ONCE = 500
"""SQLite allows so many parameters in one statement, and more."""
_JULIAN_DAY_OF_1970 = 2440587.5
_SECONDS_A_DAY = 86400.0


def insert_for(session: Session, row: type[Base]) -> postgresql.Insert:
    """An INSERT with `on_conflict_do_nothing` and `on_conflict_do_update` for the session's database.

    Both dialects' statements have the methods and arguments that we use; the type says PostgreSQL for either.
    """
    return insert_for_dialect(row, is_postgresql(session))


def insert_for_dialect(row: type[Base], for_postgresql: bool) -> postgresql.Insert:
    """The same for statements that are made once for all sessions."""
    # Into the table: as an INSERT of objects a statement is looked through by the session each time.
    table = Base.metadata.tables[row.__tablename__]
    return postgresql.insert(table) if for_postgresql else cast(postgresql.Insert, sqlite.insert(table))


def is_postgresql(session: Session) -> bool:
    """Whether the session's database is PostgreSQL; else it is SQLite."""
    return session.get_bind().dialect.name == "postgresql"


def present_moment(for_postgresql: bool) -> ColumnElement[float]:
    """The database's clock, POSIX seconds: the same one for all replicas."""
    if for_postgresql:
        return sql_cast(extract("epoch", func.clock_timestamp()), Double)
    return (func.julianday("now") - _JULIAN_DAY_OF_1970) * _SECONDS_A_DAY


def chunks(keys: Collection[str]) -> Iterator[list[str]]:
    """All of them, as many at a time as fit one statement."""
    ordered = sorted(keys)
    for first in range(0, len(ordered), _KEYS_AT_ONCE):
        yield ordered[first : first + _KEYS_AT_ONCE]


def set_of(session: Session, keys: Collection[str]) -> SelectBase:
    """Any number of keys as one parameter, for `in_`: there is a limit to how many a statement has."""
    if is_postgresql(session):
        return select(func.unnest(sql_cast(list(keys), ARRAY(Text))))
    return select(func.json_each(json.dumps(list(keys))).table_valued("value").c.value)


def keys_as_table(for_postgresql: bool, name: str) -> TableValuedAlias:
    """The same for statements that are made once: the parameter `name`, a list, as a table with the column `value`."""
    if for_postgresql:
        return func.unnest(bindparam(name, type_=ARRAY(Text))).table_valued("value", name="known").render_derived()
    return func.json_each(bindparam(name, type_=Json())).table_valued("value", name="known")


# --- connections to PostgreSQL that never wait for ever --------------------------------------------------------------


_KEEPALIVES: Final = {
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Parameters of libpq. A lost peer is noticed after a minute on an idle connection (in seconds), and 30 s after data
was sent to it (in milliseconds). The defaults of the kernel are two hours and a quarter of an hour."""
_CHECK_SECONDS: Final = 0.5
"""How often a wait looks at the time."""

_Result = TypeVar("_Result")


class NoAnswer(psycopg.OperationalError):
    """The server did not answer in time; the connection was closed."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection on which no single operation (a statement, a commit) waits longer than `answer_seconds`.

    The server ends long statements itself (`statement_timeout`), and the kernel connections to machines that are gone.
    This is for what is left: a machine that answers, on which PostgreSQL does not.
    """

    answer_seconds: float = 0.0

    def wait(self, gen: PQGen[_Result], interval: float = _CHECK_SECONDS, *rest: Any, **others: Any) -> _Result:
        """Run one operation.

        Raises:
            NoAnswer: it took longer than `answer_seconds`.
        """
        bounded = self._bounded(gen) if self.answer_seconds > 0 else gen
        return super().wait(bounded, interval, *rest, **others)

    def _bounded(self, gen: PQGen[_Result]) -> Generator[Any, Any, _Result]:
        deadline = time.monotonic() + self.answer_seconds
        try:
            state = next(gen)
            while True:
                ready = yield state
                if not ready and time.monotonic() > deadline:  # psycopg sends "not ready" every `interval` seconds
                    self.pgconn.finish()
                    raise NoAnswer(f"the server has not answered for {self.answer_seconds:.0f} seconds")
                state = gen.send(ready)
        except StopIteration as done:
            result: _Result = done.value
            return result


def connect_to_postgresql(answer_seconds: float, *arguments: Any, **options: Any) -> BoundedConnection:
    """Open a connection; `arguments` and `options` are those of `psycopg.connect`."""
    connection = BoundedConnection.connect(*arguments, **{**_KEEPALIVES, **options})
    connection.answer_seconds = answer_seconds
    return connection


# --- errors of drivers become errors of the store --------------------------------------------------------------------


_NOT_UPGRADED = (
    postgresql_errors.UndefinedTable,
    postgresql_errors.UndefinedColumn,
    postgresql_errors.InsufficientPrivilege,
)
"""SQLite says the same by an OperationalError; its plain DatabaseError means a damaged file, or no database at all."""


@contextmanager
def mapped_errors() -> Iterator[None]:
    """Turn what the driver raises into errors of the store.

    Raises:
        DatabaseNotAvailable: no connection, a time limit, a full disk, a deadlock, a damaged file, a read-only database
            (a standby, or one that fails over), a missing grant, tables that are not upgraded yet: trying again later
            may help.
        InvalidValue: a value beyond the range of its column, text that UTF-8 cannot say.
    """
    try:
        yield
    # InternalError is the server's own state: read-only (25006), a transaction that it ended (25P03), a damaged page.
    except (exc.OperationalError, exc.InternalError, exc.InterfaceError, exc.TimeoutError) as error:
        raise _not_available(error) from error
    except (exc.DataError, OverflowError, UnicodeEncodeError) as error:
        raise InvalidValue(_first_line(error)) from error
    except exc.DatabaseError as error:
        damaged = type(error.orig) is sqlite3.DatabaseError
        if damaged or error.connection_invalidated or isinstance(error.orig, _NOT_UPGRADED):
            raise _not_available(error) from error
        raise


def _not_available(error: Exception) -> DatabaseNotAvailable:
    """What users may know of a database that answers and takes nothing; of others, that it cannot be reached."""
    cause = error.orig if isinstance(error, exc.DBAPIError) else error
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF  # without the extended part
    why = _first_line(error)
    if isinstance(cause, postgresql_errors.DiskFull) or code == sqlite3.SQLITE_FULL:
        words = "the database's disk is full; nothing can be stored until there is room"
        return DatabaseNotAvailable(why, words, code)
    if isinstance(cause, postgresql_errors.ReadOnlySqlTransaction) or code == sqlite3.SQLITE_READONLY:
        return DatabaseNotAvailable(why, "the database is read-only right now; nothing can be stored", code)
    return DatabaseNotAvailable(why, sqlite_code=code)


def _first_line(error: Exception) -> str:
    """What the driver says, without the statement and its values (which may be secrets)."""
    cause = error.orig if isinstance(error, exc.DBAPIError) and error.orig is not None else error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]
