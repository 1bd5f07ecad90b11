"""The checkpoints of a script, from what its processes do with files: write (how often, how long), and load."""

from __future__ import annotations

import os
import stat
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from optimus_workers.script.folders import NEWEST_FOLDERS, Folders

# --- whether processes are writing files ------------------------------------------------------------------------------
# One that is ended in the middle of a checkpoint leaves half of it behind.
# Most trainings do not catch SIGTERM, and many checkpoints are several files that are written one after the other. What
# shows that one is being written: much is written to disk, a regular file was opened lately, entries came or went where
# checkpoints are, or the newest of these lacks what the one before has. Logs are open all the time and grow slowly.

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

    def __init__(self, now: float, folders: Iterable[str] = ()) -> None:
        """`now`: of the clock that `are_quiet` is asked by; `folders`: in which the checkpoints are."""
        self._folders = Folders(folders)
        self.files: set[FileKey] = set()
        """That were written."""
        self._spells = Spells()
        self._open_since: dict[FileKey, float] = {}
        self._written: dict[int, int] = {}
        """Bytes to disk, by process."""
        self._busy_at = now

    def are_quiet(self, groups: Iterable[int], now: float) -> bool:
        """Whether no process of these groups has written a file for `QUIET_SECONDS`, nor made half a checkpoint."""
        processes = list(_processes(frozenset(groups)))
        written = {pid: bytes_to_disk(pid) for pid in processes}
        since = {key: self._open_since.get(key, now) for pid in processes for key in open_files(pid)}
        much = any(number - self._written.get(pid, number) > MUCH_BYTES for pid, number in written.items())
        new = {key for key, opened in since.items() if now - opened < LOG_SECONDS}
        changed = self._folders.look()
        self._spells.add(much or bool(new) or changed, now)
        if much or new or changed:
            self._busy_at = now
            self.files |= set(since) if much else new
        self._written, self._open_since = written, since
        return now - self._busy_at >= QUIET_SECONDS and not self._folders.has_half()

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


def open_paths(pid: int) -> Iterator[Path]:
    """The regular files that a process has open for writing, by their paths."""
    folder = Path(f"/proc/{pid}/fd")
    with suppress(OSError):
        for entry in folder.iterdir():
            with suppress(OSError, ValueError, StopIteration):
                if stat.S_ISREG(entry.stat().st_mode) and _is_writable(folder.with_name("fdinfo") / entry.name):
                    yield entry.readlink()


def _is_writable(information: Path) -> bool:
    flags = next(line for line in information.read_text().splitlines() if line.startswith("flags:"))
    return int(flags.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY


# --- how often a checkpoint is written, and how long that takes -------------------------------------------------------

LOOK_SECONDS = 0.2
"""Least time between two looks: how exactly the time of writing is known."""
PROCESSES_SECONDS = 5.0
"""How often it is looked which processes there are."""
LEAST_BYTES = 256 * 1024
"""What is smaller is no checkpoint."""
LARGE = 0.25
"""Neither is what is smaller than this part of the largest: reports and pictures of an evaluation."""
NEWEST = 16
"""Checkpoints that are remembered."""
NEWEST_FILES = 64
LEAST = 3
"""Checkpoints before anything is said of them."""


@dataclass(frozen=True, slots=True)
class Write:
    """What was written without a break; times are of `time.monotonic`."""

    begun_at: float
    ended_at: float
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """How the script writes its checkpoints; both in seconds."""

    every_seconds: float
    """From the beginning of one to the beginning of the next."""
    write_seconds: float


class CheckpointWatch:
    """Looks at processes and all that they started. Where the system shows no writes, there are none."""

    def __init__(self) -> None:
        self._writes: list[Write] = []
        self._present: Write | None = None
        self._written: dict[int, int] = {}
        """Bytes to disk, by process."""
        self._looked_at = self._listed_at = float("-inf")
        self.files: dict[FileKey, None] = {}
        """The newest files of checkpoints."""
        self._folders: dict[str, None] = {}

    def look(self, processes: Iterable[int], now: float) -> None:
        """Look at these processes, unless that was done just now."""
        if now < self._looked_at + LOOK_SECONDS:
            return
        before, self._looked_at = self._looked_at, now
        if now >= self._listed_at + PROCESSES_SECONDS:
            self._listed_at = now
            self._written = {pid: self._written.get(pid, bytes_to_disk(pid)) for pid in with_children(processes)}
        written = {pid: bytes_to_disk(pid) for pid in self._written}
        new = sum(max(0, number - self._written[pid]) for pid, number in written.items())
        self._written = written
        if new > MUCH_BYTES:
            self._remember_files()
        self.add(before, now, new)

    def _remember_files(self) -> None:
        for key in (key for pid in self._written for key in open_files(pid)):
            self.files.pop(key, None)
            self.files[key] = None
        for key in list(self.files)[:-NEWEST_FILES]:
            del self.files[key]
        for path in (path for pid in self._written for path in open_paths(pid)):
            self._folders.pop(folder := str(path.parent.parent), None)
            self._folders[folder] = None
        for oldest in list(self._folders)[:-NEWEST_FOLDERS]:
            del self._folders[oldest]

    def folders(self, before: Iterable[str], directory: Path) -> tuple[str, ...]:
        """In which the folders of checkpoints are, after those that were known `before`. Not `directory`, in which the
        script runs, nor those above it: what comes and goes there may be of other jobs."""
        shared = {str(each) for each in (directory, *directory.parents)}
        found = [each for each in dict.fromkeys((*before, *self._folders)) if each not in shared]
        return tuple(found[-NEWEST_FOLDERS:])

    def add(self, before: float, now: float, n_bytes: int) -> None:
        """So many bytes were written between two looks."""
        present = self._present
        if n_bytes > MUCH_BYTES:
            begun_at, so_far = (before, 0) if present is None else (present.begun_at, present.n_bytes)
            self._present = Write(begun_at, now, so_far + n_bytes)
        elif present is not None and now - present.ended_at >= QUIET_SECONDS:
            self._present = None
            if present.n_bytes >= LEAST_BYTES:
                self._writes = [*self._writes, present][-NEWEST:]

    @property
    def found(self) -> Checkpoints | None:
        """None: too few were written, or the script writes all the time."""
        least = LARGE * max((each.n_bytes for each in self._writes), default=0)
        large = [each for each in self._writes if each.n_bytes >= least]
        if len(large) < LEAST:
            return None
        every = statistics.median(after.begun_at - each.begun_at for each, after in pairwise(large))
        seconds = statistics.median(each.ended_at - each.begun_at for each in large)
        return Checkpoints(every, seconds) if seconds < every / 2 else None


def with_children(processes: Iterable[int]) -> list[int]:
    """These processes and all that they and their children have started."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - a third of the time of Path, as below
        with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
            # The name, in parentheses, may hold anything.
            children[int(file.read().rpartition(b")")[2].split(None, 2)[1])].append(int(name))
    found, left = [], list(dict.fromkeys(processes))
    while left:
        pid = left.pop()
        found.append(pid)
        left += children.pop(pid, [])
    return found


# --- whether processes are loading what was saved: files that were written before are open, or mapped ----------------
# It is known only of what is seen in a look, so of loading for some hundredths of a second nothing may be.

LOADING_LOOK_SECONDS = 0.05
"""Least time between two looks."""
LOADING_PROCESSES_SECONDS = 0.5
"""How often it is looked which processes there are."""


class Loads:
    """Looks at new processes, until their first step."""

    def __init__(self, saved: Iterable[FileKey]) -> None:
        """`saved`: the files of checkpoints."""
        self._saved = frozenset(saved)
        self._mapped = [b"%02x:%02x %d " % (os.major(device), os.minor(device), inode) for device, inode in self._saved]
        self._processes: list[int] = []
        self._looked_at = self._listed_at = float("-inf")
        self._spells = Spells()

    def look(self, processes: Iterable[int], now: float) -> None:
        """Look at these processes and their children, unless that was done just now."""
        if not self._saved or now < self._looked_at + LOADING_LOOK_SECONDS:
            return
        self._looked_at = now
        if now >= self._listed_at + LOADING_PROCESSES_SECONDS:
            self._listed_at, self._processes = now, with_children(processes)
        self._spells.add(any(self._loads(pid) for pid in self._processes), now)

    @property
    def seconds(self) -> float:
        """For which files were being loaded."""
        return self._spells.seconds()

    def _loads(self, pid: int) -> bool:
        if any(key in self._saved for key in open_files(pid, writable=False)):
            return True
        with suppress(OSError):
            maps = Path(f"/proc/{pid}/maps").read_bytes()
            return any(each in maps for each in self._mapped)
        return False
