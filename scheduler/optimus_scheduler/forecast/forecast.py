"""Step 1 of a round: what each job will do, from its reports so far.

Every question has an answer. What cannot be predicted yet is assumed by a stated rule:

| what is missing | rule |
|---|---|
| steps left, no limit given | as many again as it has done (Lindy), from a ninth to nine times that |
| steps left, all that a command announced are made | as many again as since then (Lindy, too) |
| steps left, of a command whose earlier runs ended before what they announced | theirs, and its own (`precedents`) |
| steps left, no losses yet | what ended jobs of the same task and rule took (see `precedents`) |
| steps left, a limit and a rule about losses given | any up to the limit, log-uniformly (see `convergence_step`) |
| speed, nothing measured | that of ended jobs of the same task, else by arithmetic (see `speed_fits`); else none |
| cost of a change | what those of other jobs, and of ended ones of their tasks, cost; else the prior of `RescaleCost` |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import partial
from itertools import compress, repeat
from operator import add, attrgetter, is_
from statistics import median
from struct import Struct
from typing import NamedTuple

import numpy as np

from optimus_models.calibration import AS_PREDICTED, NO_EXPERIENCE, Calibration, Widening
from optimus_models.loss.ends import Prediction
from optimus_models.rescale import RescaleCost
from optimus_models.speed.course import AS_MEASURED, CourseToCome
from optimus_scheduler.forecast.alike_runs import seconds_after_steps_of_alike_runs, seconds_like_ended_runs
from optimus_scheduler.forecast.end import End, Ends, Use, epoch_steps, life_of
from optimus_scheduler.forecast.fits import Fits, Fitted
from optimus_scheduler.forecast.outlook import Outlook, all_later, allocation_of
from optimus_scheduler.forecast.pace_to_come import pace_to_come
from optimus_scheduler.forecast.prices import has_prices
from optimus_scheduler.forecast.time_left import (
    LIMIT_ENDS_SECONDS,
    Course,
    Habits,
    correction,
    no_surer_than_steps,
    step_seconds,
    time_left,
    times_of_many,
    until_limit,
)
from optimus_scheduler.model import BY_CLOCK, Forecast, Interval, Job
from optimus_scheduler.settings import Settings

STOPS_PER_JOB = 4
"""Newest stops of each job that others are judged by."""


class RememberingForecaster:
    """Forecasts, remembering what the call before found: of a job without new reports only what time changes is new.

    Gives what `forecast_all` gives, sooner. Belongs to one shell; not to be shared between threads.
    """

    def __init__(self, fits: Fits | None = None, ends: Ends | None = None) -> None:
        """`fits`: fits the models, and remembers them; `ends`: the same of what they predict. Several forecasters may
        share both."""
        self._fits, self._ends, self._stops = fits or Fits(), ends or Ends(), _Stops()
        self._settings: Settings | None = None
        self._known: dict[str, _Known] = {}

    def __call__(self, jobs: Sequence[Job], now: float, settings: Settings) -> tuple[Outlook, ...]:
        """The outlook of every job, sorted by job id."""
        ordered = sorted(jobs, key=attrgetter("id"))
        before = self._known if settings == self._settings else {}
        ids, inputs = [job.id for job in ordered], list(map(_inputs_of, ordered))
        known = list(map(before.get, ids))
        both = enumerate(zip(known, inputs, strict=True))
        changed = [at for at, (one, now_given) in both if one is None or one.inputs != now_given]
        fits = self._fits.of([ordered[at] for at in changed], settings)
        has_price = has_prices(settings)
        for at, fitted in zip(changed, fits, strict=True):
            job = ordered[at]
            use = Use.of(job, fitted.speeds, now, settings, has_price)
            known[at] = _Known(job, inputs[at], fitted, use, self._ends.of(job, fitted, use, settings))
        present = [one for one in known if one is not None]
        found = _outlooks(ordered, present, self._stops.of(ordered), now, settings)
        self._settings, self._known = settings, dict(zip(ids, present, strict=True))
        self._fits.keep_only(self._known)
        self._ends.keep_only(self._known)
        return found


_ASIDE = frozenset(
    {"id", "owner", "wanted_tasks", "stragglers", "unsaved_seconds", "began_at_step", "attained_share_seconds"}
    | {"retry", "held_until", "owner_paused", "paused_by", "promised_at", "formed", "silent_since", "report_seconds"}
)
"""Of a job what no forecast reads; some of it changes from round to round. What sentences tell of it is compared with
the sentence (`explain.decide`)."""
_inputs_of = attrgetter(*[each.name for each in fields(Job) if each.name not in _ASIDE])
"""All else: what its outlook is made of, beside what others' stops took and the time."""


def _outlooks(
    jobs: Sequence[Job], known: Sequence[_Known], stops: Sequence[float], now: float, settings: Settings
) -> tuple[Outlook, ...]:
    """The outlook of each of these jobs. `stops`: predicted seconds of the next stop of each."""
    in_parts = [one.in_parts is not None and one.stop_seconds == stop for one, stop in zip(known, stops, strict=True)]
    together = list(compress(known, in_parts))
    for one, outlook in zip(together, _all_later(list(compress(jobs, in_parts)), together, now, settings), strict=True):
        one.outlook = outlook
    by_itself = [
        (job, one, stop, one.only_time_counts(stop))
        for job, one, stop, is_in_parts in zip(jobs, known, stops, in_parts, strict=True)
        if not is_in_parts
    ]
    courses = [one.course for _, one, _, is_later in by_itself if is_later and one.course is not None]
    times = zip(*times_of_many(courses, now), strict=True)  # how long a job has run says how well its pace is known
    for job, one, stop, is_later in by_itself:
        if not is_later:
            one.outlook = one.anew(job, stop, now, settings)
        else:
            one.outlook = one.later(job, next(times) if one.course is not None else None, now, settings)
    return tuple([one.outlook for one in known if one.outlook is not None])


class _InParts(NamedTuple):
    """An outlook of which time changes no more than a few numbers: that of most jobs with tasks in most rounds."""

    course: bytes
    """What its times are made of beside the present one (`Course`)."""
    clock: bytes
    """When the job was given what it has, NaN: not known, and whether enough steps were measured since."""
    steps: tuple[object, ...]
    """What its forecast has before the times ..."""
    learned: tuple[object, ...]
    """... and after them."""
    lasting: tuple[object, ...]
    """Of the outlook."""


_pack_clock = Struct("2d").pack
_forecast_of: Callable[[Iterable[object]], Forecast] = partial(tuple.__new__, Forecast)


def _all_later(jobs: Sequence[Job], known: Sequence[_Known], now: float, settings: Settings) -> list[Outlook]:
    """What `_Known.later` gives of each of these jobs, in a third of its time: no function of Python's is called for
    a single one."""
    parts = [one.in_parts for one in known if one.in_parts is not None]
    if not parts:
        return []
    courses, clocks, steps, learned, lasting = zip(*parts, strict=True)
    paces, lefts = times_of_many(courses, now)
    forecasts = map(_forecast_of, map(add, map(add, steps, zip(lefts, paces, strict=True)), learned))
    since, is_enough = np.frombuffer(b"".join(clocks)).reshape(-1, 2).T
    never = np.isnan(since)
    measured = (is_enough > 0) & (never | (now - since >= settings.measuring_seconds))
    allocated = np.where(never | (since >= now), 0.0, now - since)
    by_time = zip(jobs, forecasts, repeat(0.0), measured.tolist(), allocated.tolist(), strict=False)
    return all_later(by_time, lasting)


class _Known:
    """What is known of a job for as long as it tells nothing new."""

    __slots__ = (
        *("_has_clock", "_steps_here", "_to_come", "_use", "course", "end"),
        *("fitted", "in_parts", "inputs", "outlook", "stop_seconds"),
    )

    def __init__(self, job: Job, inputs: tuple[object, ...], fitted: Fitted, use: Use, end: End) -> None:
        """`inputs`: of this job."""
        self.inputs, self.fitted, self._use, self.end, self._steps_here = inputs, fitted, use, end, _steps_here(job)
        self.outlook: Outlook | None = None
        """The last one ..."""
        self.course: bytes | None = None
        """... and what its times are made of beside the present one (`Course`); None where it has none."""
        self.in_parts: _InParts | None = None
        """Where time changes no more of it than numbers; None otherwise."""
        self.stop_seconds: float | None = None
        """That of the last outlook."""
        self._to_come = AS_MEASURED
        """How its pace goes on, as of the last outlook."""
        self._has_clock: bool = job.spec.convergence.has_clock

    def only_time_counts(self, stop_seconds: float) -> bool:
        """Whether the last outlook, later, is the one for this predicted stop."""
        return self.outlook is not None and not self._has_clock and self.stop_seconds == stop_seconds

    def anew(self, job: Job, stop_seconds: float, now: float, settings: Settings) -> Outlook:
        """The outlook of the job, whose inputs these are. `stop_seconds`: predicted of its next stop."""
        speeds, like_ended = self.fitted.speeds, self._like_ended_jobs(job)
        if self.outlook is not None and self._has_clock:
            self._use = Use.of(job, speeds, now, settings, self._use.has_price)
            self.end = End.of(job, self.fitted, self._use, settings)
        self._to_come = pace_to_come(job, self.end.total, settings)
        self.course = self._course(job, stop_seconds)
        found = Outlook(
            job=job,
            forecast=_forecast(job, self.fitted, self._use, self.end, self._to_come, stop_seconds, now),
            speeds=speeds,
            stop_seconds=stop_seconds,
            waited_seconds=_waited_seconds(job, now),
            measured=self._is_measured(job, now, settings),
            learning=speeds.model.confidence < settings.sure_speed,
            typical_seconds=settings.typical_seconds if like_ended is None else like_ended,
            is_told=like_ended is not None,
            allocated_seconds=_allocated_seconds(job, now),
            joining_seconds=_joining_seconds(job, stop_seconds),
        )
        self.in_parts, self.stop_seconds = self._in_parts(found, settings), stop_seconds
        return found

    def _like_ended_jobs(self, job: Job) -> float | None:
        """Seconds left at its minimum, as ended jobs like it tell, where the job itself tells none; None where these
        tell nothing, either."""
        speeds, spec = self.fitted.speeds, job.spec
        tells_end = self.end.rule is not None or spec.announced_steps is not None
        if not job.similar or (tells_end and self.end.remaining is not None and speeds.is_known):
            return None
        least = allocation_of(spec.worker.minimum, spec.server.minimum, spec.gpu_type)
        return seconds_like_ended_runs(job, epoch_steps(job), speeds.at(least) if speeds.is_measured else None)

    def _in_parts(self, found: Outlook, settings: Settings) -> _InParts | None:
        """Of this outlook, or None where more than its numbers changes with time."""
        job = found.job
        is_corrected = job.experience is not NO_EXPERIENCE and bool(job.experience.seconds)
        costs = self._use.cost_per_second is not None
        if self._has_clock or self.course is None or self.end.remaining is None or is_corrected or costs:
            return None
        since = math.nan if job.allocated_at is None else job.allocated_at
        clock = _pack_clock(since, self._steps_here >= settings.measuring_steps)
        return _InParts(self.course, clock, *found.forecast.around_times, found.lasting)

    def _course(self, job: Job, stop_seconds: float) -> bytes | None:
        if self._use.speed is None:
            return None
        steps = self.end.remaining or Interval(0.0, 0.0, 0.0)
        return Course.of(
            self._use.speed, habits_of(job, 0.0, stop_seconds, self._to_come), job.started_at, steps
        ).packed

    def later(self, job: Job, times: tuple[Interval, Interval] | None, now: float, settings: Settings) -> Outlook:
        """The last outlook, later. `times`: the seconds of a step and those that are left, where there is a course."""
        before = self.outlook
        assert before is not None, "only time has changed"
        since = job.allocated_at
        measured = self._steps_here >= settings.measuring_steps
        if measured and since is not None:
            measured = now - since >= settings.measuring_seconds
        if not before.has_tasks:
            return before.later(job, before.forecast, measured, _waited_seconds(job, now), 0.0)
        allocated = 0.0 if since is None or since >= now else now - since
        changed = before.forecast if times is None else self._told(before.forecast, job, *times)
        return before.later(job, changed, measured, 0.0, allocated)

    def _told(self, before: Forecast, job: Job, pace: Interval, left: Interval) -> Forecast:
        """The forecast `before`, at the present time: see `_Times`."""
        steps, cost_per_second = self.end.remaining, self._use.cost_per_second
        if steps is None:
            return before.later(before.remaining_seconds, pace, before.calibration, before.cost)
        calibration = before.calibration
        if job.experience is not NO_EXPERIENCE and job.experience.seconds:
            left, by = at_present_pace(job, steps, pace)
            calibration = Calibration(self.end.by_steps, by)
        cost = before.cost if cost_per_second is None else cost_of(left, cost_per_second)
        return before.later(left, pace, calibration, cost)

    def _is_measured(self, job: Job, now: float, settings: Settings) -> bool:
        """Whether enough steps were measured at the present size since it was granted."""
        if self._steps_here < settings.measuring_steps:
            return False
        return job.allocated_at is None or now - job.allocated_at >= settings.measuring_seconds


Forecaster = Callable[[Sequence[Job], float, Settings], tuple[Outlook, ...]]
"""(jobs, now, settings) to the outlook of every job, sorted by job id. A simulation may put a perfect one here."""


class Overheard:
    """A forecaster whose last answer can be read: what a round believed of its jobs."""

    def __init__(self, forecaster: Forecaster) -> None:
        self._forecaster = forecaster
        self.outlooks: tuple[Outlook, ...] = ()

    def __call__(self, jobs: Sequence[Job], now: float, settings: Settings) -> tuple[Outlook, ...]:
        """See `Forecaster`."""
        self.outlooks = self._forecaster(jobs, now, settings)
        return self.outlooks


def forecast_all(jobs: Sequence[Job], now: float, settings: Settings) -> tuple[Outlook, ...]:
    """The outlook of every job, sorted by job id."""
    return RememberingForecaster()(jobs, now, settings)


def forecast(job: Job, now: float, settings: Settings) -> Outlook:
    """Fit the models of one job and predict its end."""
    return forecast_all([job], now, settings)[0]


class _Stops:
    """What changes of size cost: each job's own stops, seen against the newest ones of all jobs on this cluster, and of
    ended ones of their tasks."""

    def __init__(self) -> None:
        self._others: tuple[float, ...] = ()
        self._cost = RescaleCost.fit()
        self._known: dict[tuple[float, ...], float] = {}
        self._asked: list[object] = []
        self._found: list[float] = []

    def of(self, jobs: Sequence[Job]) -> list[float]:
        """Predicted seconds of the next stop of each job."""
        asked: list[object] = [part for job in jobs for part in (job.rescale_seconds, job.similar)]
        if len(asked) != len(self._asked) or not all(map(is_, asked, self._asked)):
            self._asked, self._found = asked, self._of(jobs)
        return self._found

    def _of(self, jobs: Sequence[Job]) -> list[float]:
        by_task = {id(job.similar): job.similar for job in jobs if job.similar}
        ended = {each.id: each for similar in by_task.values() for each in similar}
        own = [job.rescale_seconds for job in jobs]
        stops = [each.rescale_seconds for each in ended.values()] + [each for each in own if each]
        others = tuple([seconds for each in stops for seconds in each[-STOPS_PER_JOB:]])
        if others != self._others:
            self._others, self._cost, self._known = others, RescaleCost.fit(others), {}
        for new in set(own).difference(self._known):
            self._known[new] = RescaleCost.fit(new, others=self._cost).predict()
        return [self._known[each] for each in own]


def _joining_seconds(job: Job, stop_seconds: float) -> float:
    """Until new tasks take part, without the stop: the median of the newest times; 0 where none was observed.

    Each job knows its own: its first tasks had to start, too.
    """
    observed = job.joining_seconds[-STOPS_PER_JOB:]
    return max(median(observed) - stop_seconds, 0.0) if observed else 0.0


def _forecast(
    job: Job, fitted: Fitted, use: Use, end: End, course: CourseToCome, stop_seconds: float, now: float
) -> Forecast:
    curve, speeds = fitted.curve, fitted.speeds
    experts = curve.experts
    left, pace, calibration, cost = _times(job, use, end, habits_of(job, now, stop_seconds, course), now)
    return Forecast(
        job.id,
        _total_steps(end, pace),
        end.remaining,
        end.confidence,
        end.rule,
        end.loss_curve,
        speeds.description,
        use.steps_per_second,
        left,
        pace,
        calibration,
        experts.n_runs if experts else 0,
        1.0 - experts.own_share if experts else 0.0,
        speeds.source,
        cost,
        end.is_here,
        seconds_after_steps_of_alike_runs(job),
        course,
    )


class _Times(NamedTuple):
    """The part of a forecast that changes with time."""

    left: Interval | None
    """Seconds."""
    pace: Interval | None
    """Seconds of a step."""
    calibration: Calibration
    cost: Interval | None


def _times(job: Job, use: Use, end: End, habits: Habits, now: float) -> _Times:
    pace = None if use.speed is None else step_seconds(use.speed, habits)
    seconds, by_seconds = _seconds(job, end.remaining, pace, end.prediction, use, now)
    cost = cost_of(seconds, use.cost_per_second)
    return _Times(seconds, pace, Calibration(end.by_steps, by_seconds), cost)


def habits_of(job: Job, now: float, stop_seconds: float, course: CourseToCome) -> Habits:
    """How the job has spent its time, and how its pace goes on. `stop_seconds`: predicted of its next stop."""
    running = now - job.started_at if job.started_at is not None else 0.0
    if not job.rescale_seconds:
        return Habits(job.busy_part, running, 0.0, 0, stop_seconds, course.ratio, course.doubt)
    stops = [seconds for seconds in job.rescale_seconds if 0.0 <= seconds < math.inf]
    return Habits(job.busy_part, running, sum(stops), len(stops), stop_seconds, course.ratio, course.doubt)


def _seconds(
    job: Job,
    remaining: Interval | None,
    pace: Interval | None,
    prediction: Prediction | None,
    use: Use,
    now: float,
) -> tuple[Interval | None, Widening]:
    """Time left, and how it was corrected.

    Where a limit of time or money decides, its steps were made from its seconds: the way back has no doubt.
    """
    if remaining is None or pace is None:
        return None, AS_PREDICTED
    most = min(most_seconds(job, now), use.seconds_paid)
    if prediction is not None and prediction.rule in BY_CLOCK and 0 < remaining.mean == remaining.high:
        seconds = use.seconds_paid if prediction.rule == "max_cost" else most_seconds(job, now) - LIMIT_ENDS_SECONDS
        return until_limit(seconds, min(remaining.low / remaining.mean, 1.0)), AS_PREDICTED
    return at_present_pace(job, remaining, pace, most)


def _is_by_time(prediction: Prediction | None) -> bool:
    return prediction is not None and prediction.rule == "max_seconds"


def _total_steps(end: End, pace: Interval | None) -> Interval | None:
    """Where a limit of time decides, the steps that are made until then are as doubtful as the seconds of each."""
    total, left = end.total, end.remaining
    if total is None or left is None or pace is None or not _is_by_time(end.prediction) or not 0 < pace.low < math.inf:
        return total
    made = total.mean - left.mean
    return Interval(total.mean, made + left.low * pace.mean / pace.high, made + left.high * pace.mean / pace.low)


def most_seconds(job: Job, now: float) -> float:
    """How long a job goes on at most, by its limit of time, all of which is left before its start; inf: it has none."""
    limit = job.spec.convergence.max_seconds
    if limit is None:
        return math.inf
    return LIMIT_ENDS_SECONDS + (limit if job.started_at is None else max(job.started_at + limit - now, 0.0))


def at_present_pace(job: Job, steps: Interval, pace: Interval, most: float = math.inf) -> tuple[Interval, Widening]:
    """Seconds that a job needs for so many steps at so many seconds each, corrected by how earlier ones turned out.
    `most`: of which no bound is larger (`most_seconds`)."""
    left = time_left(steps, pace)
    by = correction(job.experience.seconds, job.experience.task, life_of(job, steps), left)
    by = no_surer_than_steps(by, left, steps)
    if by == AS_PREDICTED and most == math.inf:
        return left, by
    return time_left(steps, pace, by, most), by


def cost_of(seconds: Interval | None, cost_per_second: float | None) -> Interval | None:
    """Money that these seconds cost; None where either is not known."""
    if seconds is None or cost_per_second is None:
        return None
    return Interval(*(value * cost_per_second for value in (seconds.mean, seconds.low, seconds.high)))


def _steps_here(job: Job) -> int:
    """How many steps were measured at the present size since it was granted."""
    size = (job.allocation.workers, job.allocation.servers)
    since = job.allocated_at if job.allocated_at is not None else -math.inf
    return sum([s.n_steps for s in job.speed_samples if (s.workers, s.servers) == size and s.at >= since])


def _waited_seconds(job: Job, now: float) -> float:
    if not job.allocation.is_empty:
        return 0.0
    return max(now - job.waits_since, 0.0)


def _allocated_seconds(job: Job, now: float) -> float:
    if job.allocation.is_empty or job.allocated_at is None:
        return 0.0
    return max(now - job.allocated_at, 0.0)
