"""The one place where errors of database drivers become errors of the store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from psycopg import errors as postgresql_errors
from sqlalchemy import exc

from optimus_service.store.errors import DatabaseNotAvailable, InvalidValue

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
        raise DatabaseNotAvailable(_first_line(error), *_told(error)) from error
    except (exc.DataError, OverflowError, UnicodeEncodeError) as error:
        raise InvalidValue(_first_line(error)) from error
    except exc.DatabaseError as error:
        damaged = type(error.orig) is sqlite3.DatabaseError
        if damaged or error.connection_invalidated or isinstance(error.orig, _NOT_UPGRADED):
            raise DatabaseNotAvailable(_first_line(error)) from error
        raise


def _told(error: Exception) -> tuple[str, ...]:
    """What users may know of a database that answers and takes nothing; none: it cannot be reached."""
    cause = error.orig if isinstance(error, exc.DBAPIError) else error
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF  # without the extended part
    if isinstance(cause, postgresql_errors.DiskFull) or code == sqlite3.SQLITE_FULL:
        return ("the database's disk is full; nothing can be stored until there is room",)
    if isinstance(cause, postgresql_errors.ReadOnlySqlTransaction) or code == sqlite3.SQLITE_READONLY:
        return ("the database is read-only right now; nothing can be stored",)
    return ()


def _first_line(error: Exception) -> str:
    """What the driver says, without the statement and its values (which may be secrets)."""
    cause = error.orig if isinstance(error, exc.DBAPIError) and error.orig is not None else error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]
