"""Statements about leases: who may do what only one process at a time may do."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from sqlalchemy import ColumnElement, Double, Integer, Select, bindparam, case, cast, or_, select, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningInsert

from optimus_service.store.database.dialects import insert_for_dialect, is_postgresql, present_moment
from optimus_service.store.database.subject import Subject
from optimus_service.store.database.tables import Base, LeaseRow
from optimus_service.store.errors import StaleLeader
from optimus_service.store.records import LeaseRecord

LEADER_LEASE: Final = "scheduling-loop"
"""Whoever holds it runs the scheduling rounds; `check_fence` compares with its token."""

LONGEST_LEASE_SECONDS: Final = 600.0
"""The largest `OPTIMUS_LEASE_SECONDS`."""
ACTS_WITHIN_SECONDS: Final = 1.0
"""So soon after `check_lasts` a leader acts on the cluster: nobody can have taken the lease by then."""
_OVER: Final = 0.0
"""The end of a lease that was given up: before any now."""
_YEAR_2020: Final = 1_577_836_800.0
"""POSIX seconds."""


_LEASES: Final = Base.metadata.tables["leases"]
_CURRENT: Final = select(_LEASES.c.holder, _LEASES.c.token, _LEASES.c.expires_at).where(
    _LEASES.c.name == bindparam("lease")
)
_TOKEN_IN_FORCE: Final = select(_LEASES.c.token).where(_LEASES.c.name == LEADER_LEASE).with_for_update(read=True)


class Leases(Subject):
    """Leases: who may do what only one process at a time may do."""

    def acquire(self, name: str, holder: str, ttl_seconds: float) -> LeaseRecord | None:
        """Take the lease if it is free or over, renew it if `holder` has it. None: somebody else has it.

        The token grows with each new holder; `as_leader` checks the one of `LEADER_LEASE`. `holder` must be unique
        among processes and their restarts. The lease ends by the database's clock, whatever those of the replicas say;
        should that one be set back, no lease lasts longer than `LONGEST_LEASE_SECONDS`.
        """
        with self._write() as session:
            return acquire(session, name, holder, ttl_seconds)

    def current(self, name: str) -> LeaseRecord | None:
        """Who had the lease last, whether or not it is over; None if nobody ever had it."""
        with self._read() as session:
            return current(session, name)

    def release(self, name: str, holder: str) -> None:
        """Give the lease up, so that another one need not wait until it is over. Nothing if `holder` has it not."""
        with self._write() as session:
            owned = (LeaseRow.name == name, LeaseRow.holder == holder)
            session.execute(update(LeaseRow).where(*owned).values(expires_at=_OVER))


@cache
def _acquire(for_postgresql: bool) -> ReturningInsert[tuple[int, float]]:
    """Takes `name`, `holder` and `ttl_seconds`; no row comes back if somebody else has the lease."""
    now = present_moment(for_postgresql)
    insert = insert_for_dialect(LeaseRow, for_postgresql)
    insert = insert.values(token=_first_token(now), expires_at=now + bindparam("ttl_seconds", type_=Double))
    holder, ends = insert.excluded.holder, insert.excluded.expires_at
    # An end that is further off than any lease lasts was written by another clock, or before this one was set back.
    is_wrong = _LEASES.c.expires_at > now + LONGEST_LEASE_SECONDS
    is_free = or_(_LEASES.c.holder == holder, _LEASES.c.expires_at <= now, is_wrong)
    token = case((_LEASES.c.holder == holder, _LEASES.c.token), else_=_LEASES.c.token + 1)
    return insert.on_conflict_do_update(
        index_elements=["name"], set_={"holder": holder, "token": token, "expires_at": ends}, where=is_free
    ).returning(_LEASES.c.token, _LEASES.c.expires_at)


@cache
def _left(for_postgresql: bool) -> Select[Any]:
    left = _LEASES.c.expires_at - present_moment(for_postgresql)
    return select(_LEASES.c.token, left).where(_LEASES.c.name == LEADER_LEASE)


def _first_token(now: ColumnElement[float]) -> ColumnElement[int]:
    """Of a lease that nobody has had: greater than all before, if its row was deleted.

    Seconds, of which there are more than changes of leaders; counted from 2020, they fit the column's 32 bits.
    """
    return cast(now - _YEAR_2020, Integer)


def acquire(session: Session, name: str, holder: str, ttl_seconds: float) -> LeaseRecord | None:
    """See `Leases.acquire`. One statement, so that the database decides who is first, by its own clock."""
    given = {"name": name, "holder": holder, "ttl_seconds": ttl_seconds}
    row = session.execute(_acquire(is_postgresql(session)), given).one_or_none()
    return None if row is None else LeaseRecord(holder=holder, token=row.token, expires_at=row.expires_at)


def current(session: Session, name: str) -> LeaseRecord | None:
    """See `Leases.current`."""
    row = session.execute(_CURRENT, {"lease": name}).one_or_none()
    return None if row is None else LeaseRecord(holder=row.holder, token=row.token, expires_at=row.expires_at)


def check_fence(session: Session, fence: int) -> None:
    """Return if `fence` is the token in force. No other process can take over until the transaction ends.

    Any other token is refused, a higher one too: tokens that were given out by another database, or before its lease
    was deleted, mean nothing here.

    Raises:
        StaleLeader: another process leads, or none does.
    """
    token = session.scalar(_TOKEN_IN_FORCE)
    if fence != token:
        raise StaleLeader(fence, token)


def check_lasts(session: Session, fence: int) -> None:
    """Return if `fence` is the token in force and stays so for `ACTS_WITHIN_SECONDS`, by the database's clock.

    What is done to the cluster is in no transaction that would keep others from taking a lease that is over.

    Raises:
        StaleLeader: another process leads, none does, or the lease was not renewed in time.
    """
    row = session.execute(_left(is_postgresql(session))).one_or_none()
    if row is None or row[0] != fence or row[1] < ACTS_WITHIN_SECONDS:
        raise StaleLeader(fence, None if row is None else row[0])
