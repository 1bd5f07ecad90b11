"""The answer to a job's deadline: whether it can be promised, by the queue simulated forward. Pure.

A deadline is *promised* when the job ends by it with a probability of 95 %, and *declined* when with less than 10 %.
Between the two nothing is said yet. A declined job is not refused: it competes like any other, and the earliest
deadline that could be promised is told.

What was promised stays promised: where not all claims can be met, those of promised deadlines are, in the order in
which they were promised (`allocate_with_quotas`). A promise is made beside all earlier ones, so that it breaks none.
Only a deadline is promised: other times that users are shown are predictions, which bind nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from optimus_scheduler.model import REACH, Interval

_SURE = 1.6449
"""Standard deviations from the middle of a normal distribution to its 95th percentile."""

_FARTHEST_SECONDS = 1e9
"""No deadline can be given that is further away."""


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
    """The earliest deadline that could be promised, POSIX seconds; None: the job's end is not known, or too far."""


def answer_to(deadline: float, left: Interval | None, now: float) -> DeadlineAnswer:
    """What is said of a job's deadline (POSIX seconds), given the seconds that are expected until its end."""
    if left is None:
        return DeadlineAnswer(Answer.DECLINED if deadline <= now else Answer.OPEN)
    within = surely_within(left)
    if now + within <= deadline:
        return DeadlineAnswer(Answer.PROMISED, now + within)
    answer = Answer.DECLINED if now + left.low > deadline else Answer.OPEN
    return DeadlineAnswer(answer, now + within if within <= _FARTHEST_SECONDS else None)


def surely_within(left: Interval) -> float:
    """95th percentile of the seconds left, by median and 90th: log-normal above the median, which is 1 s at least."""
    middle = max(left.mean, 1.0)
    return middle * float((max(left.high, middle) / middle) ** (_SURE / REACH))
