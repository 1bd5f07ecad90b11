"""What local tasks print: one file each, bounded, so that a task that prints without end does not fill the disk."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from optimus_scheduler.model import TaskKey
from optimus_service.clusters.base import ClusterUnavailable

MAX_BYTES: Final = 64 * 2**20
"""A larger log is cut ..."""
KEPT_BYTES: Final = 16 * 2**20
"""... to its newest part: 64 times what the API reads of one."""

_log = structlog.get_logger(__name__)


class TaskLogs:
    """The logs in one directory. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._cutting = threading.Lock()

    def path(self, key: TaskKey) -> Path:
        """Where the task prints to, by appending: whatever is cut, it goes on at the end."""
        return self.directory / f"{key.name}.log"

    def tail(self, key: TaskKey, max_bytes: int) -> str:
        """The end of what the task has printed; empty when it has printed nothing."""
        try:
            with self.path(key).open("rb") as log:
                return _tail(log.fileno(), max_bytes).decode(errors="replace")
        except FileNotFoundError:
            return ""

    def forget(self, before: float, kept: Iterable[TaskKey]) -> None:
        """Remove logs that nobody has written to since `before` (POSIX seconds), but for those of the tasks `kept`.

        Raises:
            ClusterUnavailable: the directory cannot be read.
        """
        paths = {self.path(key) for key in kept}
        try:
            for path in self.directory.iterdir():
                if path not in paths and path.stat().st_mtime < before:
                    with suppress(OSError):  # the next hour tries again
                        path.unlink()
        except OSError as error:
            raise ClusterUnavailable(f"cannot clear the logs in {self.directory}: {error}") from error

    def bound(self, keys: Collection[TaskKey]) -> None:
        """Cut those of these tasks' logs that have become too large. One look at each file, so often as one likes.

        What a task prints in the moment of the cut may be lost.
        """
        with self._cutting:
            for key in keys:
                with suppress(OSError):  # none yet, or looked at again in a second
                    if self.path(key).stat().st_size > MAX_BYTES:
                        self._cut(self.path(key))

    def _cut(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        try:
            size = os.fstat(descriptor).st_size
            kept = _tail(descriptor, KEPT_BYTES)
            os.ftruncate(descriptor, 0)
            dropped = size - len(kept)
            os.write(descriptor, f"[Optimus dropped the {dropped} bytes before this line]\n".encode() + kept)
        finally:
            os.close(descriptor)
        _log.warning("the log of a task was cut to its end", log=path.name, dropped_bytes=dropped)


def _tail(descriptor: int, max_bytes: int) -> bytes:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, max_bytes, max(0, size - max_bytes))
