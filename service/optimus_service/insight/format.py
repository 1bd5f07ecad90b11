"""Numbers and moments as people say them, for sentences of the API; and numbers that JSON can say. Times are UTC."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from optimus_contract import answers
from optimus_contract.interval_words import interval_words, is_limit
from optimus_models.cost import Estimate
from optimus_scheduler.model import Interval
from optimus_scheduler.model.format import time_words


def span(seconds: answers.Interval) -> str:
    """About 5.2 min (4.0 to 8.1 with 80 % probability): see `interval_words`."""
    mean, low, high = seconds.mean, seconds.low, seconds.high
    if high is not None and is_limit(mean, low, high):
        return f"at most {time_words(high)}"
    words = interval_words(mean, low, high)
    if low is None or high is None or words.low == words.high:
        return f"about {words.mean}"
    return f"about {words.mean} ({words.low} to {words.high} with 80 % probability)"


def by_deadline(
    left: answers.Interval | None,
    until_due: float,
    *,
    has_begun: bool,
    is_said_missed: bool = False,
    is_claimed: bool = False,
) -> list[str]:
    """Whether a job that ends in `left` seconds meets a deadline in `until_due` seconds; nothing where its end is not
    known, or a mere limit. Of one that has not `has_begun` no step is measured: it is judged by its bounds alone.
    `is_said_missed`: its decision says so already, by what it would take at any size; then nothing else is said.
    `is_claimed`: its size is chosen to meet it."""
    if left is None or left.high is None or (left.low or 0.0) >= left.high or is_limit(left.mean, left.low, left.high):
        return []
    if is_said_missed and left.mean <= until_due:
        return []
    if left.high <= until_due:
        return ["By this it will probably meet its deadline."]
    if not has_begun and not is_said_missed and (left.low or 0.0) <= until_due:
        return ["By this it may meet or miss its deadline: no step of it is measured yet."]
    if left.mean <= until_due:
        return ["By this it may miss its deadline."]
    claimed = ["Its size is chosen by its steps and speed alone: its start, stops and doubts are counted here, too."]
    return ["By this it will probably miss its deadline.", *(claimed if is_claimed else [])]


def size(allocation: answers.Allocation) -> str:
    """3 workers and 1 server; 3 workers, if there are no servers; no worker."""
    workers = counted(allocation.workers, "worker") if allocation.workers else "no worker"
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
    """POSIX seconds as a date and time in UTC; the last one that can be said for any later one, 1970 for any before."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), _LAST_MOMENT), UTC)


def foreseen(seconds: float) -> datetime | None:
    """The same for a moment that was computed; None beyond the year 9999, which a job with a far limit may reach."""
    return moment(seconds) if seconds <= _LAST_MOMENT else None


def moment_or_none(seconds: float | None) -> datetime | None:
    """The same for a moment that may not have come."""
    return None if seconds is None else moment(seconds)


# --- numbers that JSON can say ---------------------------------------------------------------------------------------


def finite(value: float | None) -> float | None:
    """`value`, or None when it is NaN or infinite."""
    return value if value is not None and math.isfinite(value) else None


def finite_document(value: Any) -> Any:
    """A JSON document with None in place of every number that is not finite."""
    match value:
        case float():
            return finite(value)
        case Mapping():
            return {name: finite_document(part) for name, part in value.items()}
        case list() | tuple():
            return [finite_document(part) for part in value]
        case _:
            return value


def interval_body(value: Interval | Estimate | None) -> answers.Interval | None:
    """An interval as the API shows it; None when its mean is unknown or infinite."""
    if value is None or finite(value.mean) is None:
        return None
    return answers.Interval(mean=value.mean, low=finite(value.low), high=finite(value.high))
