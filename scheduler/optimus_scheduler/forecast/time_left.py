"""Time left: steps that are left times the seconds that each takes, both of them uncertain. Pure.

Every time left that anybody is shown comes from here: that of a round, of the dry run, of each size that a job could
have, and what is left of an earlier forecast now that the job has gone on. Intervals hold 80 %; errors are relative and
independent, so half-widths add up as squares of logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from struct import Struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimus_models.calibration import AS_PREDICTED, Errors, Predicted, Widening
from optimus_models.cost import Estimate
from optimus_scheduler.model import REACH, Interval

_DRIFT = 0.06
"""Sigma of ln(mean speed over the rest of a job / its speed now): neighbours come and go. Of 22 measured runs of other
people with their seconds per epoch; docs/models.md. What has been seen for a short while says less of the rest ..."""
_LEAST_SEEN_SECONDS = 10.0
"""... but for as long as this any job has been seen whose speed is known."""
_MOST_STRETCH = 10.0
"""What happens between steps makes a job at most so many times as long."""
_SOME_SECONDS = 300.0
"""Training that a job is taken to have done without stops before its first: most grow once, soon after they begin. A
speed that was seen for as long is doubtful by twice the variance of one that was seen for ever."""
_TAIL_ODDS = math.log(9.0)
"""ln of the odds at the ends of an 80 % interval: a log-logistic distribution has its bounds so many scales away."""


class Habits(NamedTuple):
    """How a job has spent its time so far, apart from making steps."""

    busy_part: float = 1.0
    """Part of the time between its reports in which it made steps; the rest went to evaluations and checkpoints."""
    running_seconds: float = 0.0
    """Since its first step ..."""
    stopped_seconds: float = 0.0
    """... and for how long of these it stood still, at changes of size ..."""
    stops: int = 0
    """... of which there were so many."""
    stop_seconds: float = 0.0
    """Predicted seconds of the next one."""
    course_ratio: float = 1.0
    """How many times as long a step takes over the rest of the job as at its speed now, by ended runs ..."""
    course_doubt: float = 0.0
    """... and sigma of the logarithm of that."""

    @property
    def drift(self) -> float:
        """Sigma of ln(mean speed over the rest of the job / its speed now)."""
        if self.running_seconds <= 0:
            return _DRIFT  # how well a speed is known that nobody has seen, its own interval says
        seen = max(self.running_seconds - self.stopped_seconds, _LEAST_SEEN_SECONDS)
        return _DRIFT * math.sqrt(1.0 + _SOME_SECONDS / seen)

    @property
    def by_stops(self) -> float:
        """How many times as long the job takes for being stopped as often as until now."""
        training = max(self.running_seconds - self.stopped_seconds, 0.0) + _SOME_SECONDS
        return min(1.0 + self.stops * self.stop_seconds / training, _MOST_STRETCH)

    @property
    def by_pauses(self) -> float:
        """... for its evaluations and checkpoints, and as its pace changes."""
        return min(1.0 / max(self.busy_part, 1e-9), _MOST_STRETCH) * self.course_ratio

    def with_doubt(self, width: float) -> float:
        """The half-width of a speed's interval, in logarithms, with the doubt about how the pace changes in it."""
        return math.hypot(width, REACH * self.course_doubt)


STEADY = Habits()


def step_seconds(speed: Estimate, habits: Habits = STEADY) -> Interval:
    """Seconds of a step over the rest of the job, everything included that happens between steps.

    Args:
        speed: steps/s at one moment, with the interval that holds a measured speed at this size; above 0.
        habits: how the job spends the rest of its time.
    """
    by_stops = habits.by_stops
    doubt = math.hypot(REACH * habits.drift, math.log(by_stops))  # there may be twice as many, or none
    slower = math.hypot(doubt, habits.with_doubt(_log_ratio(speed.mean, speed.low)))
    faster = math.hypot(doubt, habits.with_doubt(_log_ratio(speed.high, speed.mean)))
    return _around(by_stops * habits.by_pauses / speed.mean, faster, slower)


def time_left(
    steps: Interval, seconds: Interval, widening: Widening = AS_PREDICTED, most_seconds: float = math.inf
) -> Interval:
    """Seconds left, with an interval that is never empty while steps are left and `seconds` is uncertain.

    Args:
        steps: steps that are left, at least 0.
        seconds: of one step (`step_seconds`).
        widening: by how earlier intervals of this kind turned out.
        most_seconds: what a limit of the rule leaves.
    """
    down = math.hypot(_log_ratio(steps.mean, steps.low), _log_ratio(seconds.mean, seconds.low))
    up = math.hypot(_log_ratio(steps.high, steps.mean), _log_ratio(seconds.high, seconds.mean))
    if steps.mean <= 0:  # it may end at once: only the upper bound says something
        return Interval(0.0, 0.0, min(steps.high * seconds.high, most_seconds) if steps.high > 0 else 0.0)
    middle = steps.mean * seconds.mean * math.exp(widening.shift)
    found = _around(middle, down * widening.down, up * widening.up)
    return _at_most(found, most_seconds)


class Course(NamedTuple):
    """All that the time left of a job with tasks is made of, beside the present one; see `step_seconds`, `time_left`.

    Of ratios it holds the logarithms, of steps what is left; the lower and the upper half-width.
    """

    began_at: float
    """When it made its first step; NaN: it has not yet."""
    stopped_seconds: float
    stops: float
    stop_seconds: float
    by_pauses: float
    speed: float
    slower: float
    faster: float
    steps: float
    steps_down: float
    steps_up: float
    most_steps: float

    @classmethod
    def of(cls, speed: Estimate, habits: Habits, began_at: float | None, steps: Interval) -> Course:
        """`habits` of any moment: only how long it has run changes."""
        return cls(
            math.nan if began_at is None else began_at,
            habits.stopped_seconds,
            habits.stops,
            habits.stop_seconds,
            habits.by_pauses,
            speed.mean,
            habits.with_doubt(_log_ratio(speed.mean, speed.low)),
            habits.with_doubt(_log_ratio(speed.high, speed.mean)),
            steps.mean,
            _log_ratio(steps.mean, steps.low),
            _log_ratio(steps.high, steps.mean),
            steps.high,
        )

    @property
    def packed(self) -> bytes:
        """As 64-bit floats, one after the other: a round joins those of thousands of jobs."""
        return _pack(*self)


FloatArray = NDArray[np.float64]
_Columns = tuple[FloatArray, FloatArray, FloatArray]
"""Mean, low and high of many intervals."""
_pack = Struct(f"{len(Course._fields)}d").pack
_interval: Callable[[Iterable[float]], Interval] = partial(tuple.__new__, Interval)


def times_of_many(courses: Sequence[bytes], now: float) -> tuple[list[Interval], list[Interval]]:
    """`step_seconds` and `time_left` of many jobs at the time `now`: the same to the last bit, sooner.

    To the last bit because roots, logarithms and exponentials are those of `math`: numpy's own differ from one kind of
    machine to another.
    """
    if not courses:
        return [], []
    with np.errstate(all="ignore"):  # where `math` gives infinities, too
        paces, lefts = _times(np.frombuffer(b"".join(courses)).reshape(-1, len(Course._fields)).T, now)
    return _intervals(paces), _intervals(lefts)


def _intervals(columns: _Columns) -> list[Interval]:
    return list(map(_interval, zip(*(each.tolist() for each in columns), strict=True)))


def _times(columns: FloatArray, now: float) -> tuple[_Columns, _Columns]:
    began_at, stopped, stops, stop_seconds, by_pauses, speed, slower, faster, steps, down, up, most = columns
    running = np.where(np.isnan(began_at), 0.0, now - began_at)
    seen = np.maximum(running - stopped, _LEAST_SEEN_SECONDS)
    drift = np.where(running <= 0, _DRIFT, _DRIFT * np.sqrt(1.0 + _SOME_SECONDS / seen))
    training = np.maximum(running - stopped, 0.0) + _SOME_SECONDS
    by_stops = np.minimum(1.0 + stops * stop_seconds / training, _MOST_STRETCH)
    doubt = _hypotenuses(REACH * drift, _logs(by_stops))
    pace = by_stops * by_pauses / speed
    pace_low, pace_high = _all_around(pace, _hypotenuses(doubt, faster), _hypotenuses(doubt, slower))
    left = steps * pace
    down = _hypotenuses(down, _log_ratios(pace, pace_low))
    up = _hypotenuses(up, _log_ratios(pace_high, pace))
    low, high = _all_around(left, down, up)
    ends_at_once = steps <= 0
    if ends_at_once.any():
        at_most = np.where(most > 0, most, 0.0) * np.where(most > 0, pace_high, 0.0)
        left, low, high = (np.where(ends_at_once, a, b) for a, b in ((0.0, left), (0.0, low), (at_most, high)))
    return (pace, pace_low, pace_high), (left, low, high)


def _each(function: Callable[..., float], *arguments: FloatArray) -> FloatArray:
    return np.fromiter(map(function, *(each.tolist() for each in arguments)), np.float64, len(arguments[0]))


def _hypotenuses(one: FloatArray, other: FloatArray) -> FloatArray:
    """Of numbers that are not negative. Many jobs have a certain number of steps left, or were never stopped: where one
    is 0, it is the other."""
    found = np.maximum(one, other)
    both = np.flatnonzero((one != 0) & (other != 0))
    found[both] = _each(math.hypot, one[both], other[both])
    return found


def _logs(numbers: FloatArray) -> FloatArray:
    found, asked = np.zeros(len(numbers)), np.flatnonzero(numbers != 1)
    found[asked] = _each(math.log, numbers[asked])
    return found


def _all_around(mean: FloatArray, down: FloatArray, up: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The bounds that `_around` gives."""
    high = mean * _each(math.exp, np.minimum(up, 700.0))
    return mean * _each(math.exp, -down), np.where(up < 700.0, high, math.inf)


def _log_ratios(larger: FloatArray, smaller: FloatArray) -> FloatArray:
    """See `_log_ratio`."""
    is_ratio = (larger > 0) & (larger > smaller)
    ratio = np.ones(len(larger))
    np.divide(larger, smaller, out=ratio, where=is_ratio & (smaller > 0))
    return np.where(is_ratio & (smaller <= 0), math.inf, _logs(ratio))


def widened(left: Interval, widening: Widening, most: float = math.inf) -> Interval:
    """What is left, of steps or seconds, corrected by how earlier predictions turned out; at most `most`."""
    if left.mean <= 0:
        return left
    if widening is AS_PREDICTED and left.low == left.mean == left.high:  # most limits are certain
        return _at_most(left, most)
    down, up = _log_ratio(left.mean, left.low) * widening.down, _log_ratio(left.high, left.mean) * widening.up
    found = _around(left.mean * math.exp(widening.shift), down, up)
    return _at_most(found, most)


def correction(errors: Errors, task: str, life: float, left: Interval, *, moves: bool = False) -> Widening:
    """How a prediction of what is left is to be corrected (`Errors.widening`). What is certain stays as it is."""
    if left.mean <= 0 or left.mean == math.inf or left.low >= left.high:
        return AS_PREDICTED
    return errors.widening(task, life, Predicted(left.mean, left.low, left.high), moves=moves)


def no_surer_than_steps(by: Widening, left: Interval, steps: Interval) -> Widening:
    """The correction of a time, in which it becomes no narrower than the steps that take it: what is known of other
    jobs' times, whose steps were known better, makes them no surer. Both as they are predicted, the steps corrected."""
    down = _least_part(by.down, _log_ratio(left.mean, left.low), _log_ratio(steps.mean, steps.low))
    up = _least_part(by.up, _log_ratio(left.high, left.mean), _log_ratio(steps.high, steps.mean))
    return by._replace(down=down, up=up)


def _least_part(part: float, of_time: float, of_steps: float) -> float:
    """The part of its half-width that a time keeps."""
    if part >= 1.0 or not 0.0 < of_time < math.inf:
        return part
    return max(part, min(of_steps / of_time, 1.0))


def after(waiting: Interval, left: Interval) -> Interval:
    """Seconds until the end of a job that has to wait before it starts: the two are independent."""
    mean = waiting.mean + left.mean
    down = math.hypot(waiting.mean - waiting.low, left.mean - left.low)
    up = math.hypot(waiting.high - waiting.mean, left.high - left.mean)
    return Interval(mean, max(mean - down, 0.0), mean + up)


def given_not_ended(total: Interval, foreseen_at: float, step: float, most: float = math.inf) -> Interval:
    """Total steps of a job that has reached `step`, by a forecast that was made at `foreseen_at`.

    The forecast is a log-logistic distribution with a scale for each side of its median; what is left of it is what
    lies beyond `step`. A job that has gone on for longer than predicted shows that the forecast erred by more than it
    said: the scale then is at least the one by which this is the end of the interval. In the limit of a job that is
    far beyond its forecast, the rest is as Lindy's law says: as much again, from a ninth to nine times that.

    Args:
        total: the forecast.
        foreseen_at: the job's step at that time; what had been ruled out by then, the forecast knew.
        step: its step now.
        most: a limit of the rule in steps.

    Returns:
        An interval above `step`, unless the forecast is a certain end, or `most`, which the job has reached.
    """
    if step <= foreseen_at or total.mean <= 0:
        return total
    if total.low >= total.high:
        return Interval(*[max(total.mean, step)] * 3)
    mean, low, high = _beyond(total, foreseen_at, step, (0.5, 0.9, 0.1))
    bounds = mean, low, high if total.high < math.inf else math.inf
    return Interval(*(max(min(each, most), step) for each in bounds))


LINDY = 9.0
"""P(T > t) = s/(s + t) for what has gone on for s: the median is s more, 10 % and 90 % are s/9 and 9s more."""


def beyond_announced(announced: int, step: int, most: float = math.inf) -> Interval:
    """Steps left of a command that said it would end after `announced` steps and is at `step`, not less.

    What it said was wrong, so only how long it has gone on since says how long it goes on: Lindy's law, of the steps
    since then and the one that it is at. `most`: what a limit of the rule leaves.
    """
    since = step - announced + 1.0
    return Interval(*(min(each, most) for each in (since, since / LINDY, since * LINDY)))


LIMIT_NOTICED_SECONDS, LIMIT_ENDS_SECONDS = 1.0, 3.0
"""A job whose limit of time is over ends so many seconds later, and so many at most in most cases: the limit is looked
at when the job reports, and its tasks have to stop. (Three live jobs on one machine took 0.2 to 1.5 s.)"""


AFTER_A_LIMIT = Interval(LIMIT_NOTICED_SECONDS, 0.0, LIMIT_ENDS_SECONDS)
"""The same as seconds after a limit: an end is told no later."""


def until_limit(seconds: float, soonest: float = 1.0) -> Interval:
    """Seconds left of a job that its limit of time ends, whatever its speed. `seconds`: that the limit leaves it;
    `soonest`: the part of them after which something else may end it."""
    mean, _, high = AFTER_A_LIMIT
    return Interval(seconds + mean, seconds * soonest, seconds + high)


_LEAST_SILENT_SECONDS = 1.0
"""The end of a command is told about so late."""


def after_last_step(silent_seconds: float, usual: Interval | None = None) -> Interval:
    """Seconds left of a command that has made all steps that it announced and saves or evaluates since its last step.
    `usual`: what ended runs took for that; None: nothing says how long it takes, so that Lindy's law holds."""
    if usual is not None:
        total = given_not_ended(usual, 0.0, silent_seconds)
        return Interval(*(max(each - silent_seconds, 0.0) for each in total))
    since = max(silent_seconds, _LEAST_SILENT_SECONDS)
    return Interval(since, since / LINDY, since * LINDY)


def less_untold(left: Interval, untold: float) -> Interval:
    """Steps left of a job that has made some beyond the newest step that it told.

    A step may be a whole epoch, of minutes: it is made by and by. Until its end is told, something is left: of the last
    step as little as Lindy's law leaves at the low end.
    """
    return Interval(*(max(each - untold, min(each, 1.0) / LINDY) if untold > 0 else each for each in left))


_LATE_REPORTS, _LEAST_REPORT_SECONDS = 2.0, 1.0
"""A step is late when none was told for so many times as usually lie between two that are told; tasks post theirs once
a second."""
SOONEST_LATE_SECONDS = _LATE_REPORTS * _LEAST_REPORT_SECONDS


def late_seconds(silent: float, usual: float) -> Interval:
    """Seconds that no further step is told of a job that has told none for `silent` seconds, where it usually tells one
    each `usual` seconds: as long again as it is late (Lindy's law), as nothing tells whether it evaluates, waits or
    hangs."""
    late = max(silent - _LATE_REPORTS * max(usual, _LEAST_REPORT_SECONDS), 0.0)
    return Interval(late, late / LINDY, late * LINDY)


def longer_of(one: Interval, other: Interval) -> Interval:
    """The larger of each of both medians and bounds."""
    return Interval(*map(max, one, other))


def _beyond(total: Interval, foreseen_at: float, step: float, survivals: Sequence[float]) -> list[float]:
    """The total that a job which is at `step` exceeds with each of these probabilities."""
    above = _log_ratio(total.high, total.mean) / _TAIL_ODDS if total.high < math.inf else 1.0
    if above > 0:
        above = max(above, min(_log_ratio(step, total.mean) / _TAIL_ODDS, 1.0))  # 1: Lindy's law
    scales = _log_ratio(total.mean, total.low) / _TAIL_ODDS, above
    here, then = _survival(step, total.mean, scales), _survival(foreseen_at, total.mean, scales)
    found = []
    for survival in survivals:
        beyond = survival * here / then
        scale = scales[0] if beyond > 0.5 else scales[1]
        odds = math.inf if scale == math.inf else math.exp(min(scale * math.log((1.0 - beyond) / beyond), 700.0))
        found.append(step if scale == math.inf else float(total.mean * odds))
    return found


def _survival(step: float, median: float, scales: tuple[float, float]) -> float:
    """P(total > step)."""
    ratio = math.log(step) - math.log(median) if step > 0 else -math.inf  # a quotient may be too small for a number
    scale = scales[0] if ratio < 0 else scales[1]
    if scale == 0:
        return 1.0 if ratio < 0 else 0.5
    if scale == math.inf:
        return 0.9 if step > 0 else 1.0  # a bound of 0: nothing is known about how soon it may end
    return 1.0 / (1.0 + math.exp(min(ratio / scale, 700.0)))


def _at_most(interval: Interval, most: float) -> Interval:
    if most == math.inf:
        return interval
    return Interval(min(interval.mean, most), min(interval.low, most), min(interval.high, most))


def _around(mean: float, down: float, up: float) -> Interval:
    """An interval by its half-widths in logarithms."""
    return Interval(mean, mean * math.exp(-down), mean * math.exp(up) if up < 700.0 else math.inf)


def _log_ratio(larger: float, smaller: float) -> float:
    """ln(larger / smaller) >= 0; 0 when there is nothing to compare, inf when the smaller one is 0."""
    if larger <= 0 or larger <= smaller:
        return 0.0
    return math.log(larger / smaller) if smaller > 0 else math.inf
