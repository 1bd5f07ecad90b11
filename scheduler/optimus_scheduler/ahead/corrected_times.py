"""What users are told of each job's start and end: the queue simulated forward, corrected by how earlier predictions
turned out. Pure.

The live service, its dry run and the simulator all call `corrected_times`; what it said of jobs that have ended since
(`judged`) corrects what it says next.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from optimus_models.calibration import AS_PREDICTED, Judged, Predicted, Widening
from optimus_scheduler.ahead.look_ahead import expected_steps, is_expected_to_end, look_ahead
from optimus_scheduler.ahead.queue import ExpectedTimes, Queue
from optimus_scheduler.allocate.policy import Policy
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.forecast.prices import seconds_of_budget
from optimus_scheduler.forecast.time_left import AFTER_A_LIMIT, correction, no_surer_than_steps, widened
from optimus_scheduler.model import BY_CLOCK, Interval
from optimus_scheduler.settings import Settings

ANY_TASK = ""
"""Jobs of all tasks wait in the same queue: their starts are judged as those of one task."""
_LEAST_SECONDS = 1.0
"""Shorter times are taken for this long: rounds and reports come seconds apart."""


class CorrectedTimes(NamedTuple):
    """What is said of one job."""

    shown: ExpectedTimes
    predicted: ExpectedTimes
    """The same before it was corrected ..."""
    by: Widening
    """... and how its time left was, ..."""
    start_by: Widening = AS_PREDICTED
    """... and its time until the start."""


def corrected_times(queue: Queue, policy: Policy, settings: Settings) -> dict[str, CorrectedTimes]:
    """Start and end of every job of the queue, by id. Deterministic."""
    found = look_ahead(queue, policy, settings)
    nothing = ExpectedTimes(None, None)  # of jobs that their owners paused
    return {
        one.id: _corrected(one, _sayable(one, found.get(one.id, nothing)), queue.now, settings)
        for one in queue.outlooks
    }


def _sayable(outlook: Outlook, times: ExpectedTimes) -> ExpectedTimes:
    """Of a job of unknown length no end, though the queue has to assume one. Nothing starts during an error's wait."""
    retry = outlook.job.retry
    if retry is not None and times.start is not None:
        times = times._replace(start=Interval(*(max(each, retry.at) for each in _bounds(times.start))))
    return times if is_expected_to_end(outlook) else times._replace(end=None)


def _corrected(outlook: Outlook, times: ExpectedTimes, now: float, settings: Settings) -> CorrectedTimes:
    job, left = outlook.job, times.left(now)
    start, start_by = _corrected_start(outlook, times, now)
    if left is None:
        return CorrectedTimes(times._replace(start=start), times, AS_PREDICTED, start_by)
    by = correction(job.experience.time, job.experience.task, life_part(now - job.submitted_at, left), left, moves=True)
    steps = expected_steps(outlook)
    if steps is not None and not outlook.present.is_empty and outlook.forecast.rule not in BY_CLOCK:
        by = no_surer_than_steps(by, left, steps)
    end = Interval(*(now + each for each in _bounds(widened(left, by))))
    if start is not None and times.start is not None and times.end is not None:
        # From a corrected start on it still takes as long: each end is at least that much later.
        bounds = zip(_bounds(end), _bounds(start), _bounds(times.start), _bounds(times.end), strict=True)
        end = Interval(*(max(late, begins + max(last - first, 0.0)) for late, begins, first, last in bounds))
    end = _within_its_limits(outlook, start, end, times.end, now, settings)
    return CorrectedTimes(times._replace(start=start, end=end), times, by, start_by)


def _within_its_limits(
    outlook: Outlook,
    start: Interval | None,
    end: Interval,
    foreseen: Interval | None,
    now: float,
    settings: Settings,
) -> Interval:
    """An end, POSIX seconds, no later than the job's limits of time, which runs from its first start on, and of money
    allow. `start`: the one that is expected; None: it has tasks. `foreseen`: the end before it was corrected, which
    knows when the limits begin to run for tasks that do not take part yet."""
    job, limit = outlook.job, outlook.job.spec.convergence.max_seconds
    paid = seconds_of_budget(job, outlook.minimum, settings)  # no size costs less
    if limit is None and paid == math.inf:
        return end
    starts = (now, now, now) if start is None else _bounds(start)
    latest = [at + paid for at in starts]
    if limit is not None:
        over = (at + limit if job.started_at is None else max(job.started_at + limit, at) for at in starts)
        latest = list(map(min, latest, over))
    latest = [each + after for each, after in zip(latest, _bounds(AFTER_A_LIMIT), strict=True)]
    if job.started_at is None and start is None and foreseen is not None:
        latest = list(map(max, latest, _bounds(foreseen)))
    return Interval(*map(min, _bounds(end), latest))


def _corrected_start(outlook: Outlook, times: ExpectedTimes, now: float) -> tuple[Interval | None, Widening]:
    """The first start; that of a job which was paused stays as it is, as nothing was learned of such ones."""
    job, wait = outlook.job, times.waiting(now)
    if wait is None or job.started_at is not None:
        return times.start, AS_PREDICTED
    by = correction(job.experience.start, ANY_TASK, life_part(now - job.submitted_at, wait), wait, moves=True)
    least = job.retry.at if job.retry is not None else now
    return Interval(*(max(now + each, least) for each in _bounds(widened(wait, by)))), by


def life_part(age: float, left: Interval) -> float:
    """The part of a job's life since its submission, or of its wait, that is over, if so much is left."""
    return age / max(age + left.mean, _LEAST_SECONDS)


def judged(job: str, task: str, age: float, predicted: Interval, true: float) -> Judged | None:
    """A predicted time as it was before its correction, and the seconds that were left in truth."""
    bounds = Predicted(*(max(each, _LEAST_SECONDS) for each in _bounds(predicted)))
    return Judged.of(job, task, life_part(age, predicted), bounds, max(true, _LEAST_SECONDS))


def _bounds(value: Interval) -> tuple[float, float, float]:
    return value.mean, value.low, value.high
