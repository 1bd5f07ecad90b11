"""What the latest forecast says of a job's end, and what a command announced of its own. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from optimus_contract.job import Convergence
from optimus_models.calibration import Widening
from optimus_models.speed.course import AS_MEASURED, CourseToCome
from optimus_scheduler.forecast.precedents import EARLY
from optimus_scheduler.forecast.time_left import time_left
from optimus_scheduler.model import Forecast, Interval
from optimus_service.observe.spec import limit_made
from optimus_service.store.records import DecisionRecord, JobRecord
from optimus_service.store.rounds.forecasts import known

MOST_PROGRESS = 0.99
"""A job that has not made all its steps is not at 100 %, whatever was predicted."""


def announced_beyond(job: JobRecord, step: int) -> int | None:
    """How many steps a command announced that ends by itself at this one, long before; None: it does not."""
    total: int | None = (job.profile or {}).get("total_steps")
    is_limited = replace(job.asked.convergence, command_ends=None) != Convergence()
    return total if total and not is_limited and step < EARLY * total else None


REACHED = {
    "max_steps": "it has made all the steps of its limit",
    "max_epochs": "it has made all the epochs of its limit",
    "max_seconds": "the time of its limit is over",
    "max_cost": "its budget is spent",
}
"""Limits that a job has reached, by their field."""


def reached_limit(job: JobRecord, decision: DecisionRecord | None, now: float) -> str | None:
    """The field of the limit by which a job that would train on ends with the step that it goes on from; None: none is
    reached, as far as is known."""
    limits, made = job.asked.convergence, limit_made(job)
    if job.is_tracked or made is not None:
        return made  # a tracked one ends where it runs
    if limits.max_seconds is not None and job.started_at is not None and now >= job.started_at + limits.max_seconds:
        return "max_seconds"
    ends = decision is not None and decision.forecast.converged and decision.forecast.rule == "max_cost"
    return "max_cost" if ends and limits.max_cost is not None else None


class End(NamedTuple):
    """What a decision's forecast says of the end."""

    total: Interval
    made_at: float
    """The step that the job was at."""
    seconds_per_step: Interval | None
    """None: no speed is measured; by one that was calculated no time is predicted."""
    widening: Widening
    by_time: bool
    """A limit of time will end it, unless something else does before ..."""
    soonest: float
    """... not before this part of what is left; 1: nothing else does."""
    is_guessed: bool
    """Nothing says where the end is: the job is expected to go on for as long as it has."""
    seconds_after_steps: Interval | None
    """As ended runs like it took from their last step to their end."""
    course: CourseToCome = AS_MEASURED
    """How its pace was expected to go on from `made_at`."""
    paid_seconds: Interval | None = None
    """Time left when the decision was made, where its budget ends it: that pays for seconds, not for steps."""

    @classmethod
    def of(cls, forecast: Forecast) -> End | None:
        """None when nothing is known of the end."""
        total, left = known(forecast.total_steps), known(forecast.remaining_steps)
        if total is None:
            return None
        # Where its loss may end it before, the end is told by steps, as every other.
        is_paid = forecast.rule == "max_cost" and left is not None and left.mean == left.high
        return cls(
            total,
            0.0 if left is None else total.mean - left.mean,
            known(forecast.seconds_per_step),
            forecast.calibration.seconds,
            forecast.rule == "max_seconds",
            1.0 if left is None or not 0 < left.low < left.mean else left.low / left.mean,
            forecast.rule is None and left is not None and left.mean > 0,
            known(forecast.seconds_after_steps),
            forecast.course,
            known(forecast.remaining_seconds) if is_paid else None,
        )

    def even_left(self, left: Interval, step: float) -> Interval:
        """Of steps that are left from `step` on, as many steps of the mean length as take as long."""
        if not self.course.knots:
            return left
        here = self.course.even(step)
        return Interval(*(self.course.even(step + each) - here for each in (left.mean, left.low, left.high)))

    def seconds(self, left: Interval, drift: float = 1.0) -> Interval | None:
        """Of so many steps of the mean length (`even_left`); each takes `drift` times as long as the forecast said."""
        if self.seconds_per_step is None:
            return None
        pace = self.seconds_per_step
        return time_left(left, Interval(drift * pace.mean, drift * pace.low, drift * pace.high), self.widening)


def part_done(step: int, total: Interval) -> float | None:
    """0 to `MOST_PROGRESS`; None where the total is not known."""
    return min(step / total.mean, MOST_PROGRESS) if total.mean > 0 else None
