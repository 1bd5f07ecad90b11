"""One trajectory, a possible future of the queue: the policy decides at some instants, until all jobs have ended.

Between two instants jobs train at the speed of the size that they have, after the stop of a change. An instant comes
with the next end or arrival, but no sooner than a spacing that grows with the distance from now: what happens
tomorrow need not be known to the second. A policy that plans whole lives is asked once, and its plan followed to the
second.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from optimus_scheduler.ahead.cuts import Cut, Seen, why_for
from optimus_scheduler.ahead.progress import Progress
from optimus_scheduler.ahead.queue import Arrival, Queue, pace_of
from optimus_scheduler.ahead.start_ups import is_starting, start_up_seconds, untold_since_start
from optimus_scheduler.ahead.training_alike import alike, is_unmeasured, speeds_like, teaches, times_as_long
from optimus_scheduler.allocate.allocate import allocate
from optimus_scheduler.allocate.allocate_with_quotas import confinements, is_beyond
from optimus_scheduler.allocate.policy import AllocationInput, Grant, PlanningPolicy, Policy
from optimus_scheduler.allocate.staying import room_of
from optimus_scheduler.allocate.worker_limits import is_about, is_beyond_limit
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.forecast.prices import cost_per_second
from optimus_scheduler.forecast.speeds import Speeds
from optimus_scheduler.forecast.time_left import LIMIT_NOTICED_SECONDS
from optimus_scheduler.granted_places import Asked, granted_places, with_lent_room
from optimus_scheduler.model import (
    NOTHING,
    Allocation,
    Interval,
    JobState,
    Nodes,
    Reason,
    Resources,
    Role,
    Snapshot,
    WorkerLimit,
    total_of,
)
from optimus_scheduler.place.place import Placed, Placer
from optimus_scheduler.place.requests import TaskSlot, Unplaced
from optimus_scheduler.settings import Settings

_NOWHERE: Mapping[TaskSlot, str] = {}
_MOST_SKIPPED = 2
"""So many of these instants are passed over at most when nothing happens."""
_AGAIN_SECONDS = 30.0
"""After a change of sizes, sizes are decided again so soon: the round after the new sizes were measured."""
_SURE_SIZES = 2
"""A job that has been measured at so many sizes is taken to have learned its speeds."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides about sizes, and how closely the trajectory is looked at."""

    policy: Policy
    settings: Settings
    instants: int
    """At which sizes are decided anew until about everything that is there has ended."""
    more_instants: int
    """So many more at most, one with each event, while jobs still wait."""
    on_nodes: int
    """At so many of them, the first ones, tasks get nodes, too."""


class Cause(NamedTuple):
    """What a start waited for: the last end before it."""

    job: int
    """Its place in the queue."""
    lag: float
    """Seconds from the first instant after that end to the start."""


@dataclass(slots=True, eq=False)
class _Virtual:
    """One job along the trajectory."""

    outlook: Outlook
    left: float
    """Steps; inf: not known."""
    size: Allocation
    changed_at: float
    resumes: float
    """It makes no steps before."""
    speed: float = 0.0
    attained: float = 0.0
    n_sizes: int = 0
    started_at: float = math.inf
    """When it got its first tasks ..."""
    begins_at: float = math.inf
    """... and when these take part, from when on its limit of time runs."""
    ended_at: float = math.inf
    ended_seen_at: float = math.inf
    """The first instant after its end."""
    cause: Cause | None = None
    """Of its first tasks; None: no end came before them."""
    is_feasible: bool = True
    """Whether the empty cluster could run it."""
    work: float = field(init=False)
    """Steps left at first."""
    told: Speeds | None = None
    """Of a job whose speeds nobody knows: those of the job of its task that ended first along the trajectory."""
    taught_seconds: float | None = None
    """Of one of which nothing tells how long it takes: as long as that job took, by the steps that arguments name."""
    waits_as: Outlook | None = None
    """As it was last seen without tasks, since it has none: later, only its wait is longer."""
    slots: Mapping[TaskSlot, str] = field(default_factory=dict)
    """The node of each of its tasks."""
    is_endless: bool = False
    """Nobody knows its length: only its limit of time or money ends it."""
    budget: float = field(init=False)
    """Money that it may still spend, at `paid_until`; inf: it has no limit of that. Below 0 until its end is noticed.
    """
    price: float = 0.0
    """Of a second with the size that it has."""
    paid_until: float = -math.inf

    def __post_init__(self) -> None:
        self.work, most = self.left, self.outlook.job.spec.convergence.max_cost
        self.budget = math.inf if most is None else max(most - self.outlook.job.spent, 0.0)

    def ends_at(self, now: float) -> float:
        """If nothing changes. Without tasks nothing ends it: one whose limit is over ends as soon as it has some."""
        if self.size.is_empty:
            return math.inf
        trains = self.speed > 0 and not self.is_endless
        ends = max(now, self.resumes) + self.left / self.speed if trains else math.inf
        return min(ends, max(now, self.limit_at))

    @property
    def limit_at(self) -> float:
        """When its limit of time or money ends it, about; inf: it has none, or has not started."""
        job, limit = self.outlook.job, self.outlook.job.spec.convergence.max_seconds
        started = self.begins_at if job.started_at is None else job.started_at
        over = math.inf if limit is None else started + limit
        if self.price > 0:
            over = min(over, self._pays_from + self.budget / self.price)
        return over + LIMIT_NOTICED_SECONDS

    @property
    def _pays_from(self) -> float:
        """From when on what is left of its budget is spent: its first tasks cost nothing before they take part."""
        return max(self.paid_until, self.begins_at) if self.outlook.job.started_at is None else self.paid_until

    def pay(self, until: float) -> None:
        """For what it has had until this instant."""
        if self.price > 0:
            self.budget -= self.price * max(until - self._pays_from, 0.0)
        self.paid_until = until

    def advance(self, begin: float, end: float) -> None:
        if self.ended_at < math.inf or self.size.is_empty or (self.speed <= 0 and end < self.limit_at):
            return
        ends = self.ends_at(begin)
        if ends <= end:
            self.left, self.ended_at = 0.0, ends
        else:
            left = self.left - self.speed * max(end - max(begin, self.resumes), 0.0)
            self.left = max(left, 1.0) if self.is_endless else left
        if self.speed > 0:
            self.attained += min(ends, end) - begin
        self.pay(min(ends, end))


class _Sharing:
    """Jobs that share a limit or a quota, as they were before an instant."""

    def __init__(self, jobs: Mapping[int, tuple[_Virtual, Allocation]], n_there: int, now: float) -> None:
        """`jobs`: by their places, the first `n_there` of which are of jobs that are there."""
        self._jobs, self._n_there, self._now = jobs, n_there, now

    @cached_property
    def workers(self) -> int:
        """Of all of them."""
        return sum(size.workers for _, size in self._jobs.values())

    @cached_property
    def allocated(self) -> Resources:
        """To all of them."""
        return total_of(job.outlook.demand(size) for job, size in self._jobs.values())

    @cached_property
    def newest_end(self) -> Cause | None:
        """The last of their ends until now; None: none has ended."""
        there = ((number, job) for number, (job, _) in self._jobs.items() if number < self._n_there)
        ended = [(job.ended_at, number) for number, job in there if job.ended_at <= self._now]
        if not ended:
            return None
        _, last = max(ended)
        return Cause(last, self._now - self._jobs[last][0].ended_seen_at)


def _is_of(outlook: Outlook, what: WorkerLimit | str | None) -> bool:
    """Whether a job shares this limit, or the quota of this project; None: all do."""
    return is_about(what, outlook) if isinstance(what, WorkerLimit) else what in (None, outlook.job.spec.project)


class Trajectory:
    """`run` it once; then ask for the starts and the progress of the jobs."""

    def __init__(
        self, queue: Queue, work: Sequence[float], rules: Rules, endless: Sequence[bool] = (), *, is_only: bool = False
    ) -> None:
        """`work`: steps left of each outlook in this trajectory. `endless`: of which of them it is made up; by a policy
        that decides anew in each round, these do not end. `is_only`: no other is looked at, so that its `cuts` are
        told nobody and left out: where all jobs take turns, there are as many as pairs of jobs."""
        self._queue, self._rules, self._placer = queue, rules, Placer()
        is_free = not (queue.quotas or queue.worker_limits)
        self.is_planned = is_free and isinstance(rules.policy, PlanningPolicy)
        """Whether it follows a plan of whole lives to the second."""
        self._is_only = is_only
        self._emptied = Nodes.of(queue.nodes).emptied_names
        self._confined = confinements(queue.quotas, queue.room)
        self._jobs = [self._begin(*each) for each in zip(queue.outlooks, work, strict=True)]
        self._unmeasured: defaultdict[Hashable, list[_Virtual]] = defaultdict(list)
        """Jobs whose speeds nobody knows, not even by an end along the trajectory, by which are alike."""
        for job in self._jobs:
            self._note_unmeasured(job)
        for job, is_endless in zip(self._jobs, () if self.is_planned else endless, strict=False):
            job.is_endless = is_endless
        self._has_changed = True
        self._again_at = math.inf
        """When a job that waits has to begin for its deadline; inf: none has."""
        self._arrivals = list(queue.arrivals)
        self._now = self._decided_at = queue.now
        self._n_decided = 0
        self._sharings: dict[WorkerLimit | str | None, _Sharing] = {}
        """Asked for at this instant: many jobs may start."""
        self.cuts: dict[int, Cut] = {}
        """The first loss of tasks of each job of the queue that had some, by its place."""
        self.progress = Progress()
        self.sizes: list[tuple[Allocation, ...]] = []
        """Of the jobs of the queue and then of those that came later, from each instant of a decision on."""

    @property
    def began(self) -> float:
        """The present."""
        return self._queue.now

    def run(self) -> None:
        """Until all jobs have ended that are there, or the instants are used up."""
        self._note()
        if self.is_planned and isinstance(self._rules.policy, PlanningPolicy):
            self._follow(self._rules.policy)
            return
        present = list(self._jobs)
        horizon = self._horizon()
        for k in range(1, self._rules.instants + 1):
            soonest, latest = (self._instant(horizon, number) for number in (k, k + _MOST_SKIPPED))
            event = self._next_event()
            if event == math.inf:
                break
            self._go_to(min(max(soonest, event, self._now + 1.0), max(latest, self._now + 1.0)))
            self._decide()
            self._note()
            if all(job.ended_at < math.inf for job in present):
                return
        self._wait_on(present)
        if not self._holds_room_for_ever():
            self._start_the_rest(present)

    def _holds_room_for_ever(self) -> bool:
        """Whether a job that does not end has tasks: who waits for its room starts at no known time, however many
        later jobs come and go."""
        return any(job.is_endless and not job.size.is_empty and job.limit_at == math.inf for job in self._jobs)

    def _wait_on(self, present: Sequence[_Virtual]) -> None:
        """Go on from event to event while jobs wait: room that is kept for one of them is used by nobody, so that it
        may take longer than all work at full use."""
        for _ in range(self._rules.more_instants):
            event = self._next_event()
            if event == math.inf or not any(self._may_start(job) for job in present):
                return
            self._go_to(max(event, self._now + 1.0))
            self._decide()
            self._note()

    def _may_start(self, job: _Virtual) -> bool:
        """Whether it waits for room."""
        is_waiting = job.size.is_empty and job.ended_at == math.inf and not job.outlook.job.owner_paused
        return is_waiting and job.is_feasible and not self._is_barred(job.outlook)

    def _follow(self, policy: PlanningPolicy) -> None:
        """Give all jobs what their plan says, from instant to instant of it. Later jobs change nothing."""
        world = Snapshot(self._now, self._queue.nodes, tuple(job.outlook.job for job in self._jobs))
        capacity = room_of(world, {job.outlook.id: job.slots for job in self._jobs}).capacity
        seen = {job.outlook.id: self._seen(job) for job in self._jobs}
        plan = policy.plan(AllocationInput(tuple(seen.values()), capacity), self._rules.settings)
        begin = self._now
        for after in sorted({instant for one in plan.values() for instant in (one.start, one.end)}):
            self._go_to(begin + after)
            for job in self._jobs:
                planned = plan.get(job.outlook.id)
                if planned is not None and planned.start == after:
                    self._resize(job, planned.size)
            self._note()

    def start_of(self, job: int) -> float:
        """When this job gets its first tasks; inf if it does not within the instants."""
        return self._jobs[job].started_at

    def limit_of(self, job: int) -> float:
        """When its limit of time or money ends this job at the latest, not before its start; inf: it has none."""
        limit, start = self._jobs[job].limit_at, self.start_of(job)
        return limit if start == math.inf else max(limit, start)

    def may_start_at(self, job: int) -> float:
        """The end of its wait after an error; -inf without one."""
        return _retry_at(self._jobs[job].outlook)

    def cause_of(self, job: int) -> Cause | None:
        """For whose end it waited; None where nothing ended before it started."""
        return self._jobs[job].cause

    def _start_the_rest(self, present: Sequence[_Virtual]) -> None:
        """Jobs that still wait when the instants are used up start then, with their minimum: further nobody looked."""
        for job in present:
            if self._may_start(job):
                began = job.started_at
                self._resize(job, job.outlook.minimum)
                job.cause = job.cause if began < math.inf else None  # no end that was looked at has let it in
        self._note_speeds()

    def _is_barred(self, outlook: Outlook) -> bool:
        """Whether no end lets it start, as quotas and limits are."""
        limits = self._queue.worker_limits
        return is_beyond(self._confined, outlook) or any(is_beyond_limit(limit, outlook) for limit in limits)

    # --- time ----------------------------------------------------------------------------------------------------

    def _instant(self, horizon: float, number: int) -> float:
        """Close ones near, few far away."""
        part = number / self._rules.instants
        return self._queue.now + horizon * part * part * part

    def _begin(self, outlook: Outlook, work: float) -> _Virtual:
        job, now = outlook.job, self._queue.now
        size = self._queue.sizes.get(job.id, job.allocation)
        changed = size != job.allocation
        since = now if changed else now - (outlook.waited_seconds if size.is_empty else outlook.allocated_seconds)
        since = max(since, _retry_at(outlook)) if size.is_empty else since
        if size.is_empty:
            resumes = now
        elif job.allocation.is_empty:
            resumes = now + self._start_up_seconds(outlook)
        elif is_starting(job):
            untold = untold_since_start(self._queue.start_ups, job, outlook.allocated_seconds)
            resumes = now + self._start_up_seconds(outlook, outlook.allocated_seconds - untold)
        else:
            resumes = now + outlook.stop_seconds if changed else now
        virtual = _Virtual(outlook, work, size, since, resumes, attained=job.attained_share_seconds)
        virtual.speed, virtual.price, virtual.paid_until = pace_of(outlook, size), self._price_of(outlook, size), now
        virtual.n_sizes = int(outlook.measured) if outlook.learning else _SURE_SIZES
        if not size.is_empty:
            virtual.started_at, virtual.begins_at = now, resumes
            slots = self._queue.slots_of(job)
            virtual.slots = {slot: node for slot, node in _within(slots, size).items() if node not in self._emptied}
        return virtual

    def _horizon(self) -> float:
        """Seconds after which about everything that is there has ended: all work at the full use of the cluster, or of
        what jobs may hold together."""
        capacity = Snapshot(self._queue.now, self._queue.nodes, ()).capacity
        shares, longest = 0.0, 1.0
        worker_seconds: defaultdict[tuple[str | None, str | None], float] = defaultdict(float)
        for job in self._jobs:
            size = job.outlook.minimum
            speed = max(pace_of(job.outlook, size), 1e-12)
            share = min(max(job.outlook.demand(size).dominant_share(capacity), 0.0), 1.0)
            shares += job.left / speed * share
            longest = max(longest, job.left / max(pace_of(job.outlook, job.outlook.maximum), 1e-12))
            for holder in ((job.outlook.job.owner, None), (None, job.outlook.job.spec.project)):
                worker_seconds[holder] += job.left / speed * size.workers
        limited = (worker_seconds[each.owner, each.project] / max(each.most, 1) for each in self._queue.worker_limits)
        return max(shares, longest, *limited)

    def _next_event(self) -> float:
        """The next end or arrival, or when a job may go on after an error; inf when nothing will happen any more.

        Soon after a change of sizes, as what is learned from it changes sizes again.
        """
        ends = [job.ends_at(self._now) for job in self._jobs if job.ended_at == math.inf]
        arrivals = [each.submitted_at for each in self._arrivals[:1]]
        changes = [self._now + _AGAIN_SECONDS] if self._has_changed else []
        waits = [job.outlook.job.retry.at for job in self._jobs if job.outlook.job.retry is not None]
        later = [at for at in (*waits, self._again_at) if at > self._now]
        return min([*ends, *arrivals, *changes, *later], default=math.inf)

    def _go_to(self, time: float) -> None:
        self._sharings = {}
        for job in self._jobs:
            job.advance(self._now, time)
            if job.ended_at <= time < job.ended_seen_at:
                job.ended_seen_at = time
                self._teach(job)
        self._now = time
        while self._arrivals and self._arrivals[0].submitted_at <= time:
            self._arrive(self._arrivals.pop(0))

    def _teach(self, virtual: _Virtual) -> None:
        """From now on a round ranks those that wait by how long they take with the speeds that this one has measured,
        or as it did, where it knew nothing of their task before."""
        ended = virtual.outlook
        if teaches(ended):
            started = virtual.started_at if ended.job.started_at is None else ended.job.started_at
            for job in self._unmeasured.pop(alike(ended.job), ()):
                job.told, job.waits_as = speeds_like(ended), None
                if job.outlook.forecast.remaining_steps is None and not job.outlook.is_told:
                    took = virtual.ended_at - started
                    job.taught_seconds = max(took * times_as_long(job.outlook.job, ended), 1e-3)

    def _arrive(self, arrival: Arrival) -> None:
        outlook, steps = arrival.outlook, arrival.steps
        if outlook.forecast.remaining_steps is not None:  # it may be that of a job which had made steps
            forecast = outlook.forecast.with_steps_left(Interval(steps, steps, steps))
            outlook = outlook._replace(forecast=forecast)
        self._jobs.append(_Virtual(outlook, steps, NOTHING, arrival.submitted_at, self._now))
        self._note_unmeasured(self._jobs[-1])

    def _note_unmeasured(self, job: _Virtual) -> None:
        if is_unmeasured(job.outlook):
            self._unmeasured[alike(job.outlook.job)].append(job)

    # --- decisions -----------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        active = [job for job in self._jobs if job.ended_at == math.inf]
        outlooks = [self._seen(job) for job in active]
        snapshot = Snapshot(
            self._now,
            self._queue.nodes,
            tuple(one.job for one in outlooks),
            (),
            self._queue.quotas,
            self._queue.worker_limits,
        )
        current = {job.outlook.id: job.slots for job in active}
        policy, settings = self._rules.policy, self._rules.settings
        self._has_changed = False
        if self._n_decided < self._rules.on_nodes:
            asked = Asked(outlooks, snapshot, current, self._placer, policy, settings)
            grants, placements, _ = with_lent_room(granted_places(asked), asked)
            for job in active:
                self._place(job, placements.get(job.outlook.id))
        else:
            grants = allocate(outlooks, snapshot, current, policy, settings, self._placer)
            for job in active:
                self._resize(job, grants[job.outlook.id].allocation)
        self._again_at = min((one.again_at for one in grants.values() if one.again_at is not None), default=math.inf)
        for job in active:
            job.is_feasible = grants[job.outlook.id].reason is not Reason.NO_FEASIBLE_NODE
        if self._has_changed and not self._is_only:
            self._note_cuts({one.id: one for one in outlooks}, grants)
        self._decided_at, self._n_decided = self._now, self._n_decided + 1

    def _note_cuts(self, seen: Mapping[str, Outlook], grants: Mapping[str, Grant]) -> None:
        """Which jobs have fewer tasks from this instant on than until it, and who has more. Later jobs are guesses: for
        them alone nobody is told to lose any."""
        n_there, before = len(self._queue.outlooks), self.sizes[-1]
        jobs = [(number, job) for number, job in enumerate(self._jobs[:n_there]) if job.ended_at == math.inf]
        cut = [
            (number, job)
            for number, job in jobs
            if number not in self.cuts and not self.sizes[0][number].is_empty and _n_tasks(job.size, before[number]) < 0
        ]
        if not cut:
            return
        more = [(number, job) for number, job in jobs if _n_tasks(job.size, before[number]) > 0]
        more.sort(key=lambda each: (not before[each[0]].is_empty, not grants[each[1].outlook.id].is_claimed))

        def as_seen(job: _Virtual) -> Seen:
            one, left = seen[job.outlook.id], math.inf
            if not job.is_endless:
                left = job.left / max(job.outlook.speeds.at(job.outlook.minimum), 1e-12)
            return Seen(one, grants[one.id], left)

        for number, loser in cut:
            rules = self._rules.policy, self._rules.settings
            gainers = {place: why_for(as_seen(each), as_seen(loser), *rules) for place, each in more}
            self.cuts[number] = Cut(self._now, loser.size.is_empty, gainers)

    def _place(self, job: _Virtual, placed: Placed | Unplaced | None) -> None:
        size, slots = placed if isinstance(placed, Placed) else (NOTHING, _NOWHERE)
        if size == job.size and slots != job.slots:  # it moves to other nodes
            job.resumes = self._now + job.outlook.stop_seconds
        self._resize(job, size)
        job.slots = slots

    def _resize(self, job: _Virtual, size: Allocation) -> None:
        if size == job.size:
            return
        self._has_changed, had_tasks = True, not job.size.is_empty
        job.size, job.changed_at, job.waits_as = size, self._now, None
        job.speed, job.price, job.paid_until = pace_of(job.outlook, size), self._price_of(job.outlook, size), self._now
        job.slots = _within(job.slots, size)
        if not size.is_empty:
            stop = job.outlook.stop_seconds if had_tasks else self._start_up_seconds(job.outlook)
            job.resumes = self._now + stop
            if job.started_at == math.inf:
                at = _retry_at(job.outlook)
                # The wait after an error may end between two instants that are looked at.
                job.started_at = at if self._decided_at < at <= self._now else self._now
                job.begins_at = job.started_at + stop
                job.cause = None if job.started_at < self._now else self._newest_end(job)
            job.n_sizes += 1

    def _price_of(self, outlook: Outlook, size: Allocation) -> float:
        """Of a second with this size, where the job has a limit of money; else 0."""
        if outlook.job.spec.convergence.max_cost is None or size.is_empty:
            return 0.0
        return cost_per_second(outlook.job.spec, size, self._rules.settings)

    def _start_up_seconds(self, outlook: Outlook, elapsed: float = 0.0) -> float:
        """Until it trains with its first tasks, granted so long ago."""
        start_up = start_up_seconds(self._queue.start_ups, outlook.job.spec, elapsed)
        return outlook.stop_seconds if start_up is None else start_up.mean

    def _newest_end(self, job: _Virtual) -> Cause | None:
        """Of the jobs of which one had to end before it: where a limit or quota of its owner or project was used up
        until now, those that share it, else all. Of the jobs that are there: those that come later are guesses, whose
        ends nothing is known of."""
        queue, one = self._queue, job.outlook
        for limit in queue.worker_limits:
            if is_about(limit, one) and self._sharing(limit).workers + one.minimum.workers > limit.most:
                return self._sharing(limit).newest_end
        project = one.job.spec.project
        right = self._confined.get(project)
        if right is not None and not one.demand(one.minimum).fits_in(right - self._sharing(project).allocated):
            return self._sharing(project).newest_end
        return self._sharing(None).newest_end

    def _sharing(self, what: WorkerLimit | str | None) -> _Sharing:
        """Those that share a limit or the quota of a project; None: all."""
        if what not in self._sharings:
            jobs = enumerate(zip(self._jobs, self.sizes[-1], strict=False))  # those that came since had nothing
            mine = {number: each for number, each in jobs if _is_of(each[0].outlook, what)}
            self._sharings[what] = _Sharing(mine, len(self._queue.outlooks), self._now)
        return self._sharings[what]

    def _seen(self, virtual: _Virtual) -> Outlook:
        """The job as a round would see it at this instant."""
        outlook, settings, now = virtual.outlook, self._rules.settings, self._now
        before = outlook.job
        unchanged_seconds = max(now - virtual.changed_at, 0.0)
        if virtual.waits_as is not None:
            as_before = virtual.waits_as
            return as_before.later(as_before.job, as_before.forecast, as_before.measured, unchanged_seconds, 0.0)
        has_tasks = not virtual.size.is_empty
        started = before.started_at if before.started_at is not None else _finite(virtual.started_at)
        state = JobState.RUNNING if has_tasks else JobState.PAUSED if started is not None else JobState.QUEUED
        job = replace(
            before,
            state=state,
            started_at=started,
            allocation=virtual.size,
            allocated_at=virtual.changed_at if started is not None else None,
            attained_share_seconds=virtual.attained,
        )
        forecast = outlook.forecast
        # What is left of a job that waits is as doubtful to rounds as it is now: of equal ones the older starts first.
        if forecast.remaining_steps is not None and virtual.started_at < math.inf:
            left = virtual.left
            if virtual.told is not None:  # `work` was made up, of a time and assumed speeds
                left *= forecast.remaining_steps.mean / virtual.work
            forecast = forecast.with_steps_left(Interval(left, left, left))
        trained = max(now - max(virtual.changed_at, virtual.resumes), 0.0) * virtual.speed
        measured = unchanged_seconds >= settings.measuring_seconds and trained >= settings.measuring_steps
        seen = Outlook(
            job=job,
            forecast=forecast,
            speeds=virtual.told or outlook.speeds,
            stop_seconds=outlook.stop_seconds,
            waited_seconds=0.0 if has_tasks else unchanged_seconds,
            measured=has_tasks and measured,
            learning=outlook.learning and virtual.n_sizes < _SURE_SIZES,
            typical_seconds=(virtual.taught_seconds or outlook.typical_seconds)
            * (virtual.left / virtual.work if outlook.is_told or virtual.taught_seconds else 1.0),
            is_told=outlook.is_told or virtual.taught_seconds is not None,
            allocated_seconds=unchanged_seconds if has_tasks else 0.0,
            joining_seconds=outlook.joining_seconds,
        )
        virtual.waits_as = None if has_tasks else seen
        return seen

    def _note(self) -> None:
        self._note_speeds()
        self.sizes.append(tuple(job.size if job.ended_at == math.inf else NOTHING for job in self._jobs))

    def _note_speeds(self) -> None:
        speeds = np.array([job.speed for job in self._jobs])
        resumes = np.array([job.resumes for job in self._jobs])
        self.progress.note(self._now, speeds, resumes)


def _n_tasks(size: Allocation, before: Allocation) -> int:
    """How many more tasks a size has than one before."""
    return size.workers + size.servers - before.workers - before.servers


def _within(slots: Mapping[TaskSlot, str], size: Allocation) -> Mapping[TaskSlot, str]:
    """Those of a job of this size."""
    most = {Role.WORKER: size.workers, Role.SERVER: size.servers}
    return {slot: node for slot, node in slots.items() if slot[1] < most.get(slot[0], 0)} if slots else slots


def _retry_at(outlook: Outlook) -> float:
    return -math.inf if outlook.job.retry is None else outlook.job.retry.at


def _finite(value: float) -> float | None:
    return value if value < math.inf else None
