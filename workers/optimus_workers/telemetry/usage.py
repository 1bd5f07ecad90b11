"""What a process takes of its machine, processor and memory, and how it stays under a CPU limit."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from optimus_contract.telemetry import Usage

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")


class ProcessMeter:
    """Usage of this process, all its threads together, since the last reading."""

    def __init__(
        self, cpu_clock: Callable[[], float] = time.process_time, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cpu_clock, self._clock = cpu_clock, clock
        self._cpu, self._at = cpu_clock(), clock()

    def read(self) -> Usage:
        """`cpu_cores` (mean; 0.5: half of one core's time), `memory_bytes` (resident)."""
        cpu, now = self._cpu_clock(), self._clock()
        seconds = max(now - self._at, 1e-9)
        usage = Usage(cpu_cores=max(0.0, cpu - self._cpu) / seconds, memory_bytes=_resident_bytes())
        self._cpu, self._at = cpu, now
        return usage


def _resident_bytes() -> int:
    return int(_STATM.read_text().split()[1]) * _PAGE_BYTES


# --- a CPU limit without a container ---------------------------------------------------------------------------------

PERIOD_SECONDS = 0.1
"""The usual period of a Linux CFS quota: what is not used within one period is lost."""
MAX_PAUSE_SECONDS = 2.0
"""Longest pause for one piece of work: debt run up elsewhere (an import, a checkpoint) is not paid for minutes."""


MIN_PAUSE_SECONDS = 0.01
"""Smaller debts wait until they have added up. Each pause cools the caches: measured, a pause of 5 ms after each of the
12 micro-batches of a step made the step cost twice the CPU of one pause at its end."""


class CpuPacer:
    """A token bucket of CPU seconds that fills at `limit` cores and holds at most one period's worth.

    Call `pace` after each piece of compute, best once per step: it sleeps until the bucket is no longer in debt. Time
    spent idle (waiting for the network) fills the bucket too, but never above `limit * PERIOD_SECONDS`. All threads of
    the process count, and any of them may call `pace`: the one that calls sleeps, the others go on. Without a limit it
    does nothing.
    """

    def __init__(
        self,
        limit: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if limit is not None and not limit > 0:
            raise ValueError(f"limit must be above 0 cores, not {limit}")
        self._limit = limit
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._sleep = sleep
        self._balance = 0.0  # CPU seconds that may be used now; below 0: used too early
        self._seen_at = clock()
        self._seen_cpu = cpu_clock()
        self._booking = threading.Lock()

    def pace(self) -> float:
        """Sleep just long enough to be under the limit; the seconds that it asked to sleep."""
        if self._limit is None:
            return 0.0
        with self._booking:
            self._settle(self._limit)
            pause = min(-self._balance / self._limit, MAX_PAUSE_SECONDS)
        if pause < MIN_PAUSE_SECONDS:
            return 0.0
        self._sleep(pause)
        return pause

    def _settle(self, limit: float) -> None:
        """Book what happened since the last call, as if the idle part of it had come first."""
        now, cpu = self._clock(), self._cpu_clock()
        elapsed, used = now - self._seen_at, cpu - self._seen_cpu
        self._seen_at, self._seen_cpu = now, cpu
        busy = min(elapsed, used)
        after_idling = min(self._balance + limit * (elapsed - busy), limit * PERIOD_SECONDS)
        self._balance = max(after_idling + limit * busy - used, -limit * MAX_PAUSE_SECONDS)
