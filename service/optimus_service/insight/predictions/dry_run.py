"""What would happen if a job were submitted now, or if a job or a quota were changed: the round's own `plan` and its
look at the queue ahead, with that and without it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property

from optimus_scheduler.ahead.corrected_times import CorrectedTimes, corrected_times
from optimus_scheduler.ahead.deadlines import Answer, DeadlineAnswer, answer_to
from optimus_scheduler.ahead.queue import Hindrances, Queue
from optimus_scheduler.ahead.start_ups import start_up_seconds
from optimus_scheduler.allocate.allocate_with_quotas import borrows
from optimus_scheduler.allocate.policy import Policy
from optimus_scheduler.forecast.alike_runs import steps_of_alike_runs
from optimus_scheduler.forecast.forecast import Overheard, at_present_pace, cost_of, forecast, most_seconds
from optimus_scheduler.forecast.prices import cost_per_second, has_prices, seconds_paid
from optimus_scheduler.forecast.time_left import after
from optimus_scheduler.model import (
    BY_CLOCK,
    NOTHING,
    Allocation,
    Decision,
    Directive,
    Forecast,
    Interval,
    Job,
    Plan,
    Role,
    SetWanted,
    Snapshot,
    StartTask,
    Task,
    TaskKey,
    TaskPhase,
)
from optimus_scheduler.settings import Settings as SchedulerSettings
from optimus_scheduler.what_if import NOTHING_TOLD, Advice, Behind, ToldOfEnds, kept_on_larger_cluster, what_gives_more
from optimus_service.clusters.base import Cluster
from optimus_service.observe.past_jobs import PastJobs
from optimus_service.observe.snapshot import ClusterState, Observer
from optimus_service.store.records import Document, JobRecord, asked_by, begins_as

CANDIDATE = "dry-run"
"""The id that a job has while it is only thought of: submitted ones always have a random end."""

_DEADLINES_TRIED = 3
"""Later deadlines that are planned with until one is promised, each the earliest that the last one allowed; and so many
between that one and the latest that is not."""
_MOST_JOBS_TO_TRY = 300
"""Active jobs beyond which it is not tried what would give one of them more: that plans a dozen times."""
_MOST_PLANNED = 5_000
"""Jobs in all plans that are made to see what gives one of them more: a tenth of a millisecond each at most."""
_MOST_ADVISED = 8
"""Explanations that wait for advice at a time; who comes then gets one without, so that threads are left for all
else."""
_AT_ONCE = Interval(0.0, 0.0, 0.0)
_LEAVING = Interval(3.0, 1.0, 10.0)
"""Seconds until tasks are started whose places others have yet to leave: these end their step, and their processes."""
Planner = Callable[[Snapshot, Callable[[str], AbstractContextManager[object]]], Plan]


@dataclass(frozen=True, slots=True)
class Effect:
    """What the new job or the change would do to a job that is there."""

    job_id: str
    before: Allocation
    after: Allocation
    left_before: Interval | None
    """Seconds to its end as things are; None: nothing can be said."""
    left_after: Interval | None
    lost_steps: int = 0
    """That it would make again: of a script that keeps no checkpoint."""
    lost_seconds: float = 0.0
    """Training time that it would lose."""


@dataclass(frozen=True, slots=True)
class PutOff:
    """A job that waits and would start clearly later."""

    job_id: str
    before: Interval
    """Seconds to its start as things are ..."""
    after: Interval | None
    """... and with the new job or the change; None: nothing can be said."""


@dataclass(frozen=True, slots=True)
class Altered:
    """What a change of what is there would do."""

    decisions: Mapping[str, Decision]
    """Of all active jobs, by id."""
    starts: Mapping[str, Interval]
    """Seconds until jobs that would wait on have tasks, where they can be said, ..."""
    starts_before: Mapping[str, Interval]
    """... the same without the change, by the same look, and ..."""
    left: Mapping[str, Interval]
    """... to the ends of jobs."""
    effects: tuple[Effect, ...]
    """Jobs that would get another size, the one that is changed among them ..."""
    put_off: tuple[PutOff, ...]
    """... and jobs that would wait on, and start later."""
    seconds_paid: Mapping[str, float] = field(default_factory=dict)
    """How long what is left of their limits of money pays for what jobs would have, or for their smallest size where
    that is nothing; of those that have such a limit."""


@dataclass(frozen=True, slots=True)
class Previewed:
    """The answer."""

    record: JobRecord
    """The job as it would be stored."""
    decision: Decision
    forecast: Forecast
    """With the size that it would get, or its smallest where it would get none yet."""
    waiting: Interval | None
    """Seconds until its first tasks would take part; None: nothing can be said."""
    left: Interval | None
    """Seconds until it would end; None: nothing can be said."""
    n_similar: int
    """Ended jobs of the same task that the forecast was helped by ..."""
    n_alike: int
    """... and those of them that had the same arguments."""
    effects: tuple[Effect, ...]
    """On other jobs that would get another size ..."""
    put_off: tuple[PutOff, ...]
    """... and on others that wait."""
    gives_more: tuple[str, ...] | None
    """What each alone would give it more; None: not tried."""
    behind: Behind | None = None
    """Whom it comes after, where nothing but the ends of other jobs gives it more."""
    borrows: bool = False
    """Whether it would have room that other projects are guaranteed."""
    deadline: DeadlineAnswer | None = None
    """Whether its deadline can be promised, and the earliest that would be; None: it has none."""
    held_by: tuple[str, ...] = ()
    """Jobs whose tasks have to stop before those that it would be given can start."""
    tells_epochs: bool = True
    """Whether an ended job of the same task told its epochs."""
    is_by_clock_alone: bool = False
    """Whether nothing but a limit of time or money tells its end: it may end before, and nobody knows when."""
    seconds_paid: float = math.inf
    """How long its limit of money pays for what it would get, or for its smallest size where it would get nothing yet;
    inf: it has no such limit."""


class Tries:
    """Plans changed worlds, as many as half a second allows. Later ones get the first plan, that of the present world:
    what was not tried gives nothing more, and what helps is not made smaller."""

    def __init__(self, planner: Planner, most: int) -> None:
        self._planner = planner
        self._left = most
        self._present: Plan | None = None
        self.is_over = False
        """Whether something was not tried."""

    def __call__(self, world: Snapshot) -> Plan:
        if self._left <= 0 and self._present is not None:
            self.is_over = True
            return self._present
        self._left -= 1
        planned = self._planner(world, _untimed)
        self._present = self._present or planned
        return planned


class Foresight:
    """Plans a world, as it is or might be, and simulates it forward, as the leader does. To be called by one thread at
    a time. It remembers the worlds it planned: of many jobs that takes much memory, so it is made for one answer."""

    def __init__(
        self,
        planner: Planner,
        forecaster: Overheard,
        policy: Policy,
        constants: SchedulerSettings,
        past: PastJobs,
        hindrances: Callable[[], Hindrances] = Hindrances,
    ) -> None:
        """`forecaster`: the planner's; `past`, `hindrances`: see `QueueAhead`."""
        self.plan = planner
        self.constants = constants
        self._forecaster = forecaster
        self._policy = policy
        self._past = past
        self._read_hindrances = hindrances

    @cached_property
    def _hindrances(self) -> Hindrances:
        """The same in all worlds of one answer; a plan alone does not ask for them."""
        return self._read_hindrances()

    @cached_property
    def _lengths(self) -> Sequence[float]:
        return self._past.lengths

    def planned(self, world: Snapshot) -> tuple[Plan, dict[str, CorrectedTimes]]:
        """What a round would decide in this world, and what is expected of each job then."""
        plan = self.plan(world, _untimed)
        outlooks = self._forecaster.outlooks
        queue = Queue.after_round(world, plan, outlooks, self._past.arrivals(outlooks, world.now), self._lengths)
        ahead = corrected_times(queue.with_hindrances(self._hindrances), self._policy, self.constants)
        stalled = self._hindrances.stalled
        return plan, {job_id: _told(each) if job_id in stalled else each for job_id, each in ahead.items()}


class Preview:
    """Looks at the world and plans, without writing anything. Thread-safe; previews take turns."""

    def __init__(
        self, cluster: Cluster, observer: Observer, foresee: Callable[[], Foresight], clock: Callable[[], float]
    ) -> None:
        """`observer` is for this alone; `foresee` makes what plans."""
        self._cluster = cluster
        self._observer = observer
        self._foresee = foresee
        self._clock = clock
        self._turn = threading.Lock()
        self._places = threading.BoundedSemaphore(_MOST_ADVISED)

    def of(
        self,
        spec: Document,
        names: Mapping[str, str],
        *,
        only_named: bool = False,
        owner: str | None = None,
        profile: Document | None = None,
    ) -> Previewed:
        """What would happen if `spec` (a `JobSpec` as a document) were submitted now. `names` of other jobs, by id;
        `owner`: who would submit it. `profile`: what is known of its task (a `JobProfile` as a document).
        `only_named`: what gives it more does not tell of other ones.

        Raises:
            ClusterUnavailable: nobody can tell.
            DatabaseNotAvailable: nobody can tell.
        """
        with self._turn:
            now, cluster_state, foresight = self._clock(), ClusterState.of(self._cluster), self._foresee()
            without = self._observer.look(cluster_state, now)
            record = as_record(spec, now, owner, profile)
            candidate = with_steps_per_epoch(self._observer.as_submitted(record, cluster_state, now))
            world = replace(without, jobs=(*without.jobs, candidate))
            planned, with_it = foresight.planned(world)
            present, without_it = foresight.planned(without)
            decision = next(decision for decision in planned.decisions if decision.job_id == CANDIDATE)
            ahead = self._forecast(candidate, decision.allocation, now, foresight.constants)
            expected = with_it[CANDIDATE].shown
            begins = start_up_seconds(world.start_ups, candidate.spec, 0.0) or _AT_ONCE
            waiting = expected.waiting(now) if decision.allocation.is_empty else begins
            left = expected.left(now) or _after(waiting, ahead.remaining_seconds)
            deadline = self._answer(foresight, world, expected.left(now), left)
            held_by = _held_by(world, planned)
            if held_by:
                waiting, left = _after(_LEAVING, waiting), _after(_LEAVING, left)
            advice = None
            if record.owner_paused_at is None:  # else nothing gives it anything but its owner
                advice = self._gives_more(foresight, world, CANDIDATE, names, only_named=only_named)
        return Previewed(
            record=record,
            decision=decision,
            forecast=ahead,
            waiting=waiting,
            left=left,
            n_similar=len(candidate.similar),
            n_alike=sum(each.arguments == candidate.spec.arguments for each in candidate.similar),
            effects=_effects(without, present, planned, without_it, with_it, now),
            put_off=_put_off(present, planned, without_it, with_it, now),
            gives_more=None if advice is None else advice.changes,
            behind=None if advice is None else advice.behind,
            borrows=not decision.allocation.is_empty
            and borrows(world, {each.job_id: each.allocation for each in planned.decisions}, candidate.spec.project),
            deadline=deadline,
            held_by=held_by,
            tells_epochs=any(each.steps_per_epoch is not None for each in candidate.similar),
            is_by_clock_alone=ahead.rule in BY_CLOCK
            and self._is_endless(candidate, decision.allocation, now, foresight.constants),
            seconds_paid=seconds_paid(replace(candidate, allocation=decision.allocation), foresight.constants),
        )

    def of_change(self, change: Callable[[Snapshot], Snapshot]) -> Altered:
        """What would happen if the world were changed now as `change` makes it.

        Raises:
            ClusterUnavailable: nobody can tell.
            DatabaseNotAvailable: nobody can tell.
        """
        with self._turn:
            now, foresight = self._clock(), self._foresee()
            without = self._observer.look(ClusterState.of(self._cluster), now)
            changed = change(without)
            planned, with_it = foresight.planned(changed)
            present, without_it = foresight.planned(without)
        starts, before = (
            {job_id: wait for job_id, each in ahead.items() if (wait := each.shown.waiting(now)) is not None}
            for ahead in (with_it, without_it)
        )
        left = {job_id: each.shown.left(now) for job_id, each in with_it.items()}
        decisions = {each.job_id: each for each in planned.decisions}
        return Altered(
            decisions=decisions,
            starts=starts,
            starts_before=before,
            left={job_id: each for job_id, each in left.items() if each is not None},
            effects=_effects(without, present, planned, without_it, with_it, now),
            put_off=_put_off(present, planned, without_it, with_it, now),
            seconds_paid={
                job.id: seconds_paid(replace(job, allocation=decisions[job.id].allocation), foresight.constants)
                for job in changed.jobs
                if job.id in decisions and job.spec.convergence.max_cost is not None
            },
        )

    def _answer(
        self, foresight: Foresight, world: Snapshot, foreseen: Interval | None, left: Interval | None
    ) -> DeadlineAnswer | None:
        """To the candidate's deadline. With a later one it may get less: the earliest is one that was tried.

        `foreseen`: seconds to its end by the look ahead, else nothing is promised; `left`: those that are told.
        """
        candidate = next(job for job in world.jobs if job.id == CANDIDATE)
        if candidate.spec.deadline_at is None:
            return None
        said = answer_to(candidate.spec.deadline_at, left, world.now)
        if foreseen is None:
            return DeadlineAnswer(said.answer if said.answer is Answer.DECLINED else Answer.OPEN)
        if said.answer is Answer.PROMISED:
            return said
        others = tuple(job for job in world.jobs if job.id != CANDIDATE)

        def answer(due: float) -> DeadlineAnswer:
            later = replace(candidate, spec=replace(candidate.spec, deadline_at=due))
            _, ahead = foresight.planned(replace(world, jobs=(*others, later)))
            return answer_to(due, ahead[CANDIDATE].shown.left(world.now), world.now)

        return replace(said, earliest=earliest_promised(answer, candidate.spec.deadline_at, said.earliest))

    def what_gives_more(
        self,
        job_id: str,
        names: Callable[[], Mapping[str, str]],
        *,
        only_named: bool = False,
        told: ToldOfEnds = NOTHING_TOLD,
    ) -> Advice | None:
        """What would give the job more than the next round does (`what_if`); `names`: those of jobs by id, asked for
        where something is tried; `only_named`: nothing that tells of other jobs; `told`: what it is told
        of the ends of others.

        None when that was not tried, or not all of it and nothing was found: the job is not active any more, or there
        are so many that it would take long, or so many others ask.

        Raises:
            ClusterUnavailable: nobody can tell.
            DatabaseNotAvailable: nobody can tell.
        """
        if self._observer.count_active() > _MOST_JOBS_TO_TRY or not self._places.acquire(blocking=False):
            return None
        try:
            with self._turn:
                snapshot, world = self._observer.look(ClusterState.of(self._cluster), self._clock()), self._foresee()
                return self._gives_more(world, snapshot, job_id, names(), only_named=only_named, told=told)
        finally:
            self._places.release()

    def kept_on_larger_cluster(self, job_id: str) -> str | None:
        """Why the job, which lacks room, would keep its size with twice the nodes, too, in a sentence; None: it would
        not, or that was not tried.

        Raises:
            ClusterUnavailable: nobody can tell.
            DatabaseNotAvailable: nobody can tell.
        """
        if not self._places.acquire(blocking=False):
            return None
        try:
            return self._kept_on_larger_cluster(job_id)
        finally:
            self._places.release()

    def _kept_on_larger_cluster(self, job_id: str) -> str | None:
        with self._turn:
            snapshot = self._observer.look(ClusterState.of(self._cluster), self._clock())
            if len(snapshot.jobs) > _MOST_JOBS_TO_TRY or all(job.id != job_id for job in snapshot.jobs):
                return None
            return kept_on_larger_cluster(snapshot, job_id, Tries(self._foresee().plan, 2))

    def _gives_more(
        self,
        foresight: Foresight,
        snapshot: Snapshot,
        job_id: str,
        names: Mapping[str, str],
        *,
        only_named: bool,
        told: ToldOfEnds = NOTHING_TOLD,
    ) -> Advice | None:
        job = next((job for job in snapshot.jobs if job.id == job_id), None)
        if len(snapshot.jobs) > _MOST_JOBS_TO_TRY or job is None:
            return None
        tries = Tries(foresight.plan, _MOST_PLANNED // len(snapshot.jobs))
        waits = job.allocation.is_empty and job_id != CANDIDATE  # a dry run tells of the next round itself
        found = what_gives_more(snapshot, job_id, tries, names, only_named=only_named, waits=waits, told=told)
        return None if tries.is_over and not found.changes and found.behind is None else found

    def _is_endless(self, job: Job, size: Allocation, now: float, constants: SchedulerSettings) -> bool:
        """Whether nothing but its limits of time and money tells where the job would end."""
        spec = replace(job.spec, convergence=job.spec.convergence.without_clock)
        return self._forecast(replace(job, spec=spec), size, now, constants).total_steps is None

    def _forecast(self, job: Job, size: Allocation, now: float, constants: SchedulerSettings) -> Forecast:
        """What is believed of the job with this size, or with its smallest where that is none."""
        granted = replace(job, allocation=job.spec.smallest if size.is_empty else size, allocated_at=now)
        ahead = forecast(granted, now, constants).forecast
        return ahead if ahead.total_steps is not None else like_similar(granted, ahead, now, constants)


def earliest_promised(answer: Callable[[float], DeadlineAnswer], refused: float, later: float | None) -> float | None:
    """The earliest deadline of those tried that is promised; None: none is. `refused`: one that is not; `later`: what
    may be instead. A job with a later one may get less, or nothing of others: so each is planned with."""
    promised = None
    for _ in range(_DEADLINES_TRIED):
        if later is None:
            return None
        tried = answer(later)
        if tried.answer is Answer.PROMISED:
            promised = later
            break
        refused, later = later, tried.earliest
    if promised is None:
        return None
    for _ in range(_DEADLINES_TRIED):
        between = (refused + promised) / 2.0
        if answer(between).answer is Answer.PROMISED:
            promised = between
        else:
            refused = between
    return promised


def _effects(
    without: Snapshot,
    present: Plan,
    planned: Plan,
    without_it: Mapping[str, CorrectedTimes],
    with_it: Mapping[str, CorrectedTimes],
    now: float,
) -> tuple[Effect, ...]:
    """Of the jobs that would get another size."""
    # What would be stopped without the new job, too, is not lost by it.
    losing = {job.id: job for job in without.jobs if job.unsaved_seconds > 0}
    kept = {each.job_id for each in present.decisions if each.job_id in losing and not each.allocation.is_empty}
    lost = {job_id: losing[job_id].unsaved_seconds for job_id in kept}
    sizes = {decision.job_id: decision.allocation for decision in planned.decisions}
    return tuple(
        Effect(
            job_id=before.job_id,
            before=before.allocation,
            after=sizes[before.job_id],
            left_before=without_it[before.job_id].shown.left(now),
            left_after=_later(with_it[before.job_id].shown.left(now), lost.get(before.job_id, 0.0)),
            lost_steps=_made(losing[before.job_id]) if before.job_id in lost else 0,
            lost_seconds=lost.get(before.job_id, 0.0),
        )
        for before in present.decisions
        if sizes[before.job_id] != before.allocation
    )


def _made(job: Job) -> int:
    """Steps since it first began: what one that begins anew makes again."""
    return max(job.step - job.began_at_step, 0)


def _later(left: Interval | None, lost: float) -> Interval | None:
    """The look ahead has a job go on with the steps that it has; those that it loses it makes again."""
    return None if left is None else Interval(*(each + lost for each in (left.mean, left.low, left.high)))


def _put_off(
    present: Plan,
    planned: Plan,
    without_it: Mapping[str, CorrectedTimes],
    with_it: Mapping[str, CorrectedTimes],
    now: float,
) -> tuple[PutOff, ...]:
    """Those that would start later than the interval of their start without the new job allows for: two looks ahead
    never tell quite the same."""
    waits = {each.job_id for each in planned.decisions if each.allocation.is_empty}
    found = []
    waited = (each.job_id for each in present.decisions if each.allocation.is_empty and each.job_id in waits)
    for job_id in (each for each in waited if each in without_it and each in with_it):  # none that is only watched
        before, after = without_it[job_id].shown.waiting(now), with_it[job_id].shown.waiting(now)
        if before is not None and (after is None or after.mean > before.high):
            found.append(PutOff(job_id, before, after))
    return tuple(found)


def _held_by(world: Snapshot, planned: Plan) -> tuple[str, ...]:
    """Whose tasks are in the places of those that the candidate is given, and stop for them or do so already."""
    wanted = {job.id: job.wanted_tasks for job in world.jobs}
    wanted |= {action.job_id: action.tasks for action in planned.actions if isinstance(action, SetWanted)}
    start = {action.task.key for action in planned.actions if isinstance(action, StartTask)}
    nodes = {placed.node for placed in wanted[CANDIDATE] if placed.key not in start}
    if not nodes:
        return ()
    stay = {placed.key for tasks in wanted.values() for placed in tasks}
    return tuple(sorted({task.key.job_id for task in world.tasks if task.node in nodes and _leaves(task, stay)}))


def _leaves(task: Task, stay: Set[TaskKey]) -> bool:
    # A coordinator takes no place.
    return task.key not in stay and task.phase is not TaskPhase.EXITED and task.key.role is not Role.COORDINATOR


def _after(waiting: Interval | None, left: Interval | None) -> Interval | None:
    """Where the look ahead says no end: that of its size, after the wait."""
    return None if left is None or waiting is None else after(waiting, left)


def like_similar(job: Job, ahead: Forecast, now: float, constants: SchedulerSettings) -> Forecast:
    """Of a job without a single loss no curve can be fitted: it is expected to take as many epochs or steps as similar
    ones did.
    As it is when none has ended, or nothing is known of the speed.
    """
    steps = steps_of_alike_runs(job, job.steps_per_epoch)
    if steps is None or ahead.seconds_per_step is None:
        return ahead
    most = min(most_seconds(job, now), seconds_paid(job, constants))
    seconds, _ = at_present_pace(job, steps, ahead.seconds_per_step, most)
    price = cost_per_second(job.spec, job.allocation, constants) if has_prices(constants) else None
    return ahead._replace(
        total_steps=steps,
        remaining_steps=steps,
        remaining_seconds=seconds,
        cost=cost_of(seconds, price),
    )


def with_steps_per_epoch(job: Job) -> Job:
    """The steps of an epoch are told by a job's tasks once they run; until then, those of the newest similar job."""
    for ended in reversed(job.similar):
        if ended.silent is None and job.spec.counted_batch in (None, ended.global_batch_size):
            batch_size = job.spec.global_batch_size or ended.global_batch_size
            spec = replace(job.spec, global_batch_size=batch_size)
            return replace(job, spec=spec, steps_per_epoch=job.steps_per_epoch or ended.steps_per_epoch)
    return job


def as_record(spec: Document, now: float, owner: str | None = None, profile: Document | None = None) -> JobRecord:
    """A job that was submitted this instant."""
    asked = asked_by(spec)
    state, owner_paused_at = begins_as(asked, now)
    return JobRecord(
        id=CANDIDATE,
        name=asked.name,
        project=asked.project,
        owner=owner,
        spec=spec,
        state=state,
        directive=Directive.RUN,
        created_at=now,
        owner_paused_at=owner_paused_at,
        started_at=None,
        finished_at=None,
        generation=0,
        wanted=NOTHING,
        wanted_at=None,
        membership_epoch=0,
        running=NOTHING,
        step=0,
        first_step=None,
        epoch=None,
        loss=None,
        profile=profile,
        result=None,
        failure=None,
        token_nonce="",
        coordinator_address=None,
        rescales=0,
        version=0,
    )


def _told(times: CorrectedTimes) -> CorrectedTimes:
    """Of a job of which nothing tells whether it goes on to its end: whatever size it has, no end."""
    return times._replace(shown=times.shown._replace(end=None))


def _untimed(_: str) -> AbstractContextManager[object]:
    return nullcontext()
