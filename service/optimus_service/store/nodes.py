"""Statements about nodes that operators closed."""

from __future__ import annotations

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from optimus_service.store.database.dialects import insert_for
from optimus_service.store.database.tables import ClosedNodeRow


def closed(session: Session) -> dict[str, bool]:
    """See `Repository.closed_nodes`."""
    return {row.name: row.emptied for row in session.scalars(select(ClosedNodeRow))}


def close(session: Session, name: str, *, emptied: bool) -> None:
    """See `Repository.close_node`."""
    statement = insert_for(session, ClosedNodeRow).values(name=name, emptied=emptied)
    session.execute(statement.on_conflict_do_update(index_elements=["name"], set_={"emptied": emptied}))


def reopen(session: Session, name: str) -> None:
    """See `Repository.open_node`."""
    session.execute(delete(ClosedNodeRow).where(ClosedNodeRow.name == name))
