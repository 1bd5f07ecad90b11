"""Whether processes are writing files: one that is ended in the middle of a checkpoint leaves half of it behind.

Most trainings do not catch SIGTERM, and many checkpoints are several files that are written one after the other. What
shows that one is being written: much is written to disk, or a regular file was opened lately. Logs are open all the
time and grow slowly.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

QUIET_SECONDS = 0.4
"""So long without a write, and a checkpoint is complete: longer than between two of its files."""
LOG_SECONDS = 2.0
"""A file that is open for longer is a log, unless much is written."""
MUCH_BYTES = 32 * 1024
"""Between two looks: more than logs take."""

FileKey = tuple[int, int]
"""Device and inode."""


class Spells:
    """When something was seen, look by look."""

    def __init__(self) -> None:
        self._spells: list[tuple[float, float]] = []
        self._looked_at: float | None = None
        self._was_seen = False

    def add(self, seen: bool, now: float) -> None:
        """A look: it is seen or not. It lasts from the look before the first at which it is seen to the last such."""
        begun_at = now if self._looked_at is None else self._looked_at
        if seen:
            if self._was_seen:
                begun_at, _ = self._spells.pop()
            self._spells.append((begun_at, now))
        self._looked_at, self._was_seen = now, seen

    def seconds(self, since: float = float("-inf")) -> float:
        """How long it was seen after this moment."""
        return sum(max(0.0, end - max(begin, since)) for begin, end in self._spells)


class Writes:
    """Looks at process groups. Where the system does not show what they write, nothing is ever written."""

    def __init__(self, now: float) -> None:
        """`now`: of the clock that `are_quiet` is asked by."""
        self.files: set[FileKey] = set()
        """That were written."""
        self._spells = Spells()
        self._open_since: dict[FileKey, float] = {}
        self._written: dict[int, int] = {}
        """Bytes to disk, by process."""
        self._busy_at = now

    def are_quiet(self, groups: Iterable[int], now: float) -> bool:
        """Whether no process of these groups has written a file for `QUIET_SECONDS`."""
        processes = list(_processes(frozenset(groups)))
        written = {pid: bytes_to_disk(pid) for pid in processes}
        since = {key: self._open_since.get(key, now) for pid in processes for key in open_files(pid)}
        much = any(number - self._written.get(pid, number) > MUCH_BYTES for pid, number in written.items())
        new = {key for key, opened in since.items() if now - opened < LOG_SECONDS}
        self._spells.add(much or bool(new), now)
        if much or new:
            self._busy_at = now
            self.files |= set(since) if much else new
        self._written, self._open_since = written, since
        return now - self._busy_at >= QUIET_SECONDS

    def seconds(self, since: float) -> float:
        """How long files were written after this moment."""
        return self._spells.seconds(since)


def _processes(groups: frozenset[int]) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getpgid(int(entry.name)) in groups:
                yield int(entry.name)


def bytes_to_disk(pid: int) -> int:
    """What a process has written so far; 0 where the system does not show it."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("write_bytes:")).split()[1])
    return 0


def open_files(pid: int, *, writable: bool = True) -> Iterator[FileKey]:
    """The regular files that a process has open, for writing or at all."""
    folder = Path(f"/proc/{pid}/fd")
    with suppress(OSError):
        for entry in folder.iterdir():
            with suppress(OSError, ValueError, StopIteration):
                status = entry.stat()
                information = folder.with_name("fdinfo") / entry.name
                if stat.S_ISREG(status.st_mode) and (not writable or _is_writable(information)):
                    yield status.st_dev, status.st_ino


def _is_writable(information: Path) -> bool:
    flags = next(line for line in information.read_text().splitlines() if line.startswith("flags:"))
    return int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
