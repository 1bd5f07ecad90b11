"""What the store knows of one subject: each call is a transaction, or part of the one that its caller began."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from sqlalchemy.orm import Session

from optimus_scheduler.retries import Backoff
from optimus_service.store.database.kept import Kept


class Transactions(Protocol):
    """Whoever begins and ends transactions (`Repository`)."""

    _backoff: Backoff
    _kept: Kept

    def _read(self) -> AbstractContextManager[Session]: ...

    def _write(self) -> AbstractContextManager[Session]: ...


class Subject:
    """One subject of a repository. Every method may raise `DatabaseNotAvailable`, and every writing one `InvalidValue`;
    others are named. Methods that write about a job raise `JobNotFound` if there is none."""

    def __init__(self, transactions: Transactions) -> None:
        self._read, self._write = transactions._read, transactions._write
        self._backoff, self._kept = transactions._backoff, transactions._kept
