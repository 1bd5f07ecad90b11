"""Beside the rounds: what ended jobs leave is deleted once it is old, a little at a time.

::

    a round ─▶ who leads ─▶ once an hour: batches of rows, one transaction each, with pauses between them
    (its thread)            (own thread, a quarter of the time at most)

Never inside a round. A batch is small, so that whoever else writes waits for tens of milliseconds at most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from optimus_service.loop.loop import Condition
from optimus_service.store.errors import DatabaseNotAvailable, StaleLeader
from optimus_service.store.repository import LeaderRepository

THREAD = "retention"
PERIOD_SECONDS = 3600.0
_FULL_SWEEP_PERIODS = 24
"""Old rounds are looked at again so often: the decisions that kept them may have gone since."""
_MENDS_AT = 1
"""Of so many sweeps the second one mends what an upgrade left: an hour after a start it is over."""
_LOAD = 0.25
"""Part of the time that batches take at most."""
_SHORTEST_PAUSE_SECONDS = 0.001
"""Another thread that waits for the database's turn gets it."""

_log = structlog.get_logger(__name__)


class Retention:
    """`note` is called by the thread of the rounds; `start` begins a thread. `sweep` is one pass over what is due."""

    def __init__(
        self,
        clock: Callable[[], float],
        keep_seconds: float,
        count_error: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
        wake_up: Condition | None = None,
    ) -> None:
        """`keep_seconds`: samples, decisions and predictions of jobs that ended longer ago are deleted; what the job
        came to stays. `count_error`: is told of mistakes in code. `wake_up`: where the thread waits."""
        self._clock = clock
        self._keep_seconds = keep_seconds
        self._count_error = count_error
        self._monotonic = monotonic
        self._wake_up: Condition = wake_up or threading.Condition()
        self._leader: LeaderRepository | None = None
        self._swept_at: float | None = None  # the first round's leader sweeps: services that restart often must, too
        self._n_sweeps = 0
        self._rounds_after = 0.0
        self._stopping = False
        self._thread = threading.Thread(target=self.run, name=THREAD, daemon=True)

    # --- from other threads ------------------------------------------------------------------------------------------

    def note(self, leader: LeaderRepository) -> None:
        """This process leads, and a round went well. Returns at once."""
        with self._wake_up:
            self._leader = leader
            if self._is_due():
                self._wake_up.notify_all()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """End after the batch in progress."""
        with self._wake_up:
            self._stopping = True
            self._wake_up.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_seconds)

    # --- the thread --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """What the thread does until `stop`."""
        while not self._stopping:
            with self._wake_up:
                self._wake_up.wait_for(lambda: self._stopping or self._is_due())
                leader, self._leader = self._leader, None
            if self._stopping or leader is None:
                continue
            self.sweep(leader)

    def _is_due(self) -> bool:
        now = self._clock()
        recent = self._swept_at is not None and 0 <= now - self._swept_at < PERIOD_SECONDS
        return self._leader is not None and not recent

    def sweep(self, leader: LeaderRepository) -> int:
        """Delete all that is due; how many rows. What an error leaves, the next sweep deletes."""
        self._swept_at = self._clock()
        deleted = 0
        try:
            deleted = self._repeat(lambda: leader.retention.prune(self._clock(), self._keep_seconds).total)
            if self._n_sweeps % _FULL_SWEEP_PERIODS == _MENDS_AT:
                leader.retention.mend_after_upgrade()
            deleted += self._sweep_rounds(leader)
        except (DatabaseNotAvailable, StaleLeader) as error:
            _log.warning("what is old could not be deleted", error=str(error))
        except Exception:  # noqa: BLE001 - without this thread nothing would be deleted any more
            _log.exception("deleting what is old failed")
            self._count_error(THREAD)
        return deleted

    def _sweep_rounds(self, leader: LeaderRepository) -> int:
        after = 0.0 if self._n_sweeps % _FULL_SWEEP_PERIODS == 0 else self._rounds_after
        self._n_sweeps += 1
        deleted = 0
        while not self._stopping:
            self._rounds_after = after
            begun = self._monotonic()
            pruned = leader.retention.prune_rounds(self._clock(), self._keep_seconds, after)
            deleted += pruned.rounds
            if pruned.next_after is None:
                break
            after = pruned.next_after
            self._pause(self._monotonic() - begun)
        return deleted

    def _repeat(self, batch: Callable[[], int]) -> int:
        total = 0
        while not self._stopping:
            begun = self._monotonic()
            n = batch()
            if n == 0:
                break
            total += n
            self._pause(self._monotonic() - begun)
        return total

    def _pause(self, took: float) -> None:
        with self._wake_up:
            self._wake_up.wait_for(lambda: self._stopping, max(took / _LOAD - took, _SHORTEST_PAUSE_SECONDS))
