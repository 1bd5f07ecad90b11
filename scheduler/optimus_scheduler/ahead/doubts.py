"""How doubtful starts and ends are in a trajectory: each job's own doubt, and that of the ends that it waits for. Pure.

A job that waits starts when another ends, so its start is as doubtful as that end; and its own end is as doubtful as
its start and its work together. Where it waits for no end but until others are made smaller for it, any round may do
that: such waits are exponential, with the foreseen one as their median. Doubts of different jobs are independent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.ahead.queue import Work
from optimus_scheduler.ahead.trajectory import Trajectory
from optimus_scheduler.forecast.time_left import LIMIT_ENDS_SECONDS, LIMIT_NOTICED_SECONDS

FloatArray = NDArray[np.float64]

LEVELS = 9
"""Equally likely parts of a distribution; each is looked at in its middle."""
_WAITS = np.array([math.log1p(-(level + 0.5) / LEVELS) / math.log(0.5) for level in range(LEVELS)])
"""Of an exponential distribution with a median of 1."""
_DEVIATIONS = [NormalDist().inv_cdf((level + 0.5) / LEVELS) for level in range(LEVELS)]


def levels_of(work: Work) -> FloatArray:
    """(LEVELS,), equally likely, increasing."""
    levels: FloatArray = np.array([work.at(deviation) for deviation in _DEVIATIONS])
    return levels


class Doubts:
    """Of all jobs along one trajectory, that was run."""

    def __init__(
        self, trajectory: Trajectory, work: Sequence[Work], fails: Mapping[int, Work] = MappingProxyType({})
    ) -> None:
        """`work`: of the jobs of the queue; `fails`: of those that leave their room before their end, until then."""
        self._trajectory, self._work, self._fails = trajectory, work, fails
        self._starts: dict[int, FloatArray] = {}
        self._ends: dict[int, FloatArray] = {}

    def starts(self, job: int) -> FloatArray:
        """Instants (LEVELS,) at which it gets its first tasks, increasing; inf where it does not."""
        if job not in self._starts:
            self._starts[job] = self._own_starts(job)
        return self._starts[job]

    def may_start_at(self, job: int) -> float:
        """The end of its wait after an error; the present without one, or after it."""
        return max(self._trajectory.began, self._trajectory.may_start_at(job))

    def _own_starts(self, job: int) -> FloatArray:
        cause, at = self._trajectory.cause_of(job), self._trajectory.start_of(job)
        if cause is not None:
            return _sum(self.predicted_ends(cause.job), cause.lag * _WAITS)
        certain = self.may_start_at(job)
        if self._trajectory.is_planned or not certain < at < math.inf:
            return np.full(LEVELS, at)
        return certain + (at - certain) * _WAITS

    def ends(self, job: int) -> FloatArray:
        """Instants (LEVELS,) at which it ends, increasing."""
        if job not in self._ends:
            own, start = self._own_ends(job), self._trajectory.start_of(job)
            if self._trajectory.began < start < math.inf:
                own = _sum(self.starts(job), self.takes(job))
            self._ends[job] = own
        return self._ends[job]

    def ends_or_undisturbed(self, job: int) -> FloatArray:
        """Instants at which a job that has tasks ends. A pause is foreseen of rounds that are to come: where it loses
        its tasks in this trajectory, it may as likely keep what it has."""
        ends, kept = self.ends(job), self._trajectory.progress.end_without_pause(job, self._levels(job))
        kept = ends if kept is None else np.minimum(kept, self._limits(job))
        both: FloatArray = np.concatenate([ends, kept])
        return both

    def takes(self, job: int) -> FloatArray:
        """Seconds (LEVELS,) from its start to its end, increasing; inf where it does not start."""
        at = self._trajectory.start_of(job)
        return self._own_ends(job) - at if at < math.inf else np.full(LEVELS, math.inf)

    def predicted_ends(self, job: int) -> FloatArray:
        """The same for those who wait for it: a job of a made-up length is not assumed to end before its limit of
        time, inf without one; and one that fails leaves its room with that."""
        if job in self._fails:
            failed: FloatArray = self._trajectory.progress.end(job, levels_of(self._fails[job]))
            return np.minimum(failed, self._trajectory.limit_of(job))
        return np.full(LEVELS, self._trajectory.limit_of(job)) if self._work[job].is_made_up else self.ends(job)

    def _own_ends(self, job: int) -> FloatArray:
        """Started as in this trajectory."""
        ends: FloatArray = np.minimum(self._trajectory.progress.end(job, self._levels(job)), self._limits(job))
        return ends

    def _limits(self, job: int) -> FloatArray:
        """Instants (LEVELS,) at which its limit of time or money ends it: about a moment after that, some doubt."""
        after = np.minimum(LIMIT_NOTICED_SECONDS * _WAITS, LIMIT_ENDS_SECONDS)
        limits: FloatArray = self._trajectory.limit_of(job) - LIMIT_NOTICED_SECONDS + after
        return limits

    def _levels(self, job: int) -> FloatArray:
        """Steps (LEVELS,) after which it ends; inf: its limit of time or money ends it."""
        work = self._work[job]
        levels = levels_of(work)
        return np.where(levels >= work.median, np.inf, levels) if work.is_until_limit else levels

    def awaited(self, job: int) -> int | None:
        """The job with tasks by whose end it starts, at once or after others in between."""
        cause, first = self._trajectory.cause_of(job), None
        while cause is not None:
            first, cause = cause.job, self._trajectory.cause_of(cause.job)
        return first if first is not None and self._trajectory.start_of(first) <= self._trajectory.began else None

    def is_at_once(self, job: int) -> bool:
        """Whether it starts with the end of the job that it awaits, not later: as with that of one that started in
        between, of a guessed one, or where another loses tasks to it."""
        cause = self._trajectory.cause_of(job)
        return cause is not None and cause.job == self.awaited(job) and not cause.lag


def _sum(one: FloatArray, other: FloatArray) -> FloatArray:
    """(LEVELS,) of the sum of two (LEVELS,) that are independent, increasing."""
    levels: FloatArray = np.sort(np.add.outer(one, other), axis=None)[LEVELS // 2 :: LEVELS]
    return levels
