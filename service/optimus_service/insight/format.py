"""Figures as people say them, for sentences of the API, and its moments: dates and times in UTC."""

from __future__ import annotations

from datetime import UTC, datetime

from optimus_contract import answers
from optimus_scheduler.model.format import time_words


def span(seconds: answers.Interval) -> str:
    """About 5 min (4 min to 8 min, with a probability of 80 %)."""
    if seconds.high and not seconds.low:
        return f"at most {time_words(seconds.high)}"  # nothing is known from below
    about = f"about {time_words(seconds.mean)}"
    if seconds.low is None or seconds.high is None or seconds.low == seconds.mean == seconds.high:
        return about
    return f"{about} ({time_words(seconds.low)} to {time_words(seconds.high)} with 80 % probability)"


def size(allocation: answers.Allocation) -> str:
    """3 workers and 1 server; 3 workers, if there are no servers."""
    workers = counted(allocation.workers, "worker")
    return f"{workers} and {counted(allocation.servers, 'server')}" if allocation.servers else workers


def counted(count: int, thing: str) -> str:
    """1 worker, 2 workers."""
    return f"{count} {thing}{'s' * (count != 1)}"


def times(count: int) -> str:
    """Once, twice, 5 times."""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


# --- moments ---------------------------------------------------------------------------------------------------------

_LAST_MOMENT = 253_402_300_799.0
"""The end of the year 9999, POSIX seconds."""


def moment(seconds: float) -> datetime:
    """POSIX seconds as a date and time in UTC; the last one that can be said for any later one."""
    return datetime.fromtimestamp(min(seconds, _LAST_MOMENT), UTC)


def foreseen(seconds: float) -> datetime | None:
    """The same for a moment that was computed; None beyond the year 9999, which a job with a far limit may reach."""
    return moment(seconds) if seconds <= _LAST_MOMENT else None


def moment_or_none(seconds: float | None) -> datetime | None:
    """The same for a moment that may not have come."""
    return None if seconds is None else moment(seconds)
