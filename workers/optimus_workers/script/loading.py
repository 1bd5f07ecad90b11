"""Whether processes are loading what was saved: files that they or those before them wrote are open, or mapped.

It is known only of what is seen in a look, so of loading for some hundredths of a second nothing may be.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from optimus_workers.script.checkpoints import with_children
from optimus_workers.script.saving import FileKey, Spells, open_files

LOOK_SECONDS = 0.05
"""Least time between two looks."""
PROCESSES_SECONDS = 0.5
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
        if not self._saved or now < self._looked_at + LOOK_SECONDS:
            return
        self._looked_at = now
        if now >= self._listed_at + PROCESSES_SECONDS:
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
