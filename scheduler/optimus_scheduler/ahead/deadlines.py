"""The answer to a job's deadline: whether it can be promised, by the queue simulated forward. Pure.

A deadline is *promised* when the job ends by it with a probability of 95 %, and *declined* when with less than 10 %.
Between the two nothing is said yet. A declined job is not refused: it competes like any other, and the earliest
deadline that could be promised is told.

What was promised stays promised: claims of promised deadlines are met before those of others, in the order in which
they were promised (`allocate_with_quotas`). A promise is made beside all earlier ones, so that it breaks none.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from optimus_scheduler.ahead.world import REACH
from optimus_scheduler.model import Interval

_SURE = 1.6449
"""Standard deviations from the middle of a normal distribution to its 95th percentile."""


class Answer(StrEnum):
    """What is said of a deadline."""

    PROMISED = "promised"
    DECLINED = "declined"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class DeadlineAnswer:
    """The answer to one deadline at one instant."""

    answer: Answer
    earliest: float | None = None
    """The earliest deadline that could be promised, POSIX seconds; None: nothing is known of the job's end."""


def answer_to(deadline: float, left: Interval | None, now: float) -> DeadlineAnswer:
    """What is said of a job's deadline (POSIX seconds), given the seconds that are expected until its end."""
    if left is None:
        return DeadlineAnswer(Answer.DECLINED if deadline <= now else Answer.OPEN)
    earliest = now + surely_within(left)
    if earliest <= deadline:
        return DeadlineAnswer(Answer.PROMISED, earliest)
    return DeadlineAnswer(Answer.DECLINED if now + left.low > deadline else Answer.OPEN, earliest)


def surely_within(left: Interval) -> float:
    """The 95th percentile of the seconds left, by their median and 90th percentile: log-normal above the median."""
    middle = max(left.mean, 1e-9)
    return middle * float((max(left.high, middle) / middle) ** (_SURE / REACH))
