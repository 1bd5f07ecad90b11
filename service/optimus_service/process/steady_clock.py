"""The service's clock: POSIX seconds that go on evenly when somebody sets the machine's clock.

What is stored are moments, and what decides are durations between them: how long a job may train, how long a task has
to leave, when a retry is due. So moments come from a clock that no step of the machine's clock moves. It goes with the
kernel's time since boot, and follows the machine's clock at `FOLLOW_RATE` at most: it makes up for a step of two hours
in 40 hours, and durations are wrong by 5 % at most meanwhile.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from optimus_service.process import identity as kernel

FOLLOW_RATE = 0.05
"""Seconds towards the machine's clock for each second that passes. No decision depends on 5 % of a duration, and a
second that a time server corrects is made up for in 20 s."""
_EARLIEST = 1_577_836_800.0
"""2020 in POSIX seconds. A machine without a battery for its clock says less until a time server has told it. The first
moment that can be true is believed at once."""
_NOTED_SECONDS = 1.0
"""Smaller differences are no step; changes of this size are written down."""

_log = structlog.get_logger(__name__)


def _since_boot() -> float:
    """Seconds, those asleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class ClockFile:
    """Where a clock keeps what a restart within the same boot goes on with."""

    path: Path
    boot_id: str

    @classmethod
    def of(cls, path: Path) -> ClockFile:
        """For the present boot of this machine."""
        return cls(path, kernel.boot_id())

    def read(self) -> float | None:
        """The moment at boot, POSIX seconds; None if nothing was written since then."""
        try:
            found: Any = json.loads(self.path.read_text())
            booted_at = float(found["booted_at"])
            return booted_at if math.isfinite(booted_at) and found["boot_id"] == self.boot_id else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, booted_at: float) -> None:
        """All at once. On a full disk nothing happens: a later step of the clock may then show after a restart."""
        draft = self.path.with_name(f".{self.path.name}")
        with suppress(OSError):
            draft.write_text(json.dumps({"boot_id": self.boot_id, "booted_at": booted_at}) + "\n")
            draft.replace(self.path)


class SteadyClock:
    """Call it for the present moment, POSIX seconds. It never goes back. May be used by many threads."""

    def __init__(
        self,
        file: ClockFile | None = None,
        wall: Callable[[], float] = time.time,
        since_boot: Callable[[], float] = _since_boot,
    ) -> None:
        """`file`: what an earlier clock of the same boot wrote is gone on with. `wall`: the machine's clock."""
        self._file, self._wall, self._since_boot = file, wall, since_boot
        self._lock = threading.Lock()
        self._passed = since_boot()
        stored = None if file is None else file.read()
        self._booted_at = wall() - self._passed if stored is None else stored
        self._written: float | None = stored
        self._apart = 0.0
        self._note()

    def __call__(self) -> float:
        with self._lock:
            before, self._passed = self._passed, self._since_boot()
            most = FOLLOW_RATE * max(self._passed - before, 0.0)
            apart = self._wall() - (self._booted_at + self._passed)
            never_set = self._booted_at < _EARLIEST <= self._wall()
            self._booted_at += apart if never_set else min(max(apart, -most), most)
            self._note()
            return self._booted_at + self._passed

    def _note(self) -> None:
        """Log a step once, and write down where this clock is when that has changed."""
        apart = self._wall() - (self._booted_at + self._passed)
        if abs(apart - self._apart) > _NOTED_SECONDS and abs(apart) > abs(self._apart):
            _log.warning(
                "the machine's clock was set", seconds=round(apart, 1), durations=f"follow it at {FOLLOW_RATE:.0%}"
            )
        if abs(apart - self._apart) > _NOTED_SECONDS:
            self._apart = apart
        if self._file is not None and (self._written is None or abs(self._booted_at - self._written) > _NOTED_SECONDS):
            self._written = self._booted_at
            self._file.write(self._booted_at)
