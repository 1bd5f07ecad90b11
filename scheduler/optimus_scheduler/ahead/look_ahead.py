"""When each job is likely to start and to end: the queue simulated forward under the real policy. Pure.

The jobs that are there and those that are likely to come run through one or a few possible futures (`trajectory`). In
each of them every job has another part of the distribution of its remaining work. Each future gives each job the speeds
that it would have from now on; from these, the job's own doubts and those of the jobs that it waits for (`doubts`)
follow distributions of its start and its end, and all futures together give their 10th, 50th and 90th percentile.
Changes of size with their stops, waiting and later arrivals count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from optimus_scheduler.ahead.doubts import Doubts
from optimus_scheduler.ahead.trajectory import Rules, Trajectory
from optimus_scheduler.ahead.world import Ahead, Queue, Work, rest_of_life
from optimus_scheduler.allocate.policy import PlanningPolicy, Policy
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.forecast.time_left import Habits, step_seconds
from optimus_scheduler.model import Directive, Interval, Resources, Snapshot
from optimus_scheduler.settings import Settings

FloatArray = NDArray[np.float64]

MOST_DECISIONS = 2400
"""Decisions about one job's size, all instants of all futures together: what 200 ms on one core allow."""
_MOST_FUTURES, _MOST_INSTANTS, _LEAST_INSTANTS = 2, 24, 12
_NEVER = 10.0
"""A job that has not ended by then is taken to take so many times as long as the longest that did."""


def look_ahead(queue: Queue, policy: Policy, settings: Settings) -> dict[str, Ahead]:
    """What is expected of each job of the queue, by id. Deterministic."""
    # Nobody knows when an owner lets a paused job go on.
    outlooks = sorted((one for one in queue.outlooks if not one.job.owner_paused), key=lambda one: one.id)
    if not outlooks:
        return {}
    queue = replace(queue, outlooks=outlooks)
    if settings.scale_batches and not policy.scales_batches:
        settings = replace(settings, scale_batches=False)
    work = [_work(one, queue) for one in outlooks]
    n_futures, n_instants = _extent(len(outlooks) + len(queue.expected) // 2)
    if isinstance(policy, PlanningPolicy):
        # Its plan is what it promises. The doubts of others would mix it with plans that it does not have.
        n_futures = 1
    rules = Rules(policy, settings, n_instants)
    futures = [_future(queue, work, rules, number, n_futures) for number in range(n_futures)]
    doubts = [Doubts(future, work) for future in futures]
    found = {one.id: _ahead(queue, j, doubts) for j, one in enumerate(outlooks)}
    return found if isinstance(policy, PlanningPolicy) or queue.quotas else _at_the_earliest(queue, found)


def _extent(n_jobs: int) -> tuple[int, int]:
    """How many futures, and instants in each, so that the decisions are not too many."""
    decisions = MOST_DECISIONS // n_jobs
    n_futures = min(max(decisions // _MOST_INSTANTS, 1), _MOST_FUTURES)
    return n_futures, min(max(decisions // n_futures, _LEAST_INSTANTS), _MOST_INSTANTS)


def _future(queue: Queue, work: Sequence[Work], rules: Rules, number: int, n_futures: int) -> Trajectory:
    """Every job gets another part of its distribution in each future; with a single one, its median."""
    parts = [((number + job) % n_futures + 0.5) / n_futures for job in range(len(work))]
    drawn = [each.at(NormalDist().inv_cdf(part)) for each, part in zip(work, parts, strict=True)]
    trajectory = Trajectory(queue, drawn, rules)
    trajectory.run()
    return trajectory


def _work(outlook: Outlook, queue: Queue) -> Work:
    """Steps left, with the doubt about the speed in it: a slower job than predicted is like one with more steps."""
    remaining = outlook.forecast.remaining_steps
    if outlook.forecast.converged or outlook.job.directive is Directive.CANCEL:
        return Work(1e-9, 0.0, 0.0)
    size = queue.sizes.get(outlook.id, outlook.present)
    size = outlook.minimum if size.is_empty else size
    running = 0.0 if outlook.job.started_at is None else queue.now - outlook.job.started_at
    if remaining is None or not outlook.speeds.is_known or _is_by_age_alone(outlook):
        rest = rest_of_life(queue.lengths, running, outlook.typical_seconds)
        speed = outlook.speeds.at(size)
        return Work.of(Interval(rest.mean * speed, rest.low * speed, rest.high * speed))
    known = Work.of(remaining)
    pace = Work.of(step_seconds(outlook.speeds.promised(size), Habits(running_seconds=running)))
    return Work(known.median, math.hypot(known.down, pace.down), math.hypot(known.up, pace.up))


def _is_by_age_alone(outlook: Outlook) -> bool:
    """Whether its forecast knows no more of its length than how long it has gone on."""
    return outlook.forecast.rule is None and outlook.job.spec.announced_steps is None


def _ahead(queue: Queue, job: int, doubts: Sequence[Doubts]) -> Ahead:
    outlook = queue.outlooks[job]
    end = _interval(np.concatenate([each.ends(job) for each in doubts]), queue.now)
    if outlook.job.started_at is not None and not queue.sizes.get(outlook.id, outlook.present).is_empty:
        return Ahead(None, end)
    start = _interval(np.concatenate([each.starts(job) for each in doubts]), queue.now)
    if start is not None and end is not None:
        start = Interval(*(min(*both) for both in zip(_bounds(start), _bounds(end), strict=True)))
    awaited = Counter(each.awaited(job) for each in doubts)
    parts = {queue.outlooks[k].id: n / len(doubts) for k, n in sorted(awaited.items(), key=str) if k is not None}
    return Ahead(start, end, parts if start is not None else {})


def _at_the_earliest(queue: Queue, found: Mapping[str, Ahead]) -> dict[str, Ahead]:
    """With starts that may be as early as there is room if no other job grows into it.

    In a future jobs grow where it is worth it by their predicted speeds. Rounds do so later, as they measure first and
    mind the cost of a change: what ends meanwhile leaves its room to those who wait, in the order of their starts.
    """
    sizes = {one.id: queue.sizes.get(one.id, one.present) for one in queue.outlooks}
    free = Snapshot(queue.now, queue.nodes, ()).capacity
    ends = list[tuple[float, Resources]]()
    for one in queue.outlooks:
        end, held = found[one.id].end, one.demand(sizes[one.id])
        if not sizes[one.id].is_empty:
            free = free - held
            ends.append((math.inf if end is None else end.low, held))
    ends.sort(key=lambda each: each[0])
    told, needed, at = dict(found), Resources(), queue.now
    waiting = [(ahead.start.mean, one) for one in queue.outlooks if (ahead := found[one.id]).start is not None]
    for _, one in sorted(waiting, key=lambda each: (each[0], each[1].id)):
        needed = needed + one.demand(one.minimum)
        while ends and not needed.fits_in(free):
            end_at, held = ends.pop(0)
            at, free = max(at, end_at), free + held
        start = found[one.id].start
        if start is None or at == math.inf or not needed.fits_in(free):
            break
        told[one.id] = found[one.id]._replace(start=Interval(start.mean, min(start.low, at), start.high))
    return told


def _bounds(value: Interval) -> tuple[float, float, float]:
    return value.mean, value.low, value.high


def _interval(instants: FloatArray, now: float) -> Interval | None:
    finite = instants[np.isfinite(instants)]
    if not len(finite):
        return None
    latest = now + _NEVER * max(float(finite.max()) - now, 1.0)
    low, middle, high = np.quantile(np.where(np.isfinite(instants), instants, latest), (0.1, 0.5, 0.9)).tolist()
    return Interval(middle, low, high)
