"""What a process takes of its machine: processor and memory. Cheap: two system calls."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")

Usage = dict[str, float | int]


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
        usage: Usage = {"cpu_cores": max(0.0, cpu - self._cpu) / seconds, "memory_bytes": _resident_bytes()}
        self._cpu, self._at = cpu, now
        return usage


def _resident_bytes() -> int:
    return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
