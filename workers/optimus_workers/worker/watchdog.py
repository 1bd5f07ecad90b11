"""Ends a worker whose own code hangs, so that the others need not wait for it for ever.

The coordinator's lease finds a process that is stopped or cut off: it says nothing any more. When only the main thread
hangs (a data loader that waits for a file server, a deadlock in user code), the threads that talk to the coordinator go
on, and everything looks well. So one more thread watches the main thread while it computes.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from optimus_workers.errors import HUNG

# --- how long training code may give no sign before it counts as hanging ---------------------------------------------

FIRST_SECONDS = 600.0
"""Patience with the first steps: data may have to be fetched, kernels to be compiled."""
MIN_SECONDS = 60.0
PATIENCE = 20.0
"""In slowest steps so far."""
N_LEARNED = 3
"""Steps after which the slowest one counts."""
LOOK_SECONDS = 1.0
"""Between two looks. A look that comes later by as much again was kept from running, as all of this process was: it was
stopped, or its machine stood still. That is no doing of the user's code, and does not count."""


class Patience:
    """Learned from the steps so far, unless the job says how long (`hang_seconds`)."""

    def __init__(self, limit_seconds: float | None = None) -> None:
        self._limit = limit_seconds
        self._slowest = 0.0
        self._n_steps = 0

    @property
    def seconds(self) -> float:
        """How long the present step may take."""
        if self._limit is not None:
            return self._limit
        return FIRST_SECONDS if self._n_steps < N_LEARNED else max(MIN_SECONDS, PATIENCE * self._slowest)

    def took(self, seconds: float) -> None:
        """A step was done within so many seconds."""
        self._slowest = max(self._slowest, seconds)
        self._n_steps += 1


log = logging.getLogger(__name__)


class Watchdog:
    """Call the user's code in the context `watching`, and `progress` after each micro-batch."""

    def __init__(
        self,
        limit_seconds: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_hang: Callable[[], None] | None = None,
    ) -> None:
        """`limit_seconds`: for one micro-batch; None: learned from those before."""
        self._patience = Patience(limit_seconds)
        self._clock = clock
        self._on_hang = on_hang or give_up
        self._changed = threading.Condition()
        self._watching = False
        self._since = 0.0
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    @property
    def limit_seconds(self) -> float:
        """How long the present micro-batch may take."""
        return self._patience.seconds

    def begin(self) -> None:
        with self._changed:
            self._watching, self._since = True, self._clock()
            self._changed.notify()

    def progress(self) -> None:
        """A micro-batch is done."""
        now = self._clock()
        self._patience.took(now - self._since)
        self._since = now

    def end(self) -> None:
        self._watching = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """From `begin` to `end`, however the user's code ends."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._watching)
                before = self._clock()
                pause = min(max(0.0, self._since + self.limit_seconds - before), LOOK_SECONDS)
                self._changed.wait(pause)
            now = self._clock()
            if (missed := now - before - pause) > LOOK_SECONDS:
                self._since = min(self._since + missed, now)
            if self._watching and now >= self._since + self.limit_seconds:
                self._on_hang()
                return


def give_up() -> None:
    """Show where every thread is, then end the process: what hangs cannot be asked to leave."""
    log.error("one micro-batch takes too long: the training code hangs; this worker ends, see hang_seconds")
    faulthandler.dump_traceback(sys.stderr, all_threads=True)
    os._exit(HUNG)
