"""How far a job is, and when it starts and ends. Pure functions of rows and the time.

The forecast itself is the scheduler's; here it is only brought up to date with the steps made since.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from optimus_contract import answers
from optimus_scheduler.ahead.queue import until_later
from optimus_scheduler.allocate.allocate_with_quotas import NO_END_HELPS
from optimus_scheduler.forecast.time_left import (
    AFTER_A_LIMIT,
    after_last_step,
    beyond_announced,
    given_not_ended,
    late_seconds,
    less_untold,
    longer_of,
    until_limit,
)
from optimus_scheduler.model import Directive, Interval, JobState, SpeedSource
from optimus_scheduler.model.format import time_words
from optimus_service.insight.format import finite, foreseen, interval_body, moment
from optimus_service.insight.jobs.end import MOST_PROGRESS, End, part_done, reached_limit
from optimus_service.observe.spec import (
    began_at,
    begins_anew,
    goes_back,
    has_failed_before,
    is_after_last_step,
    is_ended,
    is_finishing,
    limit_made,
    limits_in_force,
    most_steps,
    next_step,
    passed_limits,
    silent_since,
    stepped_at,
)
from optimus_service.observe.standstills import Standstills
from optimus_service.store.records import Awaited, DecisionRecord, ExpectedTimesRecord, JobRecord, SampleRecord

SPEED_WINDOW_SECONDS = 30.0
"""A job's measured speed is an average over so long: steady enough to read, young enough to show a change."""

SPEED_SAMPLES = 200
"""How many of a job's newest samples it is taken from: half a minute of a large job."""


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a job is, and what is left by its latest forecast."""

    progress: float | None
    """0 to 1; None when nothing can be said: neither the job nor its rule tells where the end is, as of a script whose
    number of steps is not known."""
    remaining_steps: answers.Interval | None
    remaining_seconds: answers.Interval | None
    """To its end by `expected`; without that, or where a limit of time ends it, at its present size. None for a job
    that waits, if it is not known from when on."""
    longer_than_predicted: bool = False
    """It has gone on beyond the end that its latest forecast took for the likeliest."""
    finishing: bool = False
    """Its rule holds, or it has made all steps that its limit allows, or that it announced and none more: it saves,
    evaluates and ends."""
    at_its_size: answers.Interval | None = None
    """Seconds left with the size that it has."""
    is_guessed: bool = False
    """Nothing says where the end is."""
    expected: answers.ExpectedTimes | None = None
    """By the queue simulated forward; None: that has no answer, or one that is too old."""


class _TimeLimit(NamedTuple):
    """What a limit of time leaves a job."""

    seconds: float = math.inf
    has_begun: bool = True
    """Whether the job has started, since when they run."""

    def cut(self, end: Interval, start: Interval | None = None) -> Interval:
        """Seconds until an end, none later than the limit allows: as time passes, what is left of a forecast grows.
        `start`: the seconds until the expected start; None of a job with tasks."""
        starts = (0.0, 0.0, 0.0) if start is None else _bounds(start)
        latest = (max(self.seconds, each) if self.has_begun else each + self.seconds for each in starts)
        bounds = zip(_bounds(end), latest, _bounds(AFTER_A_LIMIT), strict=True)
        return Interval(*(min(each, most + after) for each, most, after in bounds))


_UNLIMITED = _TimeLimit()

_NO_SECONDS = Interval(0.0, 0.0, 0.0)
_LIKELY = 0.5
"""A start that waits for the end of a stalled job in this part of what may come is not told."""
Ends = dict[str, Interval | None]
"""Seconds until the ends of jobs that others wait for, as they are told at one time; None where nothing can be said."""


def progress_of(
    job: JobRecord,
    decision: DecisionRecord | None,
    now: float,
    ends: Ends | None = None,
    still: Standstills = MappingProxyType({}),
    speed: float | None = None,
) -> JobProgress:
    """The latest forecast, brought up to the job's present step, and when it starts and ends. One that ended has
    nothing left, and of one that is being cancelled nothing is told.

    What is left of a job that went on is what its forecast says of jobs that have not ended by this step or this time.
    `ends`: found for other jobs at this time, by job id; many may wait for one end. `still`: jobs that make no step: of
    one that has stalled no end is told, nor a start that likely waits for it. `speed`: steps/s of its newest steps with
    the size that it has (`speed_here`), for one whose forecast knows nothing of these.
    """
    end = None if decision is None else End.of(decision.forecast)
    if job.state.is_final:
        return JobProgress(1.0 if job.state is JobState.SUCCEEDED else _part_made(job, end), None, None)
    if job.is_being_cancelled:
        return JobProgress(None if end is None or end.is_guessed else part_done(job.step, end.total), None, None)
    if makes_no_more(job, still):
        return _after_last_step(job, end, now)
    if decision is not None and decision.forecast.rule in passed_limits(job, now):
        return JobProgress(None, None, None)  # until the next round goes by what else tells its end
    is_paused = job.owner_paused_at is not None
    if is_paused and reached_limit(job, decision, now) is not None:
        return JobProgress(None, None, None)  # how much is left, its owner decides with another limit
    expected = _foreseen_times(job, decision, now, ends, still)
    retry_at, is_open = _awaited_retry(job, now), tells_no_end(job, decision, now, still)
    if retry_at is not None:
        expected = _after_retry(expected, retry_at, now)
    without_end = None if expected is None else replace(expected, end_seconds=None, end_at=None)
    if end is None or end.is_guessed:
        # Rounds have to suppose something of it: to people it is no prediction. What ended jobs like it took is one.
        by_runs = None if expected is None else expected.end_seconds
        # What it has told since comes into the next round's forecast.
        has_announced = (job.profile or {}).get("total_steps") is not None
        is_guessed = end is not None and by_runs is None and not has_announced
        if is_open:
            expected, by_runs = without_end, None
        return JobProgress(None, None, by_runs, is_guessed=is_guessed, expected=expected)
    is_back = _goes_back_replaced(job, still)
    if goes_back(job) or _may_fail_again(job, still) or (is_back and job.asked.command is not None):
        return JobProgress(None, None, None, expected=without_end)
    step = step_of(job, still)
    left = _steps_by_clock(job, decision, end, now, speed)
    is_by_clock = left is not None
    if left is None:
        total = given_not_ended(end.total, end.made_at, step, most_steps(job))
        left = Interval(total.mean - step, max(total.low - step, 0.0), total.high - step)
    else:
        total = Interval(step + left.mean, step + left.low, step + left.high)
    if is_open:
        return JobProgress(part_done(step, total), interval_body(left), None, expected=without_end)
    times = _times_left(job, decision, end, end.even_left(left, step), expected, now, speed)
    return JobProgress(
        part_done(step, total),
        interval_body(left),
        times.to_the_end,
        longer_than_predicted=step > end.total.mean > 0 and not (is_by_clock or job.directive is Directive.FINISH),
        finishing=job.directive is Directive.FINISH,
        at_its_size=times.at_its_size,
        expected=times.expected,
    )


class _TimesLeft(NamedTuple):
    """As in `JobProgress`."""

    to_the_end: answers.Interval | None
    at_its_size: answers.Interval | None
    expected: answers.ExpectedTimes | None


def _times_left(
    job: JobRecord,
    decision: DecisionRecord | None,
    end: End,
    left: Interval,
    expected: answers.ExpectedTimes | None,
    now: float,
    speed: float | None,
) -> _TimesLeft:
    """Of a job whose end its forecast tells. `left`: steps of the mean length; `expected`: by the look at the queue,
    not yet moved by the steps since; `speed`: see `progress_of`."""
    is_new, drift = _drift_here(job, decision, end, speed) is not None, _newest_drift(job, decision, end, now, speed)
    limit, rest = _time_limit(job, now), end.seconds_after_steps or _NO_SECONDS
    now_left = less_untold(left, _untold_steps(job, decision, end, now, drift))
    here, late = end.seconds(now_left, drift), _late_seconds(job, decision, end, now, drift)
    by_clock = _seconds_by_clock(job, decision, end, now)
    if by_clock is not None:
        here, rest, late = by_clock, _NO_SECONDS, _NO_SECONDS
    elif expected is not None and decision is not None and decision.changes_size and not is_new:
        here = None  # the forecast is of the size that it had, and the look at the queue of the one that it has now
    ends_here = None if here is None else limit.cut(_plus(_plus(here, rest), late))
    at_its_size = None if job.owner_paused_at is not None or ends_here is None else interval_body(ends_here)
    if expected is not None and not (job.waits or end.by_time or decision is None or decision.expected is None):
        knows_more = decision.changes_size if is_new else _is_of_earlier_look(job, decision, decision.expected)
        steps_left = _left_at_the_look(decision.expected, end)
        if ends_here is not None and (knows_more or _is_beyond_the_look(now_left, steps_left)):
            # By how much the look was wrong of this size is not known, only what it takes as it is.
            expected = _ending_in(expected, ends_here, now)
        elif end.paid_seconds is None:  # a budget pays for seconds, however many steps they are
            part = drift * now_left.mean / steps_left if steps_left else None
            expected = _by_steps(expected, decision.expected, part, rest, late, now, limit)
    is_limited = end.by_time and at_its_size is not None and not job.waits
    to_the_end = None if expected is None or is_limited else expected.end_seconds
    if to_the_end is None and not job.waits:  # one without tasks has no size, so that only its start could tell
        to_the_end = at_its_size
    return _TimesLeft(to_the_end, at_its_size, expected)


def _seconds_by_clock(job: JobRecord, decision: DecisionRecord | None, end: End, now: float) -> Interval | None:
    """Seconds left of a job that its limit of time or its budget ends, whatever its speed; None of others."""
    limit = _time_limit(job, now)
    if end.by_time and limit.seconds < math.inf:
        return until_limit(limit.seconds, end.soonest)
    if end.paid_seconds is None or decision is None or not _is_of_its_size(job, decision):
        return None
    return Interval(*(max(each + decision.at - now, 0.0) for each in _bounds(end.paid_seconds)))


def _steps_by_clock(
    job: JobRecord, decision: DecisionRecord | None, end: End, now: float, speed: float | None
) -> Interval | None:
    """Steps that a job with tasks makes until that end, by its newest ones, where nothing else may end it before; None
    of others."""
    seconds, pace = _seconds_by_clock(job, decision, end, now), end.seconds_per_step
    if seconds is None or end.soonest < 1.0 or job.waits or pace is None or pace.low <= 0:
        return None
    drift = _newest_drift(job, decision, end, now, speed)
    paces = pace.mean, pace.high, pace.low
    return Interval(*(each / (drift * takes) for each, takes in zip(_bounds(seconds), paces, strict=True)))


def _is_of_its_size(job: JobRecord, decision: DecisionRecord) -> bool:
    """Whether a decision was made of a job that trained with what it has now, and left it that."""
    stays = decision.previous == decision.allocation == job.running and not job.waits
    return stays and job.formed_at is not None and job.formed_at <= decision.at


def _left_at_the_look(found: ExpectedTimesRecord, end: End) -> float:
    """Steps of the mean length that were left when the queue was looked at; 0: not known."""
    left, total = found.steps_left or 0.0, end.total.mean
    if not end.course.knots:
        return left
    return end.course.even(total) - end.course.even(total - left)


def _is_beyond_the_look(left: Interval, steps_left: float) -> bool:
    """Whether a job has overtaken what was foreseen of it, or may end with each step. The look at the queue, which knew
    of the `steps_left` then, says nothing of that. `left`: steps."""
    return 0.0 < steps_left < left.mean or left.mean < 1.0 < left.high


def _part_made(job: JobRecord, end: End | None) -> float | None:
    """Of a job that has failed or was cancelled. None where nobody knows how far it would have gone: it was beyond what
    was predicted, or its loss, by which it would have ended, was no number any more."""
    if end is None or end.is_guessed:
        return None
    is_overtaken = job.step > end.total.mean or (job.loss is not None and not math.isfinite(job.loss))
    return None if is_overtaken and end.total.low < end.total.high else part_done(job.step, end.total)


def times_of(
    job: JobRecord,
    decision: DecisionRecord | None,
    now: float,
    ends: Ends | None = None,
    still: Standstills = MappingProxyType({}),
) -> answers.ExpectedTimes | None:
    """What `progress_of` says of the start and the end. Of most jobs that wait it is known without all else."""
    if not _waits_plainly(job, now, still):
        return progress_of(job, decision, now, ends, still).expected
    return _foreseen_times(job, decision, now, ends, still)


def start_of(
    job: JobRecord, decision: DecisionRecord | None, now: float, ends: Ends, still: Standstills
) -> answers.Interval | None:
    """The seconds until the start in `times_of`, without all else: of thousands of jobs."""
    if not _waits_plainly(job, now, still):
        expected = progress_of(job, decision, now, ends, still).expected
        return None if expected is None else expected.start_seconds
    if decision is None or decision.expected is None or job.owner_paused_at is not None:
        return None
    if _is_let_in_by_no_end(decision):
        return None
    return interval_body(_foreseen_start(decision.expected, now, ends, still))


def is_without_end(
    job: JobRecord,
    decision: DecisionRecord | None,
    now: float,
    ends: Ends,
    still: Standstills,
    start: answers.Interval | None = None,
) -> bool:
    """Whether `progress_of` says of no time that it is left: of thousands of jobs, most of which wait.

    `start`: the seconds until it in `start_of`, of a job that waits.
    """
    if not _waits_plainly(job, now, still):
        return progress_of(job, decision, now, ends, still).remaining_seconds is None
    end = None if decision is None or decision.expected is None else decision.expected.end
    return start is None or end is None or not math.isfinite(end.mean)


def _waits_plainly(job: JobRecord, now: float, still: Standstills) -> bool:
    """Whether the queue simulated forward has said all that is told of its start and end."""
    tried = (
        _awaited_retry(job, now) is not None or goes_back(job) or has_failed_before(job) or _is_without_end(job, still)
    )
    return job.waits and not (job.state.is_final or tried)


def _awaited_retry(job: JobRecord, now: float) -> float | None:
    """When a job that waits after an error may be tried again, POSIX seconds; None: it waits for no such time."""
    if job.retry_at is None or job.retry_at <= now or job.owner_paused_at is not None:
        return None
    return job.retry_at


def tells_no_end(job: JobRecord, decision: DecisionRecord | None, now: float, still: Standstills) -> bool:
    """Whether no end of the job is told, whatever size it has, though a look at the queue may have one: it is being
    cancelled, waits to be tried again, stands still, or has yet to pass the step where it failed or hung."""
    stands = _is_without_end(job, still) or was_without_end(job, decision, now)
    fails = goes_back(job) or _may_fail_again(job, still) or _awaited_retry(job, now) is not None
    return job.is_being_cancelled or stands or fails or _goes_back_replaced(job, still)


def _may_fail_again(job: JobRecord, still: Standstills) -> bool:
    """Whether a job without tasks is yet to pass the step where it failed."""
    return has_failed_before(job) or (job.waits and job.id in still and still[job.id].failed_at is not None)


def _foreseen_times(
    job: JobRecord, decision: DecisionRecord | None, now: float, ends: Ends | None, still: Standstills
) -> answers.ExpectedTimes | None:
    if decision is None or job.owner_paused_at is not None:  # nobody knows when an owner lets a paused job go on
        return None
    found = decision.expected
    if found is not None and _is_let_in_by_no_end(decision):  # the look may be of before a quota was changed
        found = replace(found, start=None, end=None)
    limit = _time_limit(job, now)
    return expected_times(found, now, ends, still, waits=job.waits, granted_at=job.wanted_at, limit=limit)


def _time_limit(job: JobRecord, now: float) -> _TimeLimit:
    limit = limits_in_force(job, now).max_seconds
    if limit is None:
        return _UNLIMITED
    since = job.started_at
    return _TimeLimit(limit, has_begun=False) if since is None else _TimeLimit(max(since + limit - now, 0.0))


def _is_let_in_by_no_end(decision: DecisionRecord) -> bool:
    """Whether a job waits for a quota, a limit or a node, and not for another job."""
    return decision.allocation.is_empty and NO_END_HELPS in decision.message


def step_of(job: JobRecord, still: Standstills = MappingProxyType({})) -> int:
    """The step that it is at or goes on from, as far as is known: all that is told of its steps counts from there."""
    is_anew = not job.state.is_final and _begins_anew_now(job, still)
    return began_at(job) if is_anew else next_step(job)


def loss_of(job: JobRecord, still: Standstills = MappingProxyType({})) -> float | None:
    """The loss that it told last; None where that is of steps that it makes again."""
    return None if step_of(job, still) < job.step else finite(job.loss)


def makes_no_more(job: JobRecord, still: Standstills) -> bool:
    """Whether its processes have no step left to make, and go on."""
    return is_after_last_step(job) and not _is_replaced(job, still)


def is_ending(job: JobRecord, still: Standstills) -> bool:
    """Whether they make none more: they save or evaluate and end."""
    return is_finishing(job) and not _is_replaced(job, still)


def _is_replaced(job: JobRecord, still: Standstills) -> bool:
    return job.id in still and still[job.id].is_replaced


def _begins_anew_now(job: JobRecord, still: Standstills) -> bool:
    """Whether its processes are gone, and those that take their place have nothing to go on from."""
    return _is_replaced(job, still) and begins_anew(job)


def _goes_back_replaced(job: JobRecord, still: Standstills) -> bool:
    """Whether they are gone after its last step, and others go on from its last checkpoint."""
    return _is_replaced(job, still) and is_after_last_step(job) and not begins_anew(job)


def _is_without_end(job: JobRecord, still: Standstills) -> bool:
    """Whether nothing tells when it ends: it stands still, or has yet to pass the step where it hung or failed."""
    return job.id in still and still[job.id].is_without_end


def was_without_end(job: JobRecord, decision: DecisionRecord | None, now: float) -> bool:
    """Whether the newest look at the queue took a job with tasks, whose length and speed it knew, for one of which
    nothing tells whether it goes on. It tells no start behind the job; and of the job no end is told before the next
    look, either."""
    found = None if decision is None else decision.expected
    if decision is None or found is None or now > found.valid_until or job.waits or found.start or found.end:
        return False
    end = End.of(decision.forecast)
    if end is None or end.is_guessed or not found.steps_left:
        return False
    return decision.is_without_end or decision.at <= found.at


def _has_stalled(job: JobRecord, still: Standstills) -> bool:
    """The same of a job with tasks, whose end others may wait for."""
    return not job.waits and _is_without_end(job, still)


def expected_times(
    found: ExpectedTimesRecord | None,
    now: float,
    ends: Ends | None = None,
    still: Standstills = MappingProxyType({}),
    *,
    waits: bool,
    granted_at: float | None = None,
    limit: _TimeLimit = _UNLIMITED,
) -> answers.ExpectedTimes | None:
    """What the queue simulated forward says, as of now; None when it said nothing, or too long ago.

    `waits`: whether the job does now; of one that lost its tasks since nothing is known before the next look.
    `granted_at`: when it got those that it has.
    """
    if found is None or now > found.valid_until:
        return None
    had_tasks, waited = found.start is None and found.end is not None, found.start is not None
    if had_tasks if waits else waited and (granted_at is None or granted_at < found.at):
        return None
    start = _foreseen_start(found, now, {} if ends is None else ends, still) if waits else None
    end = None
    if found.end is not None and not waits:
        said_at, ends_at = found.at, found.end
        if found.start is not None and granted_at is not None:  # it takes as long as was foreseen, from its start on
            low, mean, high = sorted(max(each, 0.0) for each in _bounds(_plus(found.end, found.start, -1.0)))
            said_at, ends_at = granted_at, Interval(granted_at + mean, granted_at + low, granted_at + high)
        end = until_later(ends_at, said_at, now)
    elif found.end is not None and start is not None and found.start is not None:
        # It takes as long as was foreseen, from a start that may have moved.
        takes = _plus(found.end, found.start, -1.0)
        bounds = sorted(max(*both) for both in zip(_bounds(_plus(takes, start)), _bounds(start), strict=True))
        end = Interval(bounds[1], bounds[0], bounds[2])
    if end is not None:
        end = limit.cut(end, start)
    return answers.ExpectedTimes(
        computed_at=moment(found.at),
        start_seconds=interval_body(start),
        start_at=None if start is None else _instants(now, start),
        end_seconds=interval_body(end),
        end_at=None if end is None else _instants(now, end),
        cut=None if waits else _cut(found, now),
    )


_SOON_SECONDS = 60.0
"""A loss of tasks that has not come so long after it was expected is not told any more."""


def _cut(found: ExpectedTimesRecord, now: float) -> answers.ExpectedCut | None:
    """That the job is expected to lose tasks."""
    cut = found.cut
    if cut is None or now > cut.at.high + _SOON_SECONDS:
        return None
    low, mean, high = (max(each - now, 0.0) for each in (cut.at.low, cut.at.mean, cut.at.high))
    when = f"in about {time_words(mean)}" if mean >= _MOMENT_SECONDS else "in a moment"
    first, last = cut.at.low - found.at, cut.at.high - found.at
    if last > _FAR_APART * first + _MOMENT_SECONDS and high >= _MOMENT_SECONDS:
        when = f"in {time_words(low)} to {time_words(high)}" if low >= _MOMENT_SECONDS else f"within {time_words(high)}"
    # About half to two thirds of them come: no more is said than that it may.
    what = "paused" if cut.pauses else "made smaller"
    return answers.ExpectedCut(pauses=cut.pauses, seconds=mean, words=f"may be {what} {when}")


_MOMENT_SECONDS = 5.0
_FAR_APART = 2.0
"""Instants that are so many times as far away as others are told with these."""


def _foreseen_start(found: ExpectedTimesRecord, now: float, ends: Ends, still: Standstills) -> Interval | None:
    """Seconds until the start of a job that waits; None: nothing can be said, or was said too long ago."""
    if found.start is None or now > found.valid_until or stalled_since(found, still):
        return None
    return _start(found, found.start, now, ends, still)


def stalled_since(found: ExpectedTimesRecord, still: Standstills) -> list[JobRecord]:
    """Jobs whose ends a start was foreseen with and of which none is told any more, where it likely was with theirs."""
    # Looks count that one may fail again: then it leaves its room, as with an end.
    awaited = [(one.job, one.part) for one in found.behind if one.job is not None and _has_stalled(one.job, still)]
    stalled = [(job, part) for job, part in awaited if still[job.id].fails_at is None]
    return [job for job, _ in stalled] if sum(part for _, part in stalled) >= _LIKELY else []


_MAY_BE_FIRST = 0.2
"""A tenth of the starts come before the low bound. It is no later than with an end that so many wait for: of these one
in two, or more, comes before it."""
_OVERDUE_SECONDS = 1.0
"""A start that was foreseen with an end and has not come so long after it waits for something else."""


def _start(found: ExpectedTimesRecord, start: Interval, now: float, ends: Ends, still: Standstills) -> Interval | None:
    """Seconds until a start: as much later or sooner than foreseen as the ends are now that it waits for. None: these
    have come, and it has not.

    Those of jobs of which no end is said (of unknown length, without tasks since, or that may fail before) go on as was
    foreseen, by the time.
    """
    total, rest, lows = Interval(0.0, 0.0, 0.0), 1.0, list[float]()
    for one in found.behind:
        if one.job is not None and one.job.id in still and still[one.job.id].fails_at is not None:
            continue
        then, left = awaited_end(one, found), awaited_left(one, now, ends)
        if then is not None and left is not None:
            times = zip(_bounds(start), _bounds(then), _bounds(left), strict=True)
            moved = Interval(*(_moved(*each, found.at) for each in times))
            total = _plus(total, moved, one.part)
            rest -= one.part
            if one.part >= _MAY_BE_FIRST:
                lows.append(min(moved))
            if one.job is not None and found.at_once.get(one.job.id, 0.0) >= _MAY_BE_FIRST:
                lows.append(_in_proportion(start.low, then.low, left.low, found.at))
    if rest > 0.0:
        total = _plus(total, until_later(start, found.at, now), rest)
    low, mean, high = sorted(_bounds(total))
    # An end that comes closer than the others lets it in alone, and with it there is nothing to come after it: what the
    # start was told for later was doubt.
    low = min([low, *lows])
    return None if high < -_OVERDUE_SECONDS else Interval(*(max(each, 0.0) for each in (mean, low, high)))


def _moved(start: float, then: float, left: float, found_at: float) -> float:
    """Seconds until a start that was foreseen together with an end, POSIX seconds, where so much is `left` until that.

    What comes after the end stays as long after it. A start before it, which is possible where both are doubtful, is at
    the same part of the way to it: so far before an end that has come much closer, it would be over.
    """
    return _in_proportion(start, then, left, found_at) if then > start else left + start - then


def _in_proportion(start: float, then: float, left: float, found_at: float) -> float:
    """Seconds until a start at the same part of the way to that end."""
    return left * (start - found_at) / (then - found_at) if then > found_at else left + start - then


def _after_retry(expected: answers.ExpectedTimes | None, retry_at: float, now: float) -> answers.ExpectedTimes | None:
    """The start of a job that waits for its retry: the later of that time and of the first expected start.

    Where no room is expected yet, no start is told: its words say when the retry may be.
    """
    if expected is None or expected.start_seconds is None:
        return None
    starts = expected.start_seconds
    wait = Interval(*(max(retry_at - now, each or 0.0) for each in (starts.mean, starts.low, starts.high)))
    return answers.ExpectedTimes(
        computed_at=expected.computed_at,
        start_seconds=interval_body(wait),
        start_at=_instants(now, wait),
        end_seconds=None,
        end_at=None,
    )


def awaited_end(one: Awaited, found: ExpectedTimesRecord) -> Interval | None:
    """The end by which the start was foreseen, POSIX seconds; None where none was said, or by another look."""
    expected = None if one.decision is None else one.decision.expected
    return None if expected is None or expected.at != found.at else expected.end


def awaited_left(one: Awaited, now: float, ends: Ends) -> Interval | None:
    """Seconds until the end of a job that is waited for, below 0 since then; None where nothing can be said."""
    if one.job is None or one.job.state.is_final:
        since = 0.0 if one.job is None or one.job.finished_at is None else min(one.job.finished_at - now, 0.0)
        return Interval(since, since, since)
    if one.job.is_without_tasks:
        return None
    if one.job.id not in ends:
        left = progress_of(one.job, one.decision, now).remaining_seconds
        ends[one.job.id] = None
        if left is not None and left.low is not None and left.high is not None:
            ends[one.job.id] = Interval(left.mean, left.low, left.high)
    return ends[one.job.id]


def _plus(value: Interval, other: Interval, times: float = 1.0) -> Interval:
    return Interval(*(each + times * more for each, more in zip(_bounds(value), _bounds(other), strict=True)))


def _bounds(value: Interval) -> tuple[float, float, float]:
    return value.mean, value.low, value.high


def _by_steps(
    expected: answers.ExpectedTimes,
    found: ExpectedTimesRecord,
    part: float | None,
    rest: Interval,
    late: Interval,
    now: float,
    limit: _TimeLimit,
) -> answers.ExpectedTimes:
    """With the end of a job that trains moved by its steps: the time foreseen for those that are made is over, whether
    they took as long as foreseen or not. `part`: of the time foreseen for steps, what the others take; None: none were
    foreseen. `rest`: seconds of the time foreseen that come after all steps. `late`: seconds that the next step is
    expected to be late now; those that it was then are no time of steps."""
    if found.end is None or found.start is not None or part is None:
        return expected
    ends = _plus(found.end, found.late_seconds or _NO_SECONDS, -1.0)
    lefts = zip(_bounds(ends), _bounds(rest), strict=True)
    low, mean, high = sorted(max(part * max(each - found.at, 0.0) + (1.0 - part) * more, 0.0) for each, more in lefts)
    return _ending_in(expected, limit.cut(_plus(Interval(mean, low, high), late)), now)


def _ending_in(expected: answers.ExpectedTimes, seconds: Interval, now: float) -> answers.ExpectedTimes:
    return replace(expected, end_seconds=interval_body(seconds), end_at=_instants(now, seconds))


def is_of_earlier_steps(job: JobRecord, decision: DecisionRecord | None) -> bool:
    """Whether the forecast knows nothing of how fast a job trains with what it has: its newest membership began after
    the newest step that the forecast saw, or that had seen too few to go by anything but ended jobs."""
    if decision is None or job.waits or job.running.is_empty or job.running != decision.allocation:
        return False
    if decision.forecast.speed_from is SpeedSource.SIMILAR_JOBS and not job.is_tracked:
        return True
    return job.formed_at is not None and job.formed_at > (decision.at if decision.step_at is None else decision.step_at)


def _is_of_earlier_look(job: JobRecord, decision: DecisionRecord, found: ExpectedTimesRecord) -> bool:
    """Whether the look at the queue knew nothing of that either, but the forecast does: the next look follows it."""
    is_told = job.running == decision.previous == decision.allocation and not job.is_tracked
    is_told = is_told and job.formed_at is not None and found.at < job.formed_at
    return is_told and not is_of_earlier_steps(job, decision)


def speed_here(job: JobRecord, newest: Sequence[SampleRecord], now: float) -> float | None:
    """`measured_speed` with what the job has now; None: it has told too few steps with it."""
    here = [each for each in newest if each.membership_epoch == job.membership_epoch]
    return measured_speed(here, now) if _longest_of_one_worker(here) else None


_LEAST_PART = 1e-9
"""A step takes at most a thousand million times as long as was foreseen."""


def _drift_here(job: JobRecord, decision: DecisionRecord | None, end: End, speed: float | None) -> float | None:
    """How many times as long a step takes as the forecast said, by `speed` alone, as the forecast knows nothing of the
    steps with what the job has; None: it does, or none is known."""
    if speed is None or end.seconds_per_step is None or not is_of_earlier_steps(job, decision):
        return None
    even_speed = speed * (end.course.even(job.step + 1.0) - end.course.even(job.step))
    return 1.0 / max(even_speed * end.seconds_per_step.mean, _LEAST_PART)


def _newest_drift(job: JobRecord, decision: DecisionRecord | None, end: End, now: float, speed: float | None) -> float:
    """How many times as long a step takes as the forecast said, as far as is known."""
    drift = _drift_here(job, decision, end, speed)
    if drift is None:
        return 1.0 if decision is None else _drift(job, decision, end, now)
    return drift


_REPORT_SECONDS = 1.0
"""Between two reports of steps, as long as it is not known of a job: tasks post theirs once a second."""


def _drift(job: JobRecord, decision: DecisionRecord, end: End, now: float) -> float:
    """How many times as long steps take as the forecast said, by those since the one that it was made at, up to
    the newest: from when the one came to when the other did, for steps may come late, and many at once. What is
    measured over so long as the forecast had seen of training, or as a measured speed is, counts as much as the
    forecast; where the size changes, or training began anew meanwhile, nothing is measured yet."""
    since = decision.at if decision.step_at is None else decision.step_at
    until = now if job.step_at is None else job.step_at
    n_steps, seconds, pace = end.course.even(job.step) - end.made_at, until - since, end.seconds_per_step
    is_steady = decision.previous == decision.allocation == job.running and not job.waits
    is_steady = is_steady and (job.formed_at is None or job.formed_at <= since)
    if pace is None or not is_steady or n_steps <= 0 or seconds <= 0 or pace.mean <= 0:
        return 1.0
    # The decision and now are somewhere within a step, or between two reports: so many more or fewer say nothing.
    foreseen = seconds / pace.mean
    reported = (0.0 if decision.expected is None else decision.expected.report_seconds) or _REPORT_SECONDS
    apart = max(1.0, reported / pace.mean)
    made = min(max(foreseen, n_steps - apart), n_steps + apart)
    # A forecast that was made soon after training began rests on no more than what it had seen by then.
    seen = SPEED_WINDOW_SECONDS if job.formed_at is None else min(since - job.formed_at, SPEED_WINDOW_SECONDS)
    weight = seconds / (seconds + seen)
    if made <= 0 or not 0.0 < foreseen < math.inf:
        return 1.0
    return math.exp(weight * (math.log(foreseen) - math.log(made)))  # a quotient may be too small for a number


def _untold_steps(job: JobRecord, decision: DecisionRecord | None, end: End, now: float, drift: float) -> float:
    """Steps of the mean length that a job with tasks is taken to have made since the newest one that it told, as it
    tells only some."""
    since, pace = silent_since(job), end.seconds_per_step
    expected = None if decision is None else decision.expected
    if since is None or pace is None or expected is None or job.waits or job.running.is_empty or pace.mean <= 0:
        return 0.0
    return min(max(now - since, 0.0), expected.report_seconds) / (drift * pace.mean)


def _late_seconds(job: JobRecord, decision: DecisionRecord | None, end: End, now: float, drift: float) -> Interval:
    """For how long no step is expected to come, as the next one is late."""
    at, pace = stepped_at(job), end.seconds_per_step
    expected = None if decision is None else decision.expected
    if at is None or pace is None or expected is None:
        return _NO_SECONDS
    return late_seconds(now - at, max(expected.report_seconds, drift * pace.mean))


def _instants(now: float, seconds: Interval) -> answers.Instants:
    return answers.Instants(
        mean=foreseen(now + seconds.mean), low=foreseen(now + seconds.low), high=foreseen(now + seconds.high)
    )


def _after_last_step(job: JobRecord, end: End | None, now: float) -> JobProgress:
    since, usual = silent_since(job), None if end is None else end.seconds_after_steps
    seconds = after_last_step(0.0 if since is None else now - since, usual)
    if is_ended(job):
        done, left_seconds = MOST_PROGRESS if limit_made(job) is None else 1.0, interval_body(seconds)
        no_steps = answers.Interval(mean=0.0, low=0.0, high=0.0)
        return JobProgress(done, no_steps, left_seconds, finishing=True, at_its_size=left_seconds)
    announced = (job.profile or {})["total_steps"]
    left = beyond_announced(announced, job.step, most_steps(job) - job.step)
    is_beyond = not is_finishing(job)
    part = part_done(job.step, Interval(job.step + left.mean, job.step + left.low, job.step + left.high))
    by_steps = None if end is None else end.seconds(left)
    seconds = seconds if by_steps is None else longer_of(seconds, by_steps)
    return JobProgress(
        part if is_beyond else 1.0,
        interval_body(left if is_beyond else Interval(0.0, 0.0, left.high)),
        interval_body(_time_limit(job, now).cut(seconds)),
        longer_than_predicted=is_beyond,
        finishing=not is_beyond,
    )


def measured_speed(newest: Sequence[SampleRecord], now: float) -> float | None:
    """Steps per second of the whole job over the last `SPEED_WINDOW_SECONDS`, from its newest samples (any order).

    Of the newest steps: seconds since then are no part of them, as nobody knows yet whether it stands still
    (`silent_seconds`). None when it has not made a step in that time, or only one that cannot be timed.
    """
    recent = _recent(newest, now)
    if not recent:
        return None
    first, last = _longest_of_one_worker(recent) or (min(recent, key=_in_order), max(recent, key=_in_order))
    if last.at - first.at > (0.0 if first.rank == last.rank else last.seconds) and last.step > first.step:
        return (last.step - first.step) / (last.at - first.at)
    return last.n_steps / last.seconds if last.seconds > 0 else None


def _longest_of_one_worker(samples: Sequence[SampleRecord]) -> tuple[SampleRecord, SampleRecord] | None:
    """The oldest and the newest of one worker's that lie furthest apart: first samples of two workers may come within a
    moment, and a step between them tells no speed. None: no worker has told twice that it got further."""
    of_rank: dict[int, list[SampleRecord]] = {}
    for each in samples:
        of_rank.setdefault(each.rank, []).append(each)
    spans = [(min(each, key=_in_order), max(each, key=_in_order)) for each in of_rank.values()]
    told = [(first, last) for first, last in spans if last.at > first.at and last.step > first.step]
    return max(told, key=lambda span: span[1].at - span[0].at, default=None)


def _in_order(sample: SampleRecord) -> tuple[float, int]:
    return sample.at, sample.step


def silent_seconds(newest: Sequence[SampleRecord], now: float) -> float | None:
    """Since the newest step of those of `measured_speed` came, where that is longer than two reports lie apart; None:
    the next one is not late."""
    recent = _recent(newest, now)
    if not recent:
        return None
    came = sorted({sample.received_at for sample in recent})
    moments = [each.at for each in recent]
    at_once = max(max(moments) - min(moments), *(each.seconds for each in recent))
    longest = max((later - sooner for sooner, later in pairwise(came)), default=at_once)
    silent = now - came[-1]
    return silent if silent > longest + max(longest, _LEAST_LATE_SECONDS) else None


_LEAST_LATE_SECONDS = 1.0
"""What is told each tenth of a second is not late yet so long after the next should have come."""


def _recent(newest: Sequence[SampleRecord], now: float) -> list[SampleRecord]:
    """Those of the last `SPEED_WINDOW_SECONDS`. Steps of an earlier membership may have been rolled back, so speeds are
    not taken across a change."""
    recent = [sample for sample in newest if sample.received_at > now - SPEED_WINDOW_SECONDS]
    epoch = max((sample.membership_epoch for sample in recent), default=0)
    return [sample for sample in recent if sample.membership_epoch == epoch]
