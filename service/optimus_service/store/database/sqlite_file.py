"""Notices that a SQLite database was moved, deleted or replaced while its connections are open.

An open file goes on taking writes after its name is gone. What is acknowledged then is lost with the next start, which
opens whatever lies at the path. So each transaction compares the files at the path with those that were opened.
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock
from typing import Any, Final

from sqlalchemy import Engine, event

from optimus_service.store.errors import DatabaseNotAvailable

_BESIDE: Final = ("-wal", "-shm")
"""SQLite's own files beside the database: the newest transactions are in the first, the locks are in the second."""

_Identity = tuple[int, int]
"""Device and inode."""


class WatchedFile:
    """The files of one engine's database.

    Its own is the one that was opened first, for as long as the engine lives; those beside it come with the first
    connection and go with the last.
    """

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._paths_beside = tuple(f"{path}{end}" for end in _BESIDE)
        self._lock = Lock()
        self._n_connections = 0
        self._opened: _Identity | None = None
        self._beside: tuple[_Identity, ...] | None = None

    def watch(self, engine: Engine) -> None:
        """Check at each connection, and at the begin and the end of each transaction of `engine`: some microseconds."""
        event.listen(engine, "do_connect", self._before_connect)
        event.listen(engine, "connect", self._after_connect)
        event.listen(engine, "close", self._closed)
        event.listen(engine, "begin", self._check)
        event.listen(engine, "commit", self._before_commit)

    def _before_connect(self, *_: Any) -> None:
        # SQLite would make an empty file where none is.
        if self._opened is not None and _identity(self._path) != self._opened:
            raise self._refusal()

    def _after_connect(self, *_: Any) -> None:
        with self._lock:
            self._opened = self._opened or _identity(self._path)
            self._n_connections += 1

    def _closed(self, *_: Any) -> None:
        with self._lock:
            self._n_connections -= 1
            if self._n_connections == 0:
                self._beside = None  # the last connection takes them away

    def _before_commit(self, *_: Any) -> None:
        if self._beside is None:  # SQLite makes them in the first transaction
            with self._lock:
                self._beside = self._beside or self._found_beside()
        self._check()

    def _check(self, *_: Any) -> None:
        beside = self._beside
        if _identity(self._path) != self._opened or (beside is not None and self._found_beside() != beside):
            raise self._refusal()

    def _found_beside(self) -> tuple[_Identity, ...] | None:
        """None unless all of them are there."""
        found = [_identity(path) for path in self._paths_beside]
        return tuple(each for each in found if each is not None) if all(found) else None

    def _refusal(self) -> DatabaseNotAvailable:
        return DatabaseNotAvailable(
            f"{self._path}, or a file of SQLite beside it, was moved, deleted or replaced while the service runs: "
            "put it back, or start the service anew",
            "the database's file was moved, deleted or replaced; nothing can be stored until it is back",
        )


def _identity(path: str) -> _Identity | None:
    """Which file lies at `path`; None if there is none, or it cannot be looked at."""
    try:
        found = os.stat(path)  # noqa: PTH116 - at each transaction: `Path.stat` takes twice as long
    except OSError:
        return None
    return found.st_dev, found.st_ino
