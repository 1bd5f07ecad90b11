"""How long a job waits between a failure of its owner's code and the next attempt. Pure."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_RETRIES = 2
"""Failures after training began that a job survives unless its owner says otherwise: with the waits below, two outlast
a fault of five minutes."""
MAX_RETRIES = 20
"""What an owner may ask for: with the longest wait, three hours of trying."""

LONGEST_RETRY_SECONDS = 600.0
"""Waiting longer leaves a job idle that could train."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The waits before retry 1, 2, 3 ...: `first_seconds`, each `factor` times the one before, `longest_seconds` at
    most.

    30 s are enough for what goes by itself (memory of a GPU that a neighbour is about to free), 300 s more for a
    storage that is restarted.
    """

    first_seconds: float = 30.0
    factor: float = 10.0
    longest_seconds: float = LONGEST_RETRY_SECONDS

    def seconds(self, number: int) -> float:
        """The wait before retry `number`, which counts from 1."""
        exponent = min(max(number, 1), MAX_RETRIES) - 1
        return min(self.first_seconds * self.factor**exponent, self.longest_seconds)

    def is_in_time(self, number: int, now: float, limit_at: float) -> bool:
        """Whether retry `number`, after an error at `now`, begins before a limit of time is over."""
        return now + self.seconds(number) < limit_at


@dataclass(frozen=True, slots=True)
class Retry:
    """A job's next attempt after a failure."""

    number: int
    """It is the first, second ... retry of the job, ..."""
    most: int
    """... which may have so many."""
    at: float
    """When it may begin, POSIX seconds."""
    seconds: float
    """How long the wait is as a whole."""
    error: str
    """What its owner's code raised, in one line."""

    def is_due(self, now: float) -> bool:
        """Whether the wait is over. It also is when the end is further away than the whole wait: then somebody has
        set the clock back, and nobody knows how long the job has waited."""
        return not 0.0 < self.at - now <= self.seconds
