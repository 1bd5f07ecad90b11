"""What the look ahead reads and says: the queue after a round, and the times that are expected of each job in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from optimus_models.speed.course import AS_MEASURED
from optimus_scheduler.allocate.staying import Room, room_of
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.forecast.time_left import Habits, given_not_ended, late_seconds
from optimus_scheduler.model import (
    NOTHING,
    REACH,
    Allocation,
    Interval,
    Job,
    JobState,
    Node,
    Nodes,
    PlacedTask,
    Plan,
    Quota,
    SetWanted,
    Snapshot,
    StartUps,
    WorkerLimit,
)
from optimus_scheduler.place.requests import TaskSlot

_MADE_UP = 5


Stalled = Mapping[str, int | None]
"""Jobs of which nothing tells whether they go on, by id; and the step by which they may fail, if it is known."""


class Hindrances(NamedTuple):
    """What is known at one moment of jobs that tell no step."""

    stalled: Stalled = MappingProxyType({})
    at: float = 0.0
    """POSIX seconds."""
    silent_since: Mapping[str, float] = MappingProxyType({})
    """When the newest step came of jobs whose tasks have told some and none since, by id, POSIX seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Queue:
    """The jobs that are there, right after a round."""

    now: float
    nodes: tuple[Node, ...]
    outlooks: Sequence[Outlook]
    """Of all scheduled jobs, any order, as the round saw them."""
    sizes: Mapping[str, Allocation]
    """What the round gave them, by job id; a job that is not in here has what it had."""
    quotas: tuple[Quota, ...] = ()
    arrivals: Sequence[Arrival] = ()
    """Jobs that are going to be submitted, in order of time."""
    lengths: Sequence[float] = ()
    """Seconds that earlier jobs took from their first tasks to their end."""
    worker_limits: tuple[WorkerLimit, ...] = ()
    start_ups: StartUps = field(default_factory=dict)
    moved: Mapping[str, tuple[PlacedTask, ...]] = field(default_factory=dict)
    """The tasks of those jobs whose tasks the round changed, by job id; others have the tasks that they had."""
    stalled: frozenset[str] = frozenset()
    """Jobs that make no step, or hung before they lost their tasks, by id: nothing tells whether they go on, so that
    nobody waits for their end."""
    fails_at: Mapping[str, int] = field(default_factory=dict)
    """The step by which the last try of a job had failed, of those among them that have not passed it in this try: they
    may fail by it again, and leave their room."""
    late: Mapping[str, Interval] = field(default_factory=dict)
    """Seconds that jobs make no step, beside those that their steps take, as the next one is late, by id."""

    @classmethod
    def after_round(
        cls,
        snapshot: Snapshot,
        plan: Plan,
        outlooks: Sequence[Outlook],
        arrivals: Sequence[Arrival] = (),
        lengths: Sequence[float] = (),
    ) -> Queue:
        """As a round leaves it. `outlooks`: of all jobs; those that are not scheduled are left out."""
        scheduled = tuple(one for one in outlooks if not one.job.spec.tracked)
        sizes = {decision.job_id: decision.allocation for decision in plan.decisions}
        after = snapshot.now, snapshot.nodes, scheduled, sizes, snapshot.quotas
        moved = {each.job_id: each.tasks for each in plan.actions if isinstance(each, SetWanted)}
        return cls(*after, arrivals, lengths, snapshot.worker_limits, snapshot.start_ups, moved)

    def with_hindrances(self, found: Hindrances) -> Queue:
        """With what is known of jobs that tell no step."""
        fails_at = {job_id: at for job_id, at in found.stalled.items() if at is not None}
        late = {}
        for one in self.outlooks:
            since = found.silent_since.get(one.id)
            if since is None or one.id in found.stalled or one.present.is_empty or not one.speeds.is_measured:
                continue
            more = late_seconds(found.at - since, max(one.job.report_seconds, 1.0 / pace_of(one, one.present)))
            if more.mean > 0.0:
                stood = found.at - max(since, self.now)
                late[one.id] = Interval(*(stood + each for each in more))
        return replace(self, stalled=frozenset(found.stalled), fails_at=fails_at, late=late)

    @property
    def room(self) -> Room:
        """What the round that it is right after leaves to be shared out: what jobs have on closed nodes is theirs."""
        after = Snapshot(self.now, self.nodes, tuple(one.job for one in self.outlooks))
        emptied = Nodes.of(self.nodes).emptied_names
        current = {
            job.id: {slot: node for slot, node in self.slots_of(job).items() if node not in emptied}
            for job in after.jobs
        }
        return room_of(after, current)

    def slots_of(self, job: Job) -> Mapping[TaskSlot, str]:
        """The node of each task of a job."""
        return {(each.key.role, each.key.rank): each.node for each in self.moved.get(job.id, job.wanted_tasks)}


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """A job that is likely to be submitted."""

    submitted_at: float
    outlook: Outlook
    """Of a job like it, before its first step."""
    steps: float
    """That it takes."""


class ExpectedCut(NamedTuple):
    """That a job with tasks is likely to be paused or made smaller, so that another one gets more."""

    at: Interval
    """POSIX seconds: the median, and the first and last of the trajectories."""
    pauses: bool
    """Whether it loses all its tasks."""
    job_id: str
    """Who gets more then."""
    why: str | None = None
    """What that job is that this one is not (`optimus_scheduler.ahead.cuts`); None: nothing can be said."""


class ExpectedTimes(NamedTuple):
    """What is expected of one job: POSIX seconds; the median, and the 10th and 90th percentile as bounds."""

    start: Interval | None
    """When it gets tasks, again if it is paused; None for a job that trains, or where it gets none."""
    end: Interval | None
    """None: nothing is known of its length."""
    awaited: Mapping[str, float] = {}
    """Jobs with tasks by whose end it starts, the likeliest, and in which part of what may come it is that one."""
    at_once: Mapping[str, float] = {}
    """In which part it starts with that end itself, not with that of a job that starts in between."""
    cut: ExpectedCut | None = None
    """The first time that it loses tasks to another; None: it does not, or the trajectories do not agree."""
    freed_by: str | None = None
    """Of a job without tasks: the job whose `cut` lets it start, which waits for no end then."""

    def left(self, now: float) -> Interval | None:
        """Seconds from `now` to the end."""
        return None if self.end is None else until(self.end, now)

    def waiting(self, now: float) -> Interval | None:
        """Seconds from `now` to the start."""
        return None if self.start is None else until(self.start, now)


def until(instant: Interval, now: float) -> Interval:
    """Seconds from `now` to an instant; 0 for what is over."""
    return Interval(*(max(each - now, 0.0) for each in (instant.mean, instant.low, instant.high)))


def until_later(instant: Interval, said_at: float, now: float) -> Interval:
    """Seconds from `now` to an instant that was foreseen at `said_at` and has not come yet."""
    waited = max(now - said_at, 0.0)
    total = given_not_ended(until(instant, said_at), 0.0, waited)
    return Interval(*(max(each - waited, 0.0) for each in (total.mean, total.low, total.high)))


def pace_of(outlook: Outlook, size: Allocation) -> float:
    """Steps/s with this size over the rest of a job: it evaluates and writes checkpoints as much as until now, and its
    pace goes on as that of ended runs did."""
    return outlook.speeds.at(size) / Habits(outlook.job.busy_part, course_ratio=outlook.forecast.course.ratio).by_pauses


class Work(NamedTuple):
    """Steps that a job still has to do: a median with a log-normal spread on each side (`ln` of steps)."""

    median: float
    down: float
    up: float
    is_made_up: bool = False
    """Nothing tells its length, no forecast and no earlier job: the queue has to go on, but nobody is told of it."""
    is_until_limit: bool = False
    """Its limit of time or money ends it, however many steps it makes until then, if nothing that fewer steps tell of
    does."""

    @classmethod
    def of(cls, remaining: Interval) -> Work:
        """By its 80 % interval; `mean` is taken for the median."""
        middle = max(remaining.mean, 1e-9)
        down = math.log(middle / min(max(remaining.low, middle * 1e-3), middle)) / REACH
        up = math.log(max(min(remaining.high, middle * 1e3), middle) / middle) / REACH
        return cls(middle, down, up)

    def times(self, seconds: Interval, pace: float) -> Work:
        """The same of steps that take so many `seconds` each, in steps that a job makes `pace` of in a second."""
        each = Work.of(seconds)
        median = self.median * each.median * pace
        return self._replace(median=median, down=math.hypot(self.down, each.down), up=math.hypot(self.up, each.up))

    def at(self, deviation: float) -> float:
        """The steps so many standard deviations from the median."""
        return self.median * math.exp(deviation * (self.up if deviation > 0 else self.down))


def rest_of_life(lengths: Sequence[float], ran: float, typical: float) -> Interval:
    """Seconds that a job of unknown length goes on: 10th, 50th and 90th percentile.

    By how long those earlier jobs went on that took longer than this one until now; a few made-up ones beside them say
    what is believed without any: as long again (Lindy), and not less than is typical. Where jobs are shorter than that,
    what is typical is learned from them: the geometric mean of their lengths, `typical` as one more among them.

    Args:
        lengths: seconds that earlier jobs took.
        ran: seconds that this one has run.
        typical: seconds that stand in for a length of which nothing is known; above 0.
    """
    scale = max(ran, min(typical, _geometric_mean([typical, *lengths])))
    made_up = [scale * part / (1.0 - part) for part in ((n + 0.5) / _MADE_UP for n in range(_MADE_UP))]
    rest = [length - ran for length in lengths if length > ran]
    low, middle, high = np.quantile([*made_up, *rest], (0.1, 0.5, 0.9)).tolist()
    return Interval(middle, low, high)


def _geometric_mean(seconds: Sequence[float]) -> float:
    """Of lengths, those below a second as one."""
    return math.exp(math.fsum(math.log(max(each, 1.0)) for each in seconds) / len(seconds))


def as_fresh(outlook: Outlook, job_id: str, submitted_at: float) -> Outlook:
    """The outlook of a job like this one, submitted at that time: it has had nothing yet, and no promise. Its deadline
    is as long after its submission."""
    spec, deadline = outlook.job.spec, outlook.job.spec.deadline_at
    if deadline is not None:
        spec = replace(spec, deadline_at=deadline + submitted_at - outlook.job.submitted_at)
    job = replace(
        outlook.job,
        id=job_id,
        spec=spec,
        state=JobState.QUEUED,
        submitted_at=submitted_at,
        started_at=None,
        step=0,
        allocation=NOTHING,
        allocated_at=None,
        wanted_tasks=(),
        attained_share_seconds=0.0,
        spent=0.0,
        retry=None,
        held_until=None,
        owner_paused=False,
        promised_at=None,
    )
    forecast = outlook.forecast._replace(course=AS_MEASURED)  # that of one which has made steps
    return outlook._replace(job=job, forecast=forecast, waited_seconds=0.0, allocated_seconds=0.0, measured=False)
