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
from collections.abc import Callable, Sequence
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


_FAR = 1e9
"""So many times as far as its end a run is taken to have gone on at its last pace."""


class RunCourse(NamedTuple):
    """How long an ended run took for its steps, without stops, evaluations and checkpoints; beyond its end at its last
    pace."""

    steps: FloatArray
    """(n + 2,) increasing, from 0; the last but one is its end."""
    seconds: FloatArray
    """(n + 2,) from the first step to each of these."""

    @classmethod
    def of(cls, steps: Sequence[float], seconds_per_step: Sequence[float]) -> RunCourse | None:
        """By the seconds of a step about each of these steps; None where that is no course: fewer than two of them, or
        values that are none."""
        return _course_of(tuple(steps), tuple(seconds_per_step))

    def until(self, steps: FloatArray) -> FloatArray:
        """(m,) seconds from its first step to each of these."""
        found: FloatArray = np.interp(steps, self.steps, self.seconds)
        return found


@lru_cache(maxsize=8192)
def _course_of(steps: tuple[float, ...], paces: tuple[float, ...]) -> RunCourse | None:
    at, each = np.array(steps[: len(paces)], dtype=np.float64), np.array(paces[: len(steps)], dtype=np.float64)
    if len(at) < 2 or not (np.isfinite(at).all() and np.isfinite(each).all()):
        return None
    with np.errstate(over="ignore"):
        middles = (at[1:] + at[:-1]) / 2.0
        end = 2.0 * at[-1] - middles[-1]
        borders = np.concatenate([[0.0], middles, [end, _FAR * end]])
        parts = np.diff(borders)
        seconds = np.concatenate([[0.0], np.cumsum(parts * np.append(each, each[-1]))])
    is_course = (parts > 0).all() and (each > 0).all() and np.isfinite(borders).all() and np.isfinite(seconds).all()
    return RunCourse(borders, seconds) if is_course else None


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
    runs: Sequence[RunCourse], step: float, total: float, measured: Measured, sigma_of: Callable[[float], float]
) -> CourseToCome:
    """How a run goes on from `step` to its end at `total`, beyond it, by ended ones.

    `measured`: at least one part; `sigma_of`: of the logarithm of the mean pace by the present one, as it is without
    any, of a run that has trained for so many seconds.
    """
    steps = np.linspace(step, total, _MOST_KNOTS)
    if not runs or not (steps[1:] > steps[:-1]).all():
        return AS_MEASURED
    asked, n_parts = np.concatenate([steps, measured.begins, measured.ends]), len(measured.ends)
    until = np.array([run.until(asked) for run in runs])  # (r, 17 + 2 n)
    took = until[:, -n_parts:] - until[:, -2 * n_parts : -n_parts]
    if not ((took > 0).all() and (until[:, 1:_MOST_KNOTS] > until[:, : _MOST_KNOTS - 1]).all()):
        return AS_MEASURED  # so far beyond their ends that numbers have no room for a step
    present = _present_paces((measured.ends - measured.begins) / took, measured)
    until = until[:, :_MOST_KNOTS]
    logs = (np.log((until[:, -1] - until[:, 0]) / (total - step)) - present).tolist()
    part, mean, doubt = _believed(logs, sigma_of(math.fsum(until[:, 0].tolist()) / len(runs)))
    if part <= 0.0:
        return AS_MEASURED
    relative = np.log((until[:, 1:] - until[:, :-1]) / (steps[1:] - steps[:-1])) - present[:, None]
    local = np.exp(part * np.clip(relative, -_MOST_LOG, _MOST_LOG).mean(axis=0))
    made = np.concatenate([[0.0], np.cumsum(local)])
    even = step + (total - step) * made / made[-1]
    knots = list(zip(steps.tolist(), even.tolist(), strict=True))
    knots[0], knots[-1] = (step, step), (total, total)
    return CourseToCome(math.exp(part * mean), doubt, tuple(knots))


def _present_paces(speeds: FloatArray, measured: Measured) -> FloatArray:
    """(r,) logarithms of the seconds of a step of ended runs where that of the present one was measured, by their
    `speeds` (r, n) in its parts, made of these in the same way."""
    if measured.is_median:
        return -np.log([weighted_median(each, measured.weights) for each in speeds])
    found: FloatArray = -(np.log(speeds) @ measured.weights) / measured.weights.sum()
    return found


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
