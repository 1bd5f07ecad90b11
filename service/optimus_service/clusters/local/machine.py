"""How much this machine has: cores and memory that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def cores() -> float:
    """CPU cores that this process may use: its CPU set, less if the container's quota is smaller."""
    available = float(len(os.sched_getaffinity(0)))
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        return min(available, int(quota) / int(period))
    return available


def memory_bytes() -> int:
    """Memory of the machine, or of the container if that has less."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _read(_CGROUP / "memory.max")
    return min(physical, int(limit)) if limit.isdigit() else physical


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # no cgroup v2 here: nothing limits us beyond the machine
