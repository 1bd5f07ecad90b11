"""How the pace of a run goes on from a step to its end, by ended runs that did the same work.

Some trainings change their pace on their own: sequences or images grow, a part of the network is set free, a cache is
full. A run's present speed says nothing of that, ended runs do. Of each it is known how long its steps took, part by
part (`RunCourse`); so it tells how many times as long a step took from here to its end as where the present speed was
measured. Of the logarithms of these ratios as much is believed as they are larger than their noise: their mean is that
of a normal distribution about 0 whose variance is estimated from them (empirical Bayes; the positive part of James and
Stein's estimator). One change of 3.5 times is believed after one run, 10 % that come and go are not after many.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from optimus_models.history import FloatArray
from optimus_models.speed.measurements import weighted_median

MOST_PARTS = 32
"""Parts of a run of which it is kept how long their steps took."""
_SPREAD, _SPREAD_COUNT = 0.5, 1.0
"""Believed spread of the logarithm of such a ratio among runs that do the same work, before any has shown it, and how
many runs' worth that belief is: a neighbour that comes or goes makes steps up to about twice as long."""
_MOST_LOG = 5.0
"""No ratio is believed that is larger than a factor of 150."""
_MOST_KNOTS = 17
"""Steps up to which it is said how the time is spread over those that are left."""


class RunCourse(NamedTuple):
    """How long an ended run took for its steps, without stops, evaluations and checkpoints."""

    steps: FloatArray
    """(n + 1,) increasing, from 0."""
    seconds: FloatArray
    """(n + 1,) from the first step to each of these."""

    @classmethod
    def of(cls, steps: Sequence[float], seconds_per_step: Sequence[float]) -> RunCourse | None:
        """By the seconds of a step about each of these steps; None where that is no course: fewer than two of them, or
        values that are none."""
        return _course_of(tuple(steps), tuple(seconds_per_step))

    def until(self, steps: FloatArray) -> FloatArray:
        """(m,) seconds from its first step to each of these; beyond its end at its last pace."""
        beyond = np.maximum(steps - self.steps[-1], 0.0)
        last = (self.seconds[-1] - self.seconds[-2]) / (self.steps[-1] - self.steps[-2])
        found: FloatArray = np.interp(steps, self.steps, self.seconds) + beyond * last
        return found

    def paces(self, steps: FloatArray) -> FloatArray:
        """(m,) mean seconds of a step between each two of these (m + 1,), which increase."""
        found: FloatArray = np.diff(self.until(steps)) / np.diff(steps)
        return found


@lru_cache(maxsize=4096)
def _course_of(steps: tuple[float, ...], paces: tuple[float, ...]) -> RunCourse | None:
    at, each = np.array(steps[: len(paces)], dtype=np.float64), np.array(paces[: len(steps)], dtype=np.float64)
    if len(at) < 2 or not (np.isfinite(at).all() and np.isfinite(each).all()):
        return None
    middles = (at[1:] + at[:-1]) / 2.0
    borders = np.concatenate([[0.0], middles, [2.0 * at[-1] - middles[-1]]])
    if not ((np.diff(borders) > 0).all() and (each > 0).all()):
        return None
    seconds = np.concatenate([[0.0], np.cumsum(np.diff(borders) * each)])
    return RunCourse(borders, seconds) if np.isfinite(seconds).all() else None


class CourseToCome(NamedTuple):
    """How the pace of a run goes on from a step to its end."""

    ratio: float = 1.0
    """How many times as long a step takes in the mean as the measured speed says."""
    doubt: float = 0.0
    """Sigma of its logarithm, beyond what any run's pace is in doubt."""
    knots: tuple[tuple[float, float], ...] = ()
    """Steps, increasing, from that one to the end, and after how many steps of the mean length each of them is made;
    both are the same at both ends. Empty: all of them take about as long."""

    def even(self, step: float) -> float:
        """The step at which the run would be if all its steps from that one on took as long as they do in the mean."""
        if not self.knots or not self.knots[0][0] < step < self.knots[-1][0]:
            return step
        place = bisect_right(self.knots, (step, math.inf))
        (first, first_even), (last, last_even) = self.knots[place - 1], self.knots[place]
        return first_even + (last_even - first_even) * (step - first) / (last - first)


AS_MEASURED = CourseToCome()


class Measured(NamedTuple):
    """Parts of a run by which its present speed is known: the steps at which each begins and ends, and its weight."""

    begins: FloatArray
    ends: FloatArray
    weights: FloatArray
    is_median: bool = False
    """Whether it is the median of the speeds of these parts, and not their geometric mean."""


def course_to_come(
    runs: Sequence[RunCourse], step: float, total: float, measured: Measured, sigma: float
) -> CourseToCome:
    """How a run goes on from `step` to its end at `total`, beyond it, by ended ones.

    `measured`: at least one part; `sigma`: of the logarithm of its mean pace by its present one, as it is without any.
    """
    steps = np.linspace(step, total, _MOST_KNOTS)
    if not runs or not (np.diff(steps) > 0).all():
        return AS_MEASURED
    present = np.array([_present_pace(run, measured) for run in runs])
    logs = [math.log(pace) for pace in (np.array([run.paces(steps[[0, -1]])[0] for run in runs]) / present).tolist()]
    part, mean, doubt = _believed(logs, sigma)
    if part <= 0.0:
        return AS_MEASURED
    relative = np.array([run.paces(steps) for run in runs]) / present[:, None]
    local = np.exp(part * np.clip(np.log(relative), -_MOST_LOG, _MOST_LOG).mean(axis=0))
    made = np.concatenate([[0.0], np.cumsum(local)])
    even = step + (total - step) * made / made[-1]
    knots = list(zip(steps.tolist(), even.tolist(), strict=True))
    knots[0], knots[-1] = (step, step), (total, total)
    return CourseToCome(math.exp(part * mean), doubt, tuple(knots))


def _present_pace(run: RunCourse, measured: Measured) -> float:
    """Seconds of a step of an ended run where that of the present one was measured, made of its parts in the same
    way."""
    speeds = (measured.ends - measured.begins) / (run.until(measured.ends) - run.until(measured.begins))
    if measured.is_median:
        return 1.0 / weighted_median(speeds, measured.weights)
    return math.exp(-float(np.average(np.log(speeds), weights=measured.weights)))


def _believed(logs: Sequence[float], sigma: float) -> tuple[float, float, float]:
    """Which part of the mean of these is believed, 0 to 1; the mean; and the doubt about that part of it, beyond
    `sigma`. The order of `logs` does not matter, to the last bit."""
    n = len(logs)
    bounded = [min(max(each, -_MOST_LOG), _MOST_LOG) for each in logs]
    mean = math.fsum(bounded) / n
    squares = math.fsum((each - mean) ** 2 for each in bounded)
    variance = (_SPREAD_COUNT * _SPREAD**2 + squares) / (_SPREAD_COUNT + n - 1)
    if mean**2 <= variance / n:
        return 0.0, mean, 0.0
    part = 1.0 - variance / n / mean**2
    return part, mean, math.sqrt(part * (variance / n + max(variance - sigma**2, 0.0)))
