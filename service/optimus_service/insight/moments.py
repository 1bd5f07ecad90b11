"""Moments as the API writes them: dates and times in UTC. Inside the service they are POSIX seconds."""

from __future__ import annotations

from datetime import UTC, datetime

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
