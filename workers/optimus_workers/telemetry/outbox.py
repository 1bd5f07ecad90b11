"""The bounded queue of samples that wait to be sent, and when the next attempt is due. Pure: time is passed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from optimus_workers.telemetry.samples import Sample

CAPACITY = 10_000
"""About 40 minutes of samples at the densest; some 10 MB."""
BATCH_SAMPLES = 500
"""Well below what the service accepts in one post (1000 samples, 1 MiB)."""
POST_PERIOD_SECONDS = 1.0
"""Seconds between two posts: what the service sees is late by this at most."""
FIRST_RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 5.0
"""A service that came back hears of us within this time; the attempts cost next to nothing."""


class Outbox:
    """Samples in order of age. At most one batch is out at a time; when full, the oldest are dropped and counted."""

    def __init__(self, capacity: int = CAPACITY, post_period_seconds: float = POST_PERIOD_SECONDS) -> None:
        self._capacity = capacity
        self._period = post_period_seconds
        self._waiting: deque[Sample] = deque()
        self._out: list[Sample] = []
        self._due_at = float("-inf")
        self._hurried = False
        self._retry_seconds = FIRST_RETRY_SECONDS
        self.n_sent = 0
        self.n_dropped = 0
        """Lost because the service was away for too long."""
        self.n_refused = 0
        """Lost because the service did not want them."""

    @property
    def is_empty(self) -> bool:
        """Nothing waits and nothing is out."""
        return not self._waiting and not self._out

    def put(self, samples: Iterable[Sample]) -> None:
        """Add samples, the youngest last."""
        self._waiting.extend(samples)
        self._drop_oldest()

    def seconds_until_due(self, now: float) -> float | None:
        """How long to wait before the next batch should be taken; None when there is nothing to send."""
        return max(0.0, self._due_at - now) if self._waiting else None

    def hurry(self) -> None:
        """Make the next attempt due at once, and leave out the period until all that waits is sent."""
        self._due_at = float("-inf")
        self._hurried = not self.is_empty

    def take(self) -> list[Sample]:
        """The oldest samples, to be sent now. To be followed by `sent`, `refused` or `failed`."""
        assert not self._out, "one batch is out already"
        self._out = [self._waiting.popleft() for _ in range(min(BATCH_SAMPLES, len(self._waiting)))]
        return self._out

    def sent(self, now: float) -> None:
        """The batch that is out arrived."""
        self.n_sent += len(self._out)
        self._settle(now)

    def refused(self, now: float) -> None:
        """The service will not take the batch that is out, ever."""
        self.n_refused += len(self._out)
        self._settle(now)

    def failed(self, now: float) -> None:
        """The batch that is out may not have arrived: it waits again, and the pause before the next attempt doubles."""
        self._waiting.extendleft(reversed(self._out))
        self._out = []
        self._drop_oldest()
        self._due_at = now + self._retry_seconds
        self._retry_seconds = min(2 * self._retry_seconds, MAX_RETRY_SECONDS)

    def _settle(self, now: float) -> None:
        self._out = []
        self._retry_seconds = FIRST_RETRY_SECONDS
        self._hurried = self._hurried and not self.is_empty
        piled_up = len(self._waiting) >= BATCH_SAMPLES
        self._due_at = now if self._hurried or piled_up else now + self._period

    def _drop_oldest(self) -> None:
        while len(self._waiting) > self._capacity:
            self._waiting.popleft()
            self.n_dropped += 1
