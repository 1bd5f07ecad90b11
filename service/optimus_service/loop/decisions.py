"""Which decisions of a round are stored: those that say something new. The one before holds until then."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable

from optimus_scheduler.model import Decision, Interval, Plan
from optimus_service.store.records import DecisionRecord, JobRecord

NEAR = 0.05
"""Part by which a number of a forecast may have moved and still counts as the same: as a job comes to its end, what is
left of it moves through some sixty such steps, and not through one for each round."""
_NUMBERS = re.compile(r"\d[\d.,]*")


class News:
    """Remembers of each active job the decision that was stored last. Used by one thread."""

    def __init__(self) -> None:
        self._stored: dict[str, tuple[Decision, bool]] = {}
        self._fence: int | None = None

    def of(self, plan: Plan, fence: int, without_end: Container[str] = ()) -> list[Decision]:
        """The decisions of the plan that are to be stored; all of the first one under each fencing token, as somebody
        else may have stored others before. `without_end`: ids of jobs of which nothing tells when they end."""
        if fence != self._fence:
            self._fence, self._stored = fence, {}
        return [each for each in plan.decisions if not self._is_known(each, each.job_id in without_end)]

    def stored(self, news: Iterable[Decision], plan: Plan, without_end: Container[str] = ()) -> None:
        """The `news` of this plan are in the database. Jobs without a decision are forgotten."""
        self._stored |= {each.job_id: (each, each.job_id in without_end) for each in news}
        active = {each.job_id for each in plan.decisions}
        self._stored = {job_id: each for job_id, each in self._stored.items() if job_id in active}

    def _is_known(self, decision: Decision, is_without_end: bool) -> bool:
        before, was_without_end = self._stored.get(decision.job_id, (None, False))
        return before is not None and was_without_end == is_without_end and says_the_same(before, decision)


def says_the_same(before: Decision, after: Decision) -> bool:
    """Whether a reader of the earlier decision of a job knows the later one: what was decided and why are equal, and
    all numbers are near."""
    if _decided(before) != _decided(after):
        return False
    if before.message != after.message and not _say_the_same(before.message, after.message):
        return False
    earlier, later = _numbers(before), _numbers(after)
    return earlier == later or all(map(_are_near, earlier, later))  # of most jobs they are equal


def _decided(decision: Decision) -> tuple[object, ...]:
    forecast = decision.forecast
    believed = forecast.rule, forecast.converged, forecast.speed_from, forecast.finished_runs
    return decision.allocation, decision.previous, decision.reason, decision.batch, believed


def _say_the_same(before: str, after: str) -> bool:
    """Whether the words of two messages are equal, and their numbers near: as a quota that is told in one moves."""
    if _NUMBERS.sub("#", before) != _NUMBERS.sub("#", after):
        return False
    pairs = zip(_NUMBERS.findall(before), _NUMBERS.findall(after), strict=True)
    return all(was == is_ or _is_near(_as_number(was), _as_number(is_)) for was, is_ in pairs)


def _as_number(text: str) -> float:
    """`1,024.5` and the like; NaN of what is none, such as a version."""
    try:
        return float(text.rstrip(".,").replace(",", ""))
    except ValueError:
        return math.nan


_Number = Interval | float | None


def _numbers(decision: Decision) -> tuple[_Number, ...]:
    forecast = decision.forecast
    intervals = forecast.total_steps, forecast.remaining_steps, forecast.remaining_seconds, forecast.cost
    return decision.gain, decision.next_gain, forecast.steps_per_second, *intervals


def _are_near(before: _Number, after: _Number) -> bool:
    """Bound by bound, of intervals."""
    if isinstance(before, Interval) or isinstance(after, Interval):
        return all(map(_is_near, *(each if isinstance(each, Interval) else (None,) * 3 for each in (before, after))))
    return _is_near(before, after)


def _is_near(before: float | None, after: float | None) -> bool:
    """Equal numbers are near; those that are missing, infinite or NaN only then."""
    if before is None or after is None:
        return before is after
    if not (math.isfinite(before) and math.isfinite(after)):
        return repr(before) == repr(after)
    return abs(after - before) <= NEAR * abs(before)


def decision_records(
    decisions: Iterable[Decision], at: float, jobs: Iterable[JobRecord], without_end: Container[str] = ()
) -> list[DecisionRecord]:
    """One row per decision; `jobs`: as they were when it was made; `without_end`: as for `News.of`."""
    step_at = {job.id: job.step_at for job in jobs}
    return [_record(each, at, step_at.get(each.job_id), each.job_id in without_end) for each in decisions]


def _record(decision: Decision, at: float, step_at: float | None, is_without_end: bool) -> DecisionRecord:
    return DecisionRecord(
        job_id=decision.job_id,
        at=at,
        allocation=decision.allocation,
        previous=decision.previous,
        reason=decision.reason.value,
        message=decision.message,
        gain=decision.gain,
        next_gain=decision.next_gain,
        batch=decision.batch,
        forecast=decision.forecast,
        step_at=step_at,
        is_without_end=is_without_end,
    )
