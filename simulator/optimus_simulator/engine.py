"""The clock and the agenda of a simulation: events happen in order of time, and nothing else makes time pass."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

Handler = Callable[[], None]

ARRIVAL, CHANGE, ROUND = 0, 1, 2
"""Priorities at one instant: jobs arrive, then tasks and jobs end or fail, then the scheduler looks."""


class Engine:
    """A heap of (time, priority, number, handler). The number makes the order of equal events that of their making."""

    def __init__(self) -> None:
        self.now = 0.0
        self._agenda: list[tuple[float, int, int, Handler]] = []
        self._numbers = count()

    def at(self, time: float, priority: int, handler: Handler) -> None:
        """Call `handler` when the clock reads `time`; never in the past."""
        assert time >= self.now, f"an event for {time} was made at {self.now}"
        heapq.heappush(self._agenda, (time, priority, next(self._numbers), handler))

    @property
    def next_time(self) -> float | None:
        """When the next event happens; None when there is none."""
        return self._agenda[0][0] if self._agenda else None

    def step(self) -> None:
        """Let the next event happen."""
        self.now, _, _, handler = heapq.heappop(self._agenda)
        handler()
