"""Network partitions: which task to replace when two tasks cannot connect to each other. Pure."""

from __future__ import annotations

from collections import Counter

from optimus_workers.coordinator.membership import Members

DATA_LOST_SECONDS = 1.0
"""A broken data connection usually means that a task died; its control connection then ends at the same moment."""
MAX_FAILURES = 2
"""Broken or refused connections of a pair without a step in between, after which one of the two is replaced. One is
usual: the other task has just died, or moved."""


class Partition:
    """The data connections that failed since the last completed step, by worker and server."""

    def __init__(self) -> None:
        self._pairs: Counter[tuple[str, str]] = Counter()
        self._data_lost_at: float | None = None

    def data_lost(self, now: float) -> None:
        """A data connection broke."""
        self._data_lost_at = now

    def forget_data_lost(self) -> None:
        """A new attempt at a membership makes all connections anew."""
        self._data_lost_at = None

    def take_overdue(self, now: float) -> bool:
        """Whether a data connection broke `DATA_LOST_SECONDS` ago; the answer is True once per loss."""
        if self._data_lost_at is None or now < self._data_lost_at + DATA_LOST_SECONDS:
            return False
        self._data_lost_at = None
        return True

    def add(self, worker: str, server: str) -> None:
        """`worker` could not reach `server`."""
        self._pairs[worker, server] += 1

    def clear(self) -> None:
        """A step was completed, so all members reach each other."""
        self._pairs.clear()

    def cut_off(self, members: Members) -> str | None:
        """The task to replace: the one in most pairs that keep failing; None: there is no such pair, or the membership
        could not train without any of them.

        A server is chosen only if others can take its range; of equals a worker is chosen, which holds no state.
        """
        failing = [pair for pair, n in self._pairs.items() if n >= MAX_FAILURES]
        involved = Counter(task for pair in failing for task in pair if task in members)
        able = {
            name: (n, name in members.workers)
            for name, n in involved.items()
            if len(members.workers if name in members.workers else members.servers) > 1
        }
        return max(sorted(able), key=lambda name: able[name]) if able else None
