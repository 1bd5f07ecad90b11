"""INSERT … ON CONFLICT, which SQLAlchemy offers per dialect; limits and clocks of SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import cast

from sqlalchemy import ColumnElement, Double, extract, func
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from optimus_service.store.tables import Base

_KEYS_AT_ONCE = 500
"""SQLite allows so many parameters in one statement, and more."""
_JULIAN_DAY_OF_1970 = 2440587.5
_SECONDS_A_DAY = 86400.0


def insert_for(session: Session, row: type[Base]) -> postgresql.Insert:
    """An INSERT with `on_conflict_do_nothing` and `on_conflict_do_update` for the session's database.

    Both dialects' statements have the methods and arguments that we use; the type says PostgreSQL for either.
    """
    if is_postgresql(session):
        return postgresql.insert(row)
    return cast(postgresql.Insert, sqlite.insert(row))


def is_postgresql(session: Session) -> bool:
    """Whether the session's database is PostgreSQL; else it is SQLite."""
    return session.get_bind().dialect.name == "postgresql"


def present_moment(session: Session) -> ColumnElement[float]:
    """The database's clock, POSIX seconds: the same one for all replicas."""
    if is_postgresql(session):
        return sql_cast(extract("epoch", func.clock_timestamp()), Double)
    return (func.julianday("now") - _JULIAN_DAY_OF_1970) * _SECONDS_A_DAY


def chunks(keys: Collection[str]) -> Iterator[list[str]]:
    """All of them, as many at a time as fit one statement."""
    ordered = sorted(keys)
    for first in range(0, len(ordered), _KEYS_AT_ONCE):
        yield ordered[first : first + _KEYS_AT_ONCE]
