"""What the error of a predicted time left comes from: parts of the truth are put in the place of what was predicted.

The queues that a simulation looked ahead from are kept, and looked ahead from again, by the very code of the service,
when all jobs have ended and the truth is known. An error has three causes: the steps that the job has left, its speed
at the size that it has, and the course of things: the sizes that it will have, stops and waits, which depend on other
jobs and on who comes. Steps and speeds are told to the look ahead. The course is told by going along the job's own: so
far as it really came in a time, it comes in that time, times the error of its speed at present.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimus_models.cost import Estimate
from optimus_scheduler.ahead.corrected_times import CorrectedTimes
from optimus_scheduler.ahead.look_ahead import expected_steps, look_ahead
from optimus_scheduler.ahead.queue import Arrival, Queue, as_fresh
from optimus_scheduler.allocate.policy import Policy
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.forecast.speeds import Speeds
from optimus_scheduler.model import Allocation, Interval, Plan, Snapshot
from optimus_simulator.options import Options
from optimus_simulator.replay import Replay
from optimus_simulator.running import RunningJob
from optimus_simulator.shown_predictions import IN_LIFE, Judged
from optimus_simulator.trace import Trace

PARTS = (0.25, 0.5)
"""Of a life, at which predictions are looked into: those that have bars of their errors."""
_LEAST_STEPS = 1e-6
_LATER = 24
"""So many later jobs are told as are foreseen."""


class Place(NamedTuple):
    """How far a job was."""

    at: float
    step: float


class WatchedReplay(Replay):
    """A simulation that keeps what it looked ahead from, and what came."""

    def __init__(self, trace: Trace, policy: Policy, options: Options, *, seed: int) -> None:
        super().__init__(trace, policy, options, seed=seed, progress=self._watch)
        self._queues: dict[float, Queue] = {}
        self._courses: defaultdict[str, list[Place]] = defaultdict(list)
        """Of each job, after each round."""
        self._speeds: dict[tuple[str, float], float] = {}
        """Of the jobs that train, by the instant of a look: mean steps/s over the rest with what they have then."""
        self._first: dict[str, Outlook] = {}
        """Each job as it was first looked at."""

    def _expected_times(self, snapshot: Snapshot, outcome: Plan) -> dict[str, CorrectedTimes]:
        queue = self._queue(snapshot, outcome)
        self._queues[snapshot.now] = queue
        self._first = {one.id: one for one in queue.outlooks} | self._first
        return super()._expected_times(snapshot, outcome)

    def _watch(self, _ended: int, now: float) -> None:
        for job in self.active.values():
            self._courses[job.id].append(Place(now, job.training.step))
            if now in self._queues and job.shape:
                left, seconds = job.training.steps_left(), job.training.seconds_left(job.shape, job.factor)
                self._speeds[job.id, now] = left / seconds

    # --- when it is over ---------------------------------------------------------------------------------------------

    def attribution(self) -> list[dict[str, Any]]:
        """Median error of the time left before its correction, and mean of |ln(predicted / true)|, by what is told; of
        jobs with and without an ended one of their task."""
        errors: defaultdict[tuple[float, bool, str], list[float]] = defaultdict(list)
        for job in self._ended.values():
            for one in job.judged_predictions():
                if one.kind == IN_LIFE and one.part in PARTS and one.prediction.uncorrected is not None:
                    queue = self._queues[one.prediction.at]
                    outlook = next(each for each in queue.outlooks if each.id == job.id)
                    for told, left in self._by_what_is_told(queue, outlook, one):
                        log = math.log(max(left, 1.0) / max(one.true_left, 1.0))
                        errors[one.part, bool(outlook.job.similar), told].append(log)
        return [
            {
                "part": part,
                "ended_ones": has_ended,
                "told": told,
                "jobs": len(logs),
                "median_error": float(np.median(np.abs(np.expm1(logs)))),
                "mean_log_error": float(np.mean(np.abs(logs))),
                "bias": float(np.median(logs)),
            }
            for (part, has_ended, told), logs in sorted(errors.items(), key=lambda each: each[0][:2])
        ]

    def _by_what_is_told(self, queue: Queue, outlook: Outlook, one: Judged) -> Iterator[tuple[str, float]]:
        own, everybody = {outlook.id}, {each.id for each in queue.outlooks}
        nobody: set[str] = set()
        assert one.prediction.uncorrected is not None
        yield "nothing", one.prediction.uncorrected.mean
        for told, steps, speeds, later in (
            ("steps", own, nobody, False),
            ("speed", nobody, own, False),
            ("steps and speed", own, own, False),
            ("steps and speeds of all", everybody, everybody, False),
            ("steps and speeds of all, later jobs", everybody, everybody, True),
        ):
            left = self._looked(self._told(queue, steps, speeds, later=later), outlook.id)
            if left is not None:
                yield told, left
        expected, wrong_by = expected_steps(outlook), self._speed_error(queue, outlook)
        if expected is not None:
            yield "course", self._along(outlook.id, queue.now, expected.mean / wrong_by)
            yield "course and speed", self._along(outlook.id, queue.now, expected.mean)
        yield "course and steps", self._along(outlook.id, queue.now, self._steps_left(outlook) / wrong_by)

    def _looked(self, queue: Queue, job_id: str) -> float | None:
        left = look_ahead(queue, self._policy, self._settings)[job_id].left(queue.now)
        return None if left is None else left.mean

    def _told(self, queue: Queue, steps: Collection[str], speeds: Collection[str], *, later: bool) -> Queue:
        """The queue with the truth about the `steps` left and the present `speeds` of these jobs, and who comes."""
        outlooks = []
        for outlook in queue.outlooks:
            told = outlook
            if outlook.id in steps:
                left, forecast = self._steps_left(outlook), outlook.forecast
                known = forecast._replace(rule=forecast.rule or "max_steps")
                told = told._replace(forecast=known.with_steps_left(Interval(left, left, left)))
            if outlook.id in speeds:
                told = told._replace(speeds=_Told(outlook.speeds, self._speed_error(queue, outlook)))
            outlooks.append(told)
        arrivals = self._later_than(queue.now) if later else queue.arrivals
        return replace(queue, outlooks=tuple(outlooks), arrivals=arrivals)

    def _later_than(self, now: float) -> Sequence[Arrival]:
        """Who really comes, of those whose speeds were known when they came: of others none are foreseen, either."""
        coming = sorted((job.entry.submitted_at, job.id) for job in self._ended.values())
        known = [(at, job_id) for at, job_id in coming if at > now and job_id in self._first]
        known = [each for each in known if self._first[each[1]].speeds.is_measured]
        return [
            Arrival(at, as_fresh(self._first[job_id], job_id, at), self._ended[job_id].training.step)
            for at, job_id in known[:_LATER]
        ]

    def _steps_left(self, outlook: Outlook) -> float:
        return max(self._ended[outlook.id].training.step - outlook.job.step, _LEAST_STEPS)

    def _speed_error(self, queue: Queue, outlook: Outlook) -> float:
        """How many times as fast as in truth it was predicted to be at present; 1 for one that does not train."""
        true = self._speeds.get((outlook.id, queue.now))
        return 1.0 if true is None else outlook.speeds.at(queue.sizes.get(outlook.id, outlook.present)) / true

    def _along(self, job_id: str, now: float, steps: float) -> float:
        """Seconds from `now` on that so many steps take along the job's course; beyond its end at its last speed."""
        return seconds_along(self._course(self._ended[job_id]), now, steps)

    def _course(self, job: RunningJob) -> list[Place]:
        assert job.finished_at is not None, "all jobs have ended"
        before = [place for place in self._courses[job.id] if place.at < job.finished_at]
        return [*before, Place(job.finished_at, job.training.step)]


def seconds_along(course: Sequence[Place], now: float, steps: float) -> float:
    """Seconds from `now` on that so many steps take along a course; beyond its end at its last speed."""
    rest = [place for place in course if place.at >= now]
    times, done = np.array(rest).T
    goal = float(done[0]) + steps
    if goal <= done[-1]:
        return float(np.interp(goal, done, times)) - now
    speeds = [(b.step - a.step) / (b.at - a.at) for a, b in pairwise(rest) if b.step > a.step and b.at > a.at]
    return float(times[-1]) - now + ((goal - float(done[-1])) / speeds[-1] if speeds else math.inf)


class _Told(Speeds):
    """Predicted speeds of one job, that at its present size as it is in truth, and without doubt."""

    def __init__(self, predicted: Speeds, wrong_by: float) -> None:
        super().__init__(predicted.model, predicted.source)
        self._predicted, self._wrong_by = predicted, wrong_by

    def at(self, allocation: Allocation) -> float:
        return self._predicted.at(allocation) / self._wrong_by

    def estimate(self, allocation: Allocation) -> Estimate:
        return Estimate.exactly(self.at(allocation))

    def compared(self, size: Allocation, other: Allocation) -> Estimate:
        return self._predicted.compared(size, other)

    def many(self, workers: NDArray[np.int64], servers: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._predicted.many(workers, servers) / self._wrong_by

    def batch_at(self, workers: int) -> int | None:
        return self._predicted.batch_at(workers)

    def with_batch(self, workers: int, batch: int) -> float:
        return self._predicted.with_batch(workers, batch) / self._wrong_by
