"""Statements about nodes that operators closed."""

from __future__ import annotations

from sqlalchemy import delete, select

from optimus_service.store.database.dialects import insert_for
from optimus_service.store.database.subject import Subject
from optimus_service.store.database.tables import ClosedNodeRow


class ClosedNodes(Subject):
    """Nodes that operators closed."""

    def closed(self) -> dict[str, bool]:
        """Nodes that operators closed for new tasks; by name whether what is there is to move."""
        with self._read() as session:
            return {row.name: row.emptied for row in session.scalars(select(ClosedNodeRow))}

    def close(self, name: str, *, emptied: bool) -> None:
        """Close a node; `emptied`: let its tasks move elsewhere."""
        with self._write() as session:
            statement = insert_for(session, ClosedNodeRow).values(name=name, emptied=emptied)
            session.execute(statement.on_conflict_do_update(index_elements=["name"], set_={"emptied": emptied}))

    def reopen(self, name: str) -> None:
        """Open a node again; nothing if it is open."""
        with self._write() as session:
            session.execute(delete(ClosedNodeRow).where(ClosedNodeRow.name == name))
