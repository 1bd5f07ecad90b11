"""Workers that cannot reach a server although both can reach the coordinator: who has to go. Pure."""

from __future__ import annotations

from collections import Counter

from optimus_workers.coordinator.membership import Members

MAX_FAILURES = 2
"""Broken or refused connections of a pair without a step in between, after which one of the two is let go. One is
usual: the other task has just died, or moved."""


class Complaints:
    """Who complained about whom since the last completed step."""

    def __init__(self) -> None:
        self._pairs: Counter[tuple[str, str]] = Counter()

    def add(self, worker: str, server: str) -> None:
        self._pairs[worker, server] += 1

    def clear(self) -> None:
        """A step was completed: everybody reaches everybody."""
        self._pairs.clear()

    def cut_off(self, members: Members) -> str | None:
        """The task to let go: the one in most pairs that keep failing. A server only if others can take its range,
        and rather a worker, which holds nothing; nobody if the membership could not train without it."""
        failing = [pair for pair, n in self._pairs.items() if n >= MAX_FAILURES]
        involved = Counter(task for pair in failing for task in pair if task in members)
        able = {
            name: (n, name in members.workers)
            for name, n in involved.items()
            if len(members.workers if name in members.workers else members.servers) > 1
        }
        return max(sorted(able), key=lambda name: able[name]) if able else None
