"""Statements about leases: who may do what only one process at a time may do."""

from __future__ import annotations

from typing import Final

from sqlalchemy import case, or_, select, update
from sqlalchemy.orm import Session

from optimus_service.store.dialects import insert_for
from optimus_service.store.errors import StaleLeader
from optimus_service.store.records import LeaseRecord
from optimus_service.store.tables import LeaseRow

LEADER_LEASE: Final = "scheduling-loop"
"""Whoever holds it runs the scheduling rounds; `check_fence` compares with its token."""

_OVER: Final = 0.0
"""The end of a lease that was given up: before any now."""


def acquire(session: Session, name: str, holder: str, ttl_seconds: float, now: float) -> LeaseRecord | None:
    """See `Repository.acquire_lease`. One statement, so that the database decides who is first."""
    new = {"name": name, "holder": holder, "token": 1, "expires_at": now + ttl_seconds}
    insert = insert_for(session, LeaseRow).values(new)
    statement = insert.on_conflict_do_update(
        index_elements=["name"],
        set_={
            "holder": holder,
            "token": case((LeaseRow.holder == holder, LeaseRow.token), else_=LeaseRow.token + 1),
            "expires_at": now + ttl_seconds,
        },
        where=or_(LeaseRow.holder == holder, LeaseRow.expires_at <= now),
    ).returning(LeaseRow.token)
    token = session.execute(statement).scalar()
    return None if token is None else LeaseRecord(holder=holder, token=token, expires_at=now + ttl_seconds)


def current(session: Session, name: str) -> LeaseRecord | None:
    """See `Repository.current_lease`."""
    row = session.get(LeaseRow, name)
    return None if row is None else LeaseRecord(holder=row.holder, token=row.token, expires_at=row.expires_at)


def release(session: Session, name: str, holder: str) -> None:
    """See `Repository.release_lease`. The row stays: its token must go on growing."""
    owned = (LeaseRow.name == name, LeaseRow.holder == holder)
    session.execute(update(LeaseRow).where(*owned).values(expires_at=_OVER))


def check_fence(session: Session, fence: int) -> None:
    """Return if `fence` is the token in force. No other process can take over until the transaction ends.

    Any other token is refused, a higher one too: tokens that were given out by another database, or before its lease
    was deleted, mean nothing here.

    Raises:
        StaleLeader: another process leads, or none does.
    """
    statement = select(LeaseRow.token).where(LeaseRow.name == LEADER_LEASE).with_for_update(read=True)
    token = session.scalar(statement)
    if fence != token:
        raise StaleLeader(fence, token)
