"""How often the processes of a script write a checkpoint, and how long that takes, from what they write to disk."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from optimus_workers.script.saving import MUCH_BYTES, QUIET_SECONDS, FileKey, bytes_to_disk, open_files

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
