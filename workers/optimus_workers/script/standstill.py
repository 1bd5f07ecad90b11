"""Whether the processes of a script do anything: a training that waits for something that never comes does not.

Waiting looks the same in all trainings: no thread runs, no processor time is used, the main threads do not wake up,
nothing is read, written or printed. A long evaluation, a checkpoint or a download look different, so that no limit has
to be guessed for them. A loop that asks and sleeps many times a second looks like a training that does the same, and is
taken for one: nothing healthy is ended.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from optimus_workers.script.starter import descendants
from optimus_workers.worker.watchdog import Patience

LOOK_SECONDS = 5.0
"""Least time between two looks."""
REPORT_SECONDS = 10.0
"""Processes that have done nothing for so long are reported, and again after as long, and when their patience ends."""
LATE_SECONDS = 2.0
"""A look that is later than that finds the process that looks to have been stopped, or its machine: what passed then is
nothing that the processes of the script did or did not do."""
BUSY_PART = 0.02
"""Of one core. Threads that only wake up now and then, such as that of a progress bar, take less."""
BUSY_WAKES = 2.0
"""Times a second that a main thread goes on after it has slept. One that waits for the next batch or for its workers
looks once in 1 to 5 s whether they are still there."""
BUSY_BYTES = 32 * 1024
"""Read or written between two looks: more than wake-ups take."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """What the processes have used so far."""

    processes: frozenset[int]
    cpu_seconds: float
    n_bytes: int
    runs: bool
    """A thread of them runs, or waits for a core."""
    wakes: Mapping[int, int] = field(default_factory=dict)
    """How often the main thread of each has gone on after it had slept."""


def usage(starter: int) -> Usage:
    """Of all processes below the one that started them."""
    found = frozenset(descendants(starter))
    wakes = {pid: _wakes(pid) for pid in found}
    return Usage(found, sum(map(_cpu_seconds, found)), sum(map(_bytes, found)), any(map(_runs, found)), wakes)


class Standstill:
    """Looks at the processes of one membership now and then. Times are of one monotonic clock, in seconds."""

    def __init__(self, now: float, limit_seconds: float | None = None) -> None:
        """`limit_seconds`: how long they may do nothing; None: as learned from their steps."""
        self._patience = Patience(limit_seconds)
        self._busy_at = self._looked_at = self._step_at = now
        self._reported_at: float | None = None
        self._last: Usage | None = None

    @property
    def patience_seconds(self) -> float:
        """How long they may do nothing."""
        return self._patience.seconds

    def heard(self, now: float) -> None:
        """They printed or reported something."""
        self._busy_at = now

    def stepped(self, now: float) -> None:
        """They made a step."""
        self._patience.took(now - self._step_at)
        self._step_at = now
        self.heard(now)

    def is_due(self, now: float) -> bool:
        """Whether it is time to look again."""
        return now >= self._looked_at + LOOK_SECONDS

    def look(self, used: Usage, now: float) -> float | None:
        """For how long they have done nothing, where that is to be reported; 0 once they do something again. To be
        called as soon as it `is_due`."""
        before, since = self._last, now - self._looked_at
        if (missed := since - LOOK_SECONDS) > LATE_SECONDS:
            self._busy_at = min(self._busy_at + missed, now)
        self._last, self._looked_at = used, now
        if (
            before is None
            or used.runs
            or used.processes != before.processes
            or used.cpu_seconds - before.cpu_seconds > BUSY_PART * since
            or used.n_bytes - before.n_bytes > BUSY_BYTES
            or any(n - before.wakes.get(pid, n) > BUSY_WAKES * since for pid, n in used.wakes.items())
        ):
            self._busy_at = now
        idle = now - self._busy_at
        was_reported = self._reported_at is not None
        if idle < REPORT_SECONDS:
            self._reported_at = None
            return 0.0 if was_reported else None
        if self._reported_at is not None and now < self._reported_at + REPORT_SECONDS:
            patience, told = self._patience.seconds, self._reported_at - self._busy_at
            if idle < patience or told >= patience:
                return None
        self._reported_at = now
        return idle


def _cpu_seconds(pid: int) -> float:
    """The processor time of a process."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    return 0.0


def _runs(pid: int) -> bool:
    """Whether a thread of a process runs, or waits for a core."""
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                if (entry / "stat").read_bytes().rpartition(b")")[2].lstrip().startswith(b"R"):
                    return True
    return False


def _wakes(pid: int) -> int:
    """How often the main thread of a process has gone on after it had slept."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                return int(line.split()[1])
    return 0


def _bytes(pid: int) -> int:
    """What a process has read and written so far, from and to files, pipes and the like."""
    with suppress(OSError, ValueError, IndexError):
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar:", "wchar:")))
    return 0
