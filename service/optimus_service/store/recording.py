"""The database for one request that changes something: its record is in the transaction of the change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from sqlalchemy.orm import Session

from optimus_service.store import people
from optimus_service.store.records import AuditRecord
from optimus_service.store.repository import Repository


class Recorded(Protocol):
    """What is to be recorded of a request."""

    is_due: bool
    """Whether it is recorded as well if nothing was written beside."""

    def entries(self, *, is_first: bool) -> list[AuditRecord]:
        """The records of a transaction, as far as they are known when its change is complete."""
        ...

    def note_stored(self, entries: Sequence[AuditRecord]) -> None:
        """They are in the database."""
        ...


class RecordingRepository(Repository):
    """The same database, whose first transaction that writes also adds the record: neither is there without the other.

    For one request, which is done by one thread after the other. Later transactions of it add no second record, unless
    they are about further jobs of a request about many.
    """

    def __init__(self, repository: Repository, recorded: Recorded) -> None:
        super().__init__(repository._engine, repository._observe, repository._backoff)
        self._turn = repository._turn
        self._recorded = recorded
        self._is_stored = False

    @contextmanager
    def _write(self) -> Iterator[Session]:
        with super()._write() as session:
            yield session
            entries = self._recorded.entries(is_first=not self._is_stored)
            if entries:
                people.add_audit(session, entries)
        self._is_stored = True
        self._recorded.note_stored(entries)

    def record_unchanged(self) -> None:
        """Add the record of a request that was answered and wrote nothing; nothing if it is there."""
        if not self._is_stored and self._recorded.is_due:
            with self._write():
                pass
