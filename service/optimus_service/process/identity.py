"""What the kernel says of processes: identity that survives the reuse of process ids."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_DEAD_STATES = "ZXx"
"""Zombie and dead: exited, although /proc still lists the process until its parent asked for the exit status."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process for all time (of one boot): no two processes share both numbers."""

    pid: int
    start_ticks: int
    """When it started, in clock ticks since boot: field 22 of /proc/PID/stat."""


def boot_id() -> str:
    """Differs after every start of the machine; process ids and ticks mean something within one boot only."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def parse_stat(line: str) -> tuple[Process, str] | None:
    """The process and its one-letter state from a line of /proc/PID/stat; None if the line is not complete."""
    before, parenthesis, after = line.rpartition(")")  # the name in parentheses may itself hold blanks and ")"
    fields = after.split()
    if not parenthesis or len(fields) < 20:
        return None
    return Process(pid=int(before.split()[0]), start_ticks=int(fields[19])), fields[0]


def current() -> Process:
    """This process."""
    parsed = parse_stat(Path("/proc/self/stat").read_text())
    assert parsed is not None, "the kernel writes complete lines"
    return parsed[0]


def is_running(process: Process) -> bool:
    """Whether exactly this process runs: not another one that was given its id, and no zombie."""
    try:
        parsed = parse_stat(Path(f"/proc/{process.pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return False
    return parsed is not None and parsed[0] == process and parsed[1] not in _DEAD_STATES


def signal_group(process: Process, number: signal.Signals) -> None:
    """Send a signal to the process group that `process` leads, if it still runs."""
    if is_running(process):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def kill_orphans(process: Process) -> None:
    """End what a dead group leader left behind.

    A process id is not given out again while a group of that number has members. So if the id is free or a zombie's,
    the group can only be the leader's own; if somebody else has the id, the group had died out before.
    """
    path = Path(f"/proc/{process.pid}/stat")
    parsed = parse_stat(path.read_text()) if path.exists() else None
    if parsed is None or parsed[0] == process:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
