"""When each job is likely to start and to end: the queue simulated forward under the real policy. Pure.

The jobs that are there and those that are likely to come run through one or a few possible trajectories (`trajectory`).
In each of them every job has another part of the distribution of its remaining work. Each trajectory gives each job the
speeds that it would have from now on; from these, the job's own doubts and those of the jobs that it waits for
(`doubts`) follow distributions of its start and its end, and all trajectories together give their 10th, 50th and 90th
percentile. Changes of size with their stops, waiting and later arrivals count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from statistics import NormalDist
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from optimus_models.convergence import LEAST_POINTS
from optimus_scheduler.ahead.cuts import agreed_cut, freed_by
from optimus_scheduler.ahead.doubts import Doubts, levels_of
from optimus_scheduler.ahead.earliest_starts import DRAWS, Needed, drawn, earliest_starts
from optimus_scheduler.ahead.queue import ExpectedTimes, Queue, Work, pace_of, rest_of_life, until_later
from optimus_scheduler.ahead.start_ups import is_starting, start_up_seconds, untold_since_start
from optimus_scheduler.ahead.training_alike import first_to_end, work_like_training
from optimus_scheduler.ahead.trajectory import Rules, Trajectory
from optimus_scheduler.allocate.policy import PlanningPolicy, Policy
from optimus_scheduler.forecast.alike_runs import seconds_of_silent_runs, steps_left_like_alike_runs
from optimus_scheduler.forecast.end import epoch_steps, has_made_all, has_reached_its_limit
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.forecast.precedents import may_end_by_curve
from optimus_scheduler.forecast.time_left import Habits, after_last_step, less_untold, longer_of, step_seconds
from optimus_scheduler.model import BY_CLOCK, Directive, Interval, Job, Resources, Role
from optimus_scheduler.settings import Settings

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MOST_DECISIONS = 2400
"""Decisions about one job's size, all instants of all trajectories together: what 200 ms on one core allow. More where
`_LEAST_INSTANTS` of all jobs are more: with over 200 of them."""
MOST_PLACED = 1200
"""Of these decisions so many, the first ones, look for nodes, too; later ones count what all nodes have together. The
first instant looks for nodes in any case."""
_MOST_TRAJECTORIES, _MOST_INSTANTS, _LEAST_INSTANTS = 2, 24, 12
_STARTS = 21
"""About so many of its equally likely starts are put together with the times that a job takes."""
_MOST_CAUSES = 5
"""Of all jobs by whose end one may start, so many are told: the likeliest."""
_NEVER = 10.0
"""A job that has not ended by then is taken to take so many times as long as the longest that did."""


def look_ahead(queue: Queue, policy: Policy, settings: Settings) -> dict[str, ExpectedTimes]:
    """What is expected of each job of the queue, by id. Deterministic."""
    # Nobody knows when an owner lets a paused job go on.
    outlooks = sorted((one for one in queue.outlooks if not one.job.owner_paused), key=lambda one: one.id)
    if not outlooks:
        return {}
    queue = replace(queue, outlooks=outlooks)
    if settings.scale_batches and not policy.scales_batches:
        settings = replace(settings, scale_batches=False)
    rest = cache(partial(rest_of_life, tuple(queue.lengths)))  # that of most jobs that wait is the same
    training = first_to_end(queue)
    work = [_work(one, queue, rest, training) for one in outlooks]
    work = [
        each._replace(is_made_up=True) if one.id in queue.stalled else each
        for one, each in zip(outlooks, work, strict=True)
    ]
    n_jobs = len(outlooks) + len(queue.arrivals) // 2
    n_trajectories, n_instants = _extent(n_jobs)
    if isinstance(policy, PlanningPolicy):
        # Its plan is its prediction. The doubts of others would mix it with plans that it does not have.
        n_trajectories = 1
    n_more = max(MOST_DECISIONS // (n_jobs * n_trajectories) - n_instants, 0)
    fails = _failing(outlooks, queue) if n_trajectories > 1 else {}
    rules = Rules(policy, settings, n_instants, n_more, max(MOST_PLACED // (n_jobs * n_trajectories), 1))
    # Later jobs are guesses. Of two trajectories one has none: in truth as many may not come.
    present = replace(queue, arrivals=())
    trajectories = [
        _trajectory(present if number % 2 else queue, work, rules, number, n_trajectories, fails if number % 2 else {})
        for number in range(n_trajectories)
    ]
    doubts = [Doubts(trajectory, work, fails if number % 2 else {}) for number, trajectory in enumerate(trajectories)]
    foreseen = _foreseen(queue, doubts)
    starts = {j: _Starts(each, _causes(j, doubts)) for j, each in foreseen.items()}
    if queue.quotas or queue.worker_limits:
        if starts and queue.arrivals:
            alone = Doubts(_trajectory(present, work, rules, 0, 1), work)
            both = [*doubts, *[alone] * n_trajectories]
            starts = {
                j: _Starts(_with_and_without_arrivals(each, alone.starts(j)), _causes(j, both))
                for j, each in foreseen.items()
            }
    elif not isinstance(policy, PlanningPolicy):
        starts |= _or_earliest(queue, doubts, foreseen)
    found = {one.id: _expected_times(queue, j, doubts, starts.get(j)) for j, one in enumerate(outlooks)}
    for j, one in enumerate(outlooks):
        # No start is told behind it, until the next look. Behind one that may fail there is.
        if one.id in queue.stalled and (j in starts or one.id not in queue.fails_at):
            found[one.id] = found[one.id]._replace(end=None)
    return _with_cuts(found, trajectories, outlooks)


def _with_cuts(
    found: dict[str, ExpectedTimes], trajectories: Sequence[Trajectory], outlooks: Sequence[Outlook]
) -> dict[str, ExpectedTimes]:
    """With who is expected to lose tasks to whom. Not of a job that may have other sizes and whose speeds at them are
    still being learned: what is learned mostly changes that. (Paper workload, three times its load, seed 0: of 430 such
    pauses 35 % came within three times the time told, of 84 others 69 %; left out, seed 1 and Pollux 2: of all 48
    losses that are told so 77 %.)"""
    ids, by_trajectory = [one.id for one in outlooks], [each.cuts for each in trajectories]
    sure = [j for j in by_trajectory[0] if not outlooks[j].learning or outlooks[j].minimum == outlooks[j].maximum]
    cuts = {j: agreed_cut(ids, [each.get(j) for each in by_trajectory]) for j in sure}
    for j, cut in cuts.items():
        if cut is not None:
            found[ids[j]] = found[ids[j]]._replace(cut=cut)
    for j in {gainer for each in by_trajectory[0].values() for gainer in each.gainers}:
        loser = freed_by(j, [each.start_of(j) for each in trajectories], by_trajectory)
        if loser is not None and cuts.get(loser) is not None and found[ids[j]].start is not None:
            found[ids[j]] = found[ids[j]]._replace(freed_by=ids[loser])
    return found


def _extent(n_jobs: int) -> tuple[int, int]:
    """How many trajectories, and instants in each, so that the decisions are not too many. Two with fewer instants
    tell more than one with more: in a single one all later jobs come, or none."""
    decisions = MOST_DECISIONS // n_jobs
    n_trajectories = min(max(decisions // _LEAST_INSTANTS, 1), _MOST_TRAJECTORIES)
    return n_trajectories, min(max(decisions // n_trajectories, _LEAST_INSTANTS), _MOST_INSTANTS)


def _trajectory(
    queue: Queue,
    work: Sequence[Work],
    rules: Rules,
    number: int,
    n_trajectories: int,
    fails: Mapping[int, Work] = MappingProxyType({}),
) -> Trajectory:
    """Every job gets another part of its distribution in each trajectory; with a single one, its median. `fails`: those
    that leave their room before their end, and the steps until then."""
    work = [fails.get(j, each) for j, each in enumerate(work)]
    parts = [((number + job) % n_trajectories + 0.5) / n_trajectories for job in range(len(work))]
    drawn = [each.at(NormalDist().inv_cdf(part)) for each, part in zip(work, parts, strict=True)]
    endless = [
        each.is_made_up or (each.is_until_limit and steps >= each.median)
        for each, steps in zip(work, drawn, strict=True)
    ]
    trajectory = Trajectory(queue, drawn, rules, endless, is_only=n_trajectories == 1)
    trajectory.run()
    return trajectory


def _failing(outlooks: Sequence[Outlook], queue: Queue) -> dict[int, Work]:
    """Steps until those jobs may fail again whose last try did so at a known step. In one of two trajectories they do:
    what failed once at a step mostly does so again, if not by chance."""
    found = {}
    for j, one in enumerate(outlooks):
        at, size = queue.fails_at.get(one.id), queue.sizes.get(one.id, one.present)
        if at is not None and not size.is_empty and one.speeds.is_measured:
            running = 0.0 if one.job.started_at is None else queue.now - one.job.started_at
            course = one.forecast.course
            habits = Habits(running_seconds=running, course_doubt=course.doubt)
            pace = Work.of(step_seconds(one.speeds.estimate(size), habits))
            found[j] = Work(max(course.even(at) - one.job.step, 1.0), pace.down, pace.up)
    return found


def _work(
    outlook: Outlook,
    queue: Queue,
    rest_of: Callable[[float, float], Interval],
    training: Mapping[Hashable, Outlook],
) -> Work:
    """Steps left, with the doubt about the speed in it: a slower job than predicted is like one with more steps.
    `rest_of`: `rest_of_life` by the lengths of the queue. `training`: `first_to_end` of it."""
    remaining = expected_steps(outlook)
    if (ending := _work_of_its_end(outlook, queue.now)) is not None:
        return ending
    size = queue.sizes.get(outlook.id, outlook.present)
    size = outlook.minimum if size.is_empty else size
    running = 0.0 if outlook.job.started_at is None else queue.now - outlook.job.started_at
    if remaining is None:
        if (as_training := work_like_training(outlook, training)) is not None:
            return as_training
        like_it, speed = seconds_of_silent_runs(outlook.job), pace_of(outlook, size)
        # One that has told no step begins anew with each of its sizes, as far as anybody knows.
        ran = min(running, outlook.allocated_seconds) if like_it is not None or not outlook.job.step else running
        rest = rest_of(ran, outlook.typical_seconds) if like_it is None else until_later(like_it, 0.0, ran)
        work = Work.of(Interval(rest.mean * speed, rest.low * speed, rest.high * speed))
        is_like_others = not _tells_no_end(outlook.job) and any(length > ran for length in queue.lengths)
        return work._replace(is_made_up=like_it is None and not is_like_others)
    job, usual, speed = outlook.job, outlook.forecast.seconds_after_steps, pace_of(outlook, size)
    if has_made_all(job) and job.silent_since is not None and not outlook.present.is_empty:
        seconds = after_last_step(queue.now - job.silent_since, usual)
        remaining = longer_of(remaining, Interval(*(each * speed for each in seconds)))
    elif usual is not None:
        remaining = Interval(*(each + more * speed for each, more in zip(remaining, usual, strict=True)))
    left = less_untold(remaining, untold_steps(outlook, queue))
    if outlook.forecast.rule in BY_CLOCK and remaining.mean == remaining.high:
        return Work.of(left)._replace(is_until_limit=True)
    if late := queue.late.get(outlook.id):
        left = Interval(*(each + more * speed for each, more in zip(left, late, strict=True)))
    known = Work.of(left)
    habits = Habits(running_seconds=running, course_doubt=outlook.forecast.course.doubt)
    pace = Work.of(step_seconds(outlook.speeds.estimate(size), habits))
    return Work(known.median, math.hypot(known.down, pace.down), math.hypot(known.up, pace.up))


def _work_of_its_end(outlook: Outlook, now: float) -> Work | None:
    """Of a job that its rule, a limit or its owner ends; None of others. It has no step left; it saves or evaluates."""
    job, has_tasks = outlook.job, not outlook.present.is_empty
    if job.directive is Directive.CANCEL:
        return Work(1e-9, 0.0, 0.0)
    ends = outlook.forecast.converged or has_reached_its_limit(job)
    if ends and has_tasks and job.silent_since is not None and outlook.speeds.is_measured:
        seconds = after_last_step(now - job.silent_since, outlook.forecast.seconds_after_steps)
        speed = pace_of(outlook, outlook.present)
        return Work.of(Interval(*(max(each * speed, 1e-9) for each in seconds)))
    return Work(1e-9, 0.0, 0.0) if outlook.forecast.converged else None


def _tells_no_end(job: Job) -> bool:
    """Whether, of a job whose end is not predicted, that is so by its losses: what others took says nothing then."""
    return may_end_by_curve(job) and len(job.losses) >= LEAST_POINTS


def is_expected_to_end(outlook: Outlook) -> bool:
    """Whether its forecast, or jobs like it, tell when it ends."""
    if outlook.forecast.converged or expected_steps(outlook) is not None:
        return True
    return seconds_of_silent_runs(outlook.job) is not None


def untold_steps(outlook: Outlook, queue: Queue) -> float:
    """Steps that a job is taken to have made since the newest that it told: some tell only some of their steps. None
    after its last step: how long it takes to end counts from there."""
    job = outlook.job
    if outlook.present.is_empty or not outlook.speeds.is_measured or has_made_all(job):
        return 0.0
    if is_starting(job):
        seconds = untold_since_start(queue.start_ups, job, outlook.allocated_seconds)
    else:
        seconds = 0.0 if job.silent_since is None else min(max(queue.now - job.silent_since, 0.0), job.report_seconds)
    return seconds * pace_of(outlook, outlook.present)


def expected_steps(outlook: Outlook) -> Interval | None:
    """Steps left by its forecast, or where that knows only its age, by what jobs like it took. None: nobody knows, or
    these told no step, either (`seconds_of_silent_runs`)."""
    remaining = outlook.forecast.remaining_steps
    if not outlook.speeds.is_measured or seconds_of_silent_runs(outlook.job) is not None:
        return None
    if remaining is not None and not outlook.end_is_guessed:
        return remaining
    return steps_left_like_alike_runs(outlook.job, epoch_steps(outlook.job))


class _Causes(NamedTuple):
    """By whose end a job starts, in which part of what may come: parts of 1, by the place of the other job."""

    awaited: Mapping[int, float]
    """With it, or after others that start in between ..."""
    at_once: Mapping[int, float]
    """... and of these with that end itself."""


class _Starts(NamedTuple):
    """Of one job."""

    at: FloatArray
    """Equally likely instants."""
    causes: _Causes


def _causes(job: int, doubts: Sequence[Doubts]) -> _Causes:
    """In equally likely trajectories."""
    return _parts([(each.awaited(job), each.is_at_once(job)) for each in doubts], [1] * len(doubts))


def _parts(causes: Sequence[tuple[int | None, bool]], numbers: Sequence[int]) -> _Causes:
    """`causes`: whose end and whether at once, each of which comes so many times as `numbers` says."""
    awaited, at_once = Counter[int](), Counter[int]()
    for (job, is_at_once), number in zip(causes, numbers, strict=True):
        if job is not None:
            awaited[job] += number
            at_once[job] += number * is_at_once
    n, likeliest = sum(numbers), sorted(awaited, key=lambda j: (-awaited[j], j))[:_MOST_CAUSES]
    return _Causes({j: awaited[j] / n for j in likeliest}, {j: at_once[j] / n for j in likeliest if at_once[j]})


def _foreseen(queue: Queue, doubts: Sequence[Doubts]) -> dict[int, FloatArray]:
    """Equally likely instants, in the trajectories, at which each job gets tasks that has none or never had any; inf
    where one of them tells none: later jobs, of which one trajectory has none, are no reason to name a start."""
    outlooks = enumerate(queue.outlooks)
    jobs = [j for j, one in outlooks if one.job.started_at is None or queue.sizes.get(one.id, one.present).is_empty]
    found = {j: np.stack([each.starts(j) for each in doubts]) for j in jobs}
    return {
        j: (each if np.isfinite(each).any(axis=1).all() else np.full(each.shape, np.inf)).ravel()
        for j, each in found.items()
    }


def _with_and_without_arrivals(foreseen: FloatArray, alone: FloatArray) -> FloatArray:
    """Equally likely instants of a start: in the trajectories, in one `alone` without later jobs, and the first of
    both.

    Later jobs are guesses. In a trajectory they take room that a job with more tasks waits for; they may never come.
    """
    foreseen, alone = np.sort(foreseen), np.repeat(np.sort(alone), len(foreseen) // len(alone))
    return np.concatenate([foreseen, alone, np.minimum(foreseen, alone)])


def _or_earliest(queue: Queue, doubts: Sequence[Doubts], foreseen: Mapping[int, FloatArray]) -> dict[int, _Starts]:
    """Those of jobs without tasks once more, where there are no quotas or limits: what is free is free for all.

    In a trajectory jobs grow where it is worth it by their predicted speeds, and shrink for those that wait. Rounds do
    so later, as they measure first and mind the cost of a change: what ends meanwhile leaves its room to those who
    wait. So a job may start as in a trajectory, with the first room, or with what comes first; each is as likely.
    """
    sizes = [queue.sizes.get(one.id, one.present) for one in queue.outlooks]
    running = [j for j, size in enumerate(sizes) if size.workers]
    allocated = [_by_node(queue, queue.outlooks[j].job) for j in running]
    ends = [np.concatenate([each.predicted_ends(j) for each in doubts]) for j in running]
    waiting = [j for j in foreseen if sizes[j].is_empty]
    middles = np.median([foreseen[j] for j in waiting], axis=1).tolist() if waiting else []
    waiting = [j for _, _, j in sorted(zip(middles, (queue.outlooks[j].id for j in waiting), waiting, strict=True))]
    needed = [_needed(queue.outlooks[j]) for j in waiting]
    earliest = earliest_starts(queue.now, _free_by_node(queue, allocated), allocated, ends, needed)
    ranks, places = dict(zip(running, earliest.ranks, strict=True)), [None, *running]
    found = {
        j: _first_of(j, doubts, foreseen[j].reshape(len(doubts), -1), at, places, by, ranks)
        for j, at, by in zip(waiting, earliest.at, earliest.by, strict=True)
    }
    tried_again = [j for j in waiting if doubts[0].may_start_at(j) > queue.now]
    return found | {j: _first_of_all(j, doubts, foreseen[j].reshape(len(doubts), -1)) for j in tried_again}


def _first_of_all(job: int, doubts: Sequence[Doubts], foreseen: FloatArray) -> _Starts:
    """Starts as `foreseen` (trajectories, LEVELS), each and the first of them."""
    first = min(range(len(foreseen)), key=lambda number: float(np.median(foreseen[number])))
    found = np.concatenate([foreseen.ravel(), np.sort(foreseen, axis=1).min(axis=0)])
    return _Starts(found, _causes(job, [*doubts, doubts[first]]))


def _first_of(
    job: int,
    doubts: Sequence[Doubts],
    foreseen: FloatArray,
    earliest: FloatArray,
    running: Sequence[int | None],
    by: IntArray,
    ranks: Mapping[int, IntArray],
) -> _Starts:
    """Starts as `foreseen` (trajectories, LEVELS), the `earliest` (DRAWS,) and the first of both, in the same draws of
    all ends: two starts with one end are not independent of each other.

    `by` (DRAWS,): whose end the earliest comes with, from -1 by place in `running`; `ranks`: of the drawn ends of
    each."""
    found, causes, numbers = list[FloatArray](), list[tuple[int | None, bool]](), list[int]()
    own, of_ends = np.random.default_rng(job).permutation(DRAWS), list[IntArray]()
    for each, levels in zip(doubts, foreseen, strict=True):
        cause = each.awaited(job), each.is_at_once(job)
        then = drawn(levels, own if cause[0] is None else ranks.get(cause[0], own))
        # What those before it take is not freed by the ends of those that have tasks now.
        is_later = ~np.isfinite(earliest)  # in which draws it is not the earliest that counts
        first = np.where(is_later, then, earliest)
        found += [then, first, np.minimum(then, first)]
        as_foreseen = is_later | (then < first)
        of_ends += [by[~is_later], by[~as_foreseen]]
        causes.append(cause)
        numbers.append(DRAWS + int(is_later.sum()) + int(as_foreseen.sum()))
    places, n_by_place = np.unique(np.concatenate(of_ends) + 1, return_counts=True)  # few of thousands
    causes += [(running[place], True) for place in places.tolist()]
    numbers += n_by_place.tolist()
    return _Starts(np.concatenate(found), _parts(causes, numbers))


def _by_node(queue: Queue, job: Job) -> list[tuple[str, Resources]]:
    """The node of each task of a job, and what it holds there."""
    return [(node, job.spec.need(role)) for (role, _), node in queue.slots_of(job).items()]


def _free_by_node(queue: Queue, allocated: Sequence[Sequence[tuple[str, Resources]]]) -> dict[str, Resources]:
    """What is free on nodes that take tasks. What others hold is no room when it ends."""
    free = {node.name: node.capacity for node in queue.nodes if node.schedulable}
    for node, held in (task for tasks in allocated for task in tasks):
        if node in free:
            free[node] -= held
    return free


def _needed(outlook: Outlook) -> Needed:
    spec, least = outlook.job.spec, outlook.minimum
    return Needed(spec.need(Role.WORKER), least.workers, spec.need(Role.SERVER), least.servers)


def _expected_times(queue: Queue, job: int, doubts: Sequence[Doubts], found: _Starts | None) -> ExpectedTimes:
    """`found`: None for a job that has tasks."""
    if found is None:
        ends = np.concatenate([each.ends_or_undisturbed(job) for each in doubts])
        return ExpectedTimes(None, _interval(ends, queue.now))
    starts = found.at
    if 2 * np.isfinite(starts).sum() <= len(starts):  # it likely waits for an unknown end, or for ever
        return ExpectedTimes(None, None)
    granted, trains = _interval(starts, queue.now), _takes_part(queue, job, starts)
    start = granted if trains is starts else _interval(trains, queue.now)
    assert granted is not None, "half of the instants are finite"
    assert start is not None, "a start-up is finite"
    some = np.sort(starts)[len(starts) // (2 * _STARTS) :: max(len(starts) // _STARTS, 1)]
    takes = np.concatenate([each.takes(job) for each in doubts])
    takes = takes[np.isfinite(takes)] if np.isfinite(takes).any() else takes  # where it starts, it takes about as long
    end = _interval(np.add.outer(some, takes).ravel(), queue.now)
    if end is not None:  # not all starts are in it
        least = float(takes.min())
        bounds = zip(granted, start, end, strict=True)
        end = Interval(*(max(each + least, begins, ends) for each, begins, ends in bounds))
    parts, direct = ({queue.outlooks[k].id: part for k, part in sorted(each.items())} for each in found.causes)
    return ExpectedTimes(start, end, parts, direct)


def _takes_part(queue: Queue, job: int, granted: FloatArray) -> FloatArray:
    """Equally likely instants at which its first tasks take part, that it gets at these instants."""
    outlook = queue.outlooks[job]
    elapsed = outlook.allocated_seconds if is_starting(outlook.job) else 0.0
    elapsed -= untold_since_start(queue.start_ups, outlook.job, elapsed)
    start_up = start_up_seconds(queue.start_ups, outlook.job.spec, elapsed)
    if start_up is None:
        return granted
    added: FloatArray = np.add.outer(granted, levels_of(Work.of(start_up))).ravel()
    return added


_PERCENTILES = np.array([0.1, 0.5, 0.9])


def _interval(instants: FloatArray, now: float) -> Interval | None:
    values = np.sort(instants)
    n_finite = int(np.searchsorted(values, np.inf))
    if not n_finite:
        return None
    values[n_finite:] = now + _NEVER * max(float(values[n_finite - 1]) - now, 1.0)
    # In a tenth of the time that `np.quantile` takes: there are three for each of hundreds of jobs.
    last = len(values) - 1
    low, middle, high = np.interp(_PERCENTILES * last, np.arange(last + 1), values).tolist()
    return Interval(middle, low, high)
