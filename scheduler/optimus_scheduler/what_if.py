"""What would give a job more: changes that are tried, by planning again with each of them.

Advice that was not tried is a guess. So each change is made in the snapshot, the round is planned once more, and only
what really gives the job more is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, groupby, pairwise
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

from optimus_scheduler.allocate.allocate_with_quotas import guarantees
from optimus_scheduler.allocate.deadline_budget import leaves_deadline_in_doubt
from optimus_scheduler.allocate.staying import room_of
from optimus_scheduler.forecast.ends_teach import taught_by_ends
from optimus_scheduler.model import (
    Allocation,
    Architecture,
    Decision,
    Job,
    JobSpec,
    Node,
    Plan,
    Quota,
    Reason,
    Resources,
    Snapshot,
    SpeedSample,
    TaskDemand,
    WorkerLimit,
)
from optimus_scheduler.model.format import instant_words, time_words
from optimus_scheduler.quota_words import quota_words, right_words
from optimus_scheduler.settled import settled_for_others

_Planned = dict[str, Decision]
Planner = Callable[[Snapshot], Plan]
"""`round.plan` with its policy and constants."""

_MOST_OTHERS = 3
"""Jobs whose end is tried one by one, then of some of them together; and closed nodes that are opened."""
_MOST_TOGETHER = 8
"""Jobs beyond them whose ends are tried together, those that end soonest; then those of all that have tasks."""
_MEASURED_STEPS = 1000
_MEASURED_AFTER_SECONDS = 60.0
"""By then the present size of a job has been measured, as far as it ever will be."""
_RAISES = (1, 2, 4, 16)
"""Of a quota, in what the job needs for its next task, or to start."""
_HALVINGS = 8
"""Of the way from a quota that does not help to one that does: to 1 % of the cluster, or a core, or less."""
MEASUREMENT = "a measurement of its speed at this size since it has it, if that is as predicted"
"""This change comes by itself."""
_ONCE_MEASURED = ", once its speed at this size is measured, if that is as predicted"
_QUOTAS_OF_OTHERS = "quotas of others"
_QUOTA_BEYOND = "quota beyond the cluster"
_OTHERS_TOGETHER = "others together"
_OPEN = "open"
_DEADLINE = "deadline"
NEXT_ROUND = "the next round, as things are now"
"""All that gives a job more which was last told to wait: what it waited for has come."""
_WAITING_FOR_OWN = frozenset({Reason.WAITING_FOR_QUOTA, Reason.WAITING_FOR_WORKER_LIMIT})
"""Reasons of jobs that wait for what others of their project, or of their owner, hold."""
NOT_COMPETING = frozenset(
    {
        Reason.CANCELLING,
        Reason.CONVERGED,
        Reason.LIMIT_REACHED,
        Reason.PAUSED_BY_OWNER,
        Reason.TRACKED,
        Reason.WAITING_FOR_RETRY,
    }
)
"""Reasons of jobs that take no part in the sharing."""
LACKING_CAPACITY = frozenset({Reason.CLUSTER_FULL, Reason.MINIMUM_ELSEWHERE, Reason.BETTER_USED_ELSEWHERE})
"""Reasons of jobs that keep their size for want of room."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that could be different."""

    words: str
    """What would have to be: "a priority of 4 (now 1)"."""
    snapshot: Snapshot
    """The world in which it is."""
    kind: str
    """Of several changes of a kind only the first that helps is told."""
    jobs: frozenset[str] = frozenset()
    """Other jobs that it is about."""
    less: Callable[[float], Change] | None = None
    """The same change by a part, 0 to 1, of the way to it from the one before it, which helps less."""
    if_cancelled: Snapshot | None = None
    """Of ends that teach something: the world in which these jobs are cancelled, and teach nothing."""

    def tells_only(self, ids: Collection[str]) -> bool:
        """Whether it tells of no other job than these, and of no other project's quota."""
        return self.kind != _QUOTAS_OF_OTHERS and all(each in ids for each in self.jobs)


@dataclass(frozen=True, slots=True)
class Behind:
    """Other jobs that go before a job which nothing but their ends helps."""

    with_tasks: int | None
    """How many of them have tasks; None: the reader may not know of all of them, and of no number."""
    waiting: int | None
    """How many more start before it; None: not known."""


class WithOneEnd(NamedTuple):
    """Other jobs that wait, by what the ends of single jobs with tasks would do now."""

    sooner: frozenset[str] = frozenset()
    """Those that start with one which does not give the job more ..."""
    later: frozenset[str] = frozenset()
    """... and those that do not with one which does."""


NO_END_TRIED = WithOneEnd()


@dataclass(frozen=True, slots=True)
class Advice:
    """What would help a job."""

    changes: tuple[str, ...]
    """Changes each of which alone gives it more than it gets in this round; in words."""
    loses_to: Allocation | None = None
    """What a round as it would be now leaves the job, where that is less than it has: then `changes` are those with
    each of which it keeps what it has. None: it loses nothing."""
    now: Decision | None = field(default=None, compare=False)
    """What a round as it would be now decides for the job; None: not asked, or that starts it."""
    behind: Behind | None = None
    """Where no change helps: whom it comes after. None: one does, or the ends of all others do not help either."""
    with_one_end: WithOneEnd = field(default=NO_END_TRIED, compare=False)
    """Who else that waits would start with an end that was tried, or would not."""


class ToldOfEnds(NamedTuple):
    """What a job is told of the ends of others, by id."""

    awaited: Sequence[str] = ()
    """Those that it is told to wait for, the likeliest first."""
    started_by: Mapping[str, Collection[str]] = MappingProxyType({})
    """Jobs before it that are told to start with the end of another, by that one."""


NOTHING_TOLD = ToldOfEnds()


def what_gives_more(
    snapshot: Snapshot,
    job_id: str,
    planner: Planner,
    names: Mapping[str, str] = MappingProxyType({}),
    *,
    only_named: bool = False,
    waits: bool = False,
    told: ToldOfEnds = NOTHING_TOLD,
) -> Advice:
    """What would give the job more than it gets in this round.

    `names`: what jobs are called in the words, by id. `only_named`: no other job is told of, nor quotas of other
    projects, since whoever reads it may not know of them. `waits`: the job was last told to wait, so that a round as it
    would be now may already give it more. `told`: ends that it is told to wait for are tried first.

    No changes when none of those that are tried helps, and for a job that does not compete for anything. Of a job that
    no node may host, also the opening of one that could. Of a job whose speed has to be measured before it gets more,
    also what gives it more after that. Room that this round gives to others is theirs: nobody is faster than it. So
    all is tried with what they have then, but for what lets the job keep what this round would take from it.
    """
    planned = planner(snapshot)
    present = {decision.job_id: decision for decision in planned.decisions}
    decision = now = present[job_id]
    if decision.reason in NOT_COMPETING:
        return Advice(())
    if waits and not decision.allocation.is_empty:
        return Advice((NEXT_ROUND,))
    tries = _Tries(planner, names, told, only_named)
    job = next(job for job in snapshot.jobs if job.id == job_id)
    loses = is_more(job.allocation, decision.allocation)
    settled = snapshot if loses else settled_for_others(snapshot, planned, job_id)
    if settled is not snapshot:
        then = {each.job_id: each for each in planner(settled).decisions}
        if not is_more(then[job_id].allocation, decision.allocation):
            snapshot, present, decision = settled, then, then[job_id]
    least = _n_tasks(job.allocation) if loses else _n_tasks(decision.allocation) + 1
    found = tries.helpful(snapshot, decision, present, least)
    for measured in () if loses else _of_knowledge(snapshot, job, decision):
        if not found:
            present = _planned(planner, measured)
            more = _n_tasks(present[job_id].allocation) + 1
            found = tries.helpful(measured.snapshot, present[job_id], present, more)
            found = {kind: f"{words}{_ONCE_MEASURED}" for kind, words in found.items()}
    behind = None if found else tries.behind(snapshot, decision, present, least)
    if not found and behind is None and decision.reason is Reason.WAITING_FOR_QUOTA:
        # What it needs of its quota is known, also where there would be room for it only after others.
        alone = replace(snapshot, jobs=(job,))
        present = {each.job_id: each for each in planner(alone).decisions}
        if present[job_id].allocation.is_empty:
            found = tries.helpful(alone, present[job_id], present, least)
            found = {kind: f"{words}, once other jobs have ended" for kind, words in found.items()}
    kept = decision.allocation if loses else None
    return Advice(tuple(found.values()), kept, now, behind, tries.with_one_end(snapshot, job_id, least))


@dataclass(frozen=True, slots=True)
class _Tries:
    """Tries changes for one reader; the fields are as in `what_gives_more`."""

    planner: Planner
    names: Mapping[str, str]
    told: ToldOfEnds
    only_named: bool
    ended: dict[str, _Planned] = field(default_factory=dict)
    """What was planned with the end of a single job, by its id."""

    def helpful(
        self, snapshot: Snapshot, decision: Decision, present: Mapping[str, Decision], least: int
    ) -> dict[str, str]:
        """Words by kind of the changes that give the job of this decision so many tasks at `least`. `present`: the plan
        without them."""
        job_id, found, names = decision.job_id, dict[str, str](), self.names
        having = {job.id for job in snapshot.jobs if not job.allocation.is_empty}  # others would only wait on
        for change in changes(snapshot, decision, present, names, self.told.awaited):
            if change.kind in found or (self.only_named and not change.tells_only(names)):
                continue
            if change.kind == _OTHERS_TOGETHER and not change.jobs.isdisjoint(found):
                continue  # the end of one of them does
            if change.kind == _QUOTA_BEYOND and found:
                continue  # nobody is told to ask for more than there is where anything else helps
            change, planned = self._as_far_as_it_helps(change, job_id, least)
            if change.if_cancelled is not change.snapshot and self._goes_before_others(change, planned):
                continue
            if change.kind == _DEADLINE and leaves_deadline_in_doubt(planned[job_id].message):
                continue  # nobody is told to choose one that is missed
            if _n_tasks(planned[job_id].allocation) >= least:
                change, planned = _smallest(change, planned, partial(self._giving, job_id=job_id, least=least))
                others = (having & present.keys()) - {job_id, *change.jobs}
                stopped = {
                    each
                    for each in others
                    if not present[each].allocation.is_empty and planned[each].allocation.is_empty
                }
                stops = [job for job in snapshot.jobs if job.id in stopped]
                # A measurement may turn out otherwise than predicted: then others may keep what they have.
                pauses = "" if change.words == MEASUREMENT else _stopping(stops, names, only_named=self.only_named)
                found[change.kind] = f"{change.words}{pauses}"
            elif decision.reason is Reason.NO_FEASIBLE_NODE is not planned[job_id].reason and change.kind == _OPEN:
                if (beside := self._beside_open(change, planned[job_id])) is not None:  # until then it waits in vain
                    found[_OPEN] = f"{change.words}, {beside}"
            elif decision.reason is not Reason.LEARNING_SPEED and self._once_measured(change, planned, job_id, least):
                # With it the job is measured first, which what keeps it at its size now does not wait for.
                helps = partial(self._giving_once_measured, job_id=job_id, least=least)
                change, _ = _smallest(change, planned, helps)
                found[change.kind] = f"{change.words}{_ONCE_MEASURED}"
        return found

    def _beside_open(self, change: Change, planned: Decision) -> str | None:
        """What a job needs beside an open node by which it does not start yet: room, or what not even the ends of all
        others give it. `planned`: with that node. None: it cannot be said in a word."""
        job = next(each for each in change.snapshot.jobs if each.id == planned.job_id)
        waits_for_quota = planned.reason is Reason.WAITING_FOR_QUOTA
        (alone,) = self.planner(replace(change.snapshot, jobs=(job,))).decisions
        if not alone.allocation.is_empty:
            return "and room on it and within quotas" if waits_for_quota else "and room on it"
        return f"a larger quota of project {job.spec.project}, and room on it" if waits_for_quota else None

    def _as_far_as_it_helps(self, change: Change, job_id: str, least: int) -> tuple[Change, _Planned]:
        """The change and its plan. Ends that help only if the jobs succeed, or only if they are cancelled, are told
        so."""
        planned = _planned(self.planner, change)
        if change.jobs == {change.kind}:
            self.ended.setdefault(change.kind, planned)
        if change.if_cancelled is None:
            return change, planned
        cancelled = replace(change, snapshot=change.if_cancelled)
        then = _planned(self.planner, cancelled)
        succeeding, cancelling = (_n_tasks(each[job_id].allocation) >= least for each in (planned, then))
        if succeeding == cancelling:
            return change, planned
        is_one = len(change.jobs) == 1
        if cancelling:
            return replace(cancelled, words=f"{change.words}, if {'it is' if is_one else 'they are'} cancelled"), then
        return replace(change, words=f"{change.words}, if {'it succeeds' if is_one else 'they succeed'}"), planned

    def _goes_before_others(self, change: Change, planned: _Planned) -> bool:
        """Whether a job that is told to start with the ends of which the change consists does not: a look at the queue
        may know of what comes with them."""
        first = {each for ended in change.jobs for each in self.told.started_by.get(ended, ())} - change.jobs
        return any(each in planned and planned[each].allocation.is_empty for each in first)

    def with_one_end(self, snapshot: Snapshot, job_id: str, least: int) -> WithOneEnd:
        """Of those that were tried."""
        waiting = {each.id for each in snapshot.jobs if each.allocation.is_empty} - {job_id}
        sooner, later = set[str](), set[str]()
        for planned in self.ended.values():
            started = {each for each in waiting if each in planned and not planned[each].allocation.is_empty}
            if _n_tasks(planned[job_id].allocation) >= least:
                later |= waiting - started
            else:
                sooner |= started
        return WithOneEnd(frozenset(sooner), frozenset(later))

    def behind(
        self, snapshot: Snapshot, decision: Decision, present: Mapping[str, Decision], least: int
    ) -> Behind | None:
        """Whose ends give the job of this decision so many tasks at `least`, where nothing else does; None: not even
        those of all others do."""
        job = next(job for job in snapshot.jobs if job.id == decision.job_id)
        others = _others_of(snapshot, job)
        own = [each for each in others if each.spec.project == job.spec.project]
        for among in (own, others) if decision.reason in _WAITING_FOR_OWN else (others,):
            ids = frozenset(each.id for each in among)
            if ids and self._giving(Change("", _without(snapshot, ids, present), ""), job.id, least) is not None:
                break
        else:
            return None
        if self.only_named and not ids <= self.names.keys():
            return Behind(None, None)
        with_tasks = {each.id for each in among if not each.allocation.is_empty}
        first = self._first(snapshot, job.id, ids, least, present)
        return Behind(len(with_tasks), None if first is None else len(first - with_tasks))

    def _first(
        self, snapshot: Snapshot, job_id: str, among: frozenset[str], least: int, present: Mapping[str, Decision]
    ) -> frozenset[str] | None:
        """Those of these jobs that have tasks, those that rounds start once these have ended, and so on until the job
        has so many tasks; None: it has not when no other starts, or not all of that could be tried."""
        gone = frozenset(each.id for each in snapshot.jobs if each.id in among and not each.allocation.is_empty)
        while True:
            planned = _planned(self.planner, Change("", _without(snapshot, gone, present), ""))
            if _n_tasks(planned[job_id].allocation) >= least:
                return gone
            then = {each for each in among - gone if each in planned and not planned[each].allocation.is_empty}
            if not then:
                return None
            gone |= then

    def _giving(self, change: Change, job_id: str, least: int) -> _Planned | None:
        """What is planned with the change, if that gives the job so many tasks."""
        planned = _planned(self.planner, change)
        return planned if _n_tasks(planned[job_id].allocation) >= least else None

    def _giving_once_measured(self, change: Change, job_id: str, least: int) -> _Planned | None:
        """The same of a change with which the job is measured at its size first."""
        planned = _planned(self.planner, change)
        return planned if self._once_measured(change, planned, job_id, least) else None

    def _once_measured(self, change: Change, planned: _Planned, job_id: str, least: int) -> bool:
        if planned[job_id].reason is not Reason.LEARNING_SPEED:
            return False
        job = next(job for job in change.snapshot.jobs if job.id == job_id)
        keeps = planned[job_id].allocation == job.allocation
        measured = _of_knowledge(change.snapshot, job, planned[job_id]) if keeps else ()
        return any(self._giving(each, job_id, least) for each in measured)


def kept_on_larger_cluster(snapshot: Snapshot, job_id: str, planner: Planner) -> str | None:
    """Why a job that lacks room keeps its size on a cluster of twice its nodes, too, in a sentence; None: it does not,
    or it lacks room there as well."""
    twice = tuple(replace(node, name=f"{node.name}-more", schedulable=True) for node in snapshot.nodes)
    larger = replace(snapshot, nodes=(*snapshot.nodes, *twice))
    before, after = (
        next(each for each in planner(world).decisions if each.job_id == job_id) for world in (snapshot, larger)
    )
    lacks_capacity = after.reason in LACKING_CAPACITY or before.reason not in LACKING_CAPACITY
    return None if lacks_capacity or is_more(after.allocation, before.allocation) else after.message


def _planned(planner: Planner, change: Change) -> _Planned:
    return {each.job_id: each for each in planner(change.snapshot).decisions}


def _smallest(
    change: Change, planned: _Planned, giving: Callable[[Change], _Planned | None]
) -> tuple[Change, _Planned]:
    """The smallest form of a change that helps, and what is planned with it: `giving` has that of one that does."""
    less, low, high = change.less, 0.0, 1.0
    if less is None:
        return change, planned
    tried_words = {less(low).words}
    for _ in range(_HALVINGS):
        part = (low + high) / 2.0
        tried = less(part)
        if tried.words == change.words:
            high = part
        elif tried.words in tried_words:
            low = part
        elif (found := giving(tried)) is not None:
            change, planned, high = tried, found, part
        else:
            tried_words.add(tried.words)
            low = part
    return change, planned


def _stopping(jobs: Sequence[Job], names: Mapping[str, str], *, only_named: bool) -> str:
    """What a change takes from others: those that would have to pause, and the work of those that would begin anew."""
    shown = [each for each in jobs if each.id in names or not only_named][:_MOST_OTHERS]
    named = [f"{names.get(each.id, each.id)}{_losing(each)}" for each in shown]
    more = 0 if only_named else len(jobs) - len(named)
    named += [f"{more} other{'s' * (more != 1)}"] if more else []
    return f" (which would pause {' and '.join(named)})" if named else ""


def _losing(job: Job) -> str:
    return f", which loses {time_words(job.unsaved_seconds)} of work" if job.unsaved_seconds >= 1 else ""


def has_fixed_size(spec: JobSpec) -> bool:
    """Whether it is a script that its owner gave one number of workers, so that with fewer it would train otherwise."""
    is_fixed = spec.size_stays or spec.worker.minimum == spec.worker.maximum
    return spec.architecture is Architecture.SCRIPT and is_fixed


def is_more(size: Allocation, than: Allocation) -> bool:
    """Whether a job has more tasks with `size`."""
    return _n_tasks(size) > _n_tasks(than)


def _n_tasks(size: Allocation) -> int:
    return size.workers + size.servers


def changes(
    snapshot: Snapshot,
    decision: Decision,
    present: Mapping[str, Decision],
    names: Mapping[str, str],
    awaited: Sequence[str] = (),
) -> Iterator[Change]:
    """All that is tried for the job of `decision`: what comes by itself (measurements, and the ends that it waits for,
    `awaited`), then what its owner can do, then the rest."""
    job = next(job for job in snapshot.jobs if job.id == decision.job_id)
    others = _others_of(snapshot, job)
    having = {each.id for each in others if not each.allocation.is_empty}
    yield from _of_knowledge(snapshot, job, decision)
    yield from (_of_end(snapshot, each, names, present) for each in awaited if each in having)
    yield from _of_its_limits(snapshot, job, decision)
    yield from _of_worker_limits(snapshot, job, decision, present)
    if others:
        yield from _of_priority(snapshot, job)
    yield from _of_terms(snapshot, job)
    yield from _of_quotas(snapshot, job)
    yield from _of_nodes(snapshot)
    own = job.spec.project if decision.reason in _WAITING_FOR_OWN else None
    yield from _of_others(snapshot, others, present, names, own)
    yield from _of_quotas_beyond(snapshot, job)


def _others_of(snapshot: Snapshot, job: Job) -> list[Job]:
    return [each for each in snapshot.jobs if each.id != job.id and not each.spec.tracked]


def _with(snapshot: Snapshot, job: Job) -> Snapshot:
    return replace(snapshot, jobs=tuple(job if each.id == job.id else each for each in snapshot.jobs))


def _specified(snapshot: Snapshot, job: Job, spec: JobSpec) -> Snapshot:
    return _with(snapshot, replace(job, spec=spec))


def _of_its_limits(snapshot: Snapshot, job: Job, decision: Decision) -> Iterator[Change]:
    spec, size = job.spec, decision.allocation
    worker, server = spec.worker, spec.server
    if size.is_empty and not has_fixed_size(spec):
        if worker.minimum > 1:
            yield _of_minimum(snapshot, job, "workers", worker, lambda fewer: replace(spec, worker=fewer))
        if server.minimum > 1:
            yield _of_minimum(snapshot, job, "servers", server, lambda fewer: replace(spec, server=fewer))
    if size.is_empty:
        return
    more_workers = size.workers >= worker.maximum and spec.may_grow
    if more_workers:
        yield _of_maxima(snapshot, job, workers=True)
    if size.servers >= server.maximum > 0:
        yield _of_maxima(snapshot, job, servers=True)
        if more_workers:
            yield _of_maxima(snapshot, job, workers=True, servers=True)


def _of_minimum(
    snapshot: Snapshot, job: Job, role: str, demand: TaskDemand, spec_with: Callable[[TaskDemand], JobSpec]
) -> Change:
    """A minimum of 1, and larger ones up to one less than now."""

    def change(part: float) -> Change:
        least = demand.minimum - math.ceil(part * (demand.minimum - 1))
        fewer = spec_with(replace(demand, minimum=least))
        words = f"`{role}.min` of {least} (now {demand.minimum})"
        return Change(words, _specified(snapshot, job, fewer), "minimum", less=change)

    return change(1.0)


def _of_maxima(snapshot: Snapshot, job: Job, *, workers: bool = False, servers: bool = False) -> Change:
    """A limit of twice as many workers or servers, or of both, and smaller ones down to one more."""
    spec, roles = job.spec, {"workers": workers, "servers": servers}

    def change(part: float) -> Change:
        raised = {
            role: replace(demand, maximum=demand.maximum + math.ceil(part * demand.maximum))
            for role, demand in (("workers", spec.worker), ("servers", spec.server))
            if roles[role]
        }
        larger = replace(spec, worker=raised.get("workers", spec.worker), server=raised.get("servers", spec.server))
        now = {"workers": spec.worker.maximum, "servers": spec.server.maximum}
        words = " and ".join(f"`{role}.max` of {each.maximum} (now {now[role]})" for role, each in raised.items())
        return Change(words, _specified(snapshot, job, larger), "maximum", less=change)

    return change(1.0)


def _of_worker_limits(
    snapshot: Snapshot, job: Job, decision: Decision, present: Mapping[str, Decision]
) -> Iterator[Change]:
    """Larger limits of its owner and of its project that leave it no more workers: each alone, or both."""
    need = job.spec.worker.minimum if decision.allocation.is_empty else 1

    def is_used_up(limit: WorkerLimit) -> bool:
        held = sum(present[each.id].allocation.workers for each in snapshot.jobs if _is_about(limit, each))
        return held + need > limit.most

    limits = [each for each in snapshot.worker_limits if _is_about(each, job) and is_used_up(each)]
    choices = [(each,) for each in limits] + [tuple(limits)] * (len(limits) > 1)
    # Those that share them ask for more as soon as the speeds at their sizes are measured, and may come first.
    sharing = [each for each in snapshot.jobs if each.id != job.id and any(_is_about(limit, each) for limit in limits)]
    for one in sharing:
        if not _is_measured(one):
            like = present[one.id] if one.speed_samples or one.similar else decision
            snapshot = _measured(snapshot, one, like.forecast.steps_per_second or 1.0)
    for below, times in pairwise((0, *_RAISES)):
        for chosen in choices:
            yield _of_worker_limit(snapshot, chosen, below * need, times * need)


def _of_worker_limit(snapshot: Snapshot, chosen: Sequence[WorkerLimit], low: int, high: int) -> Change:
    def change(part: float) -> Change:
        more = math.ceil(low + part * (high - low))
        raised = {each: replace(each, most=each.most + more) for each in chosen}
        words = " and ".join(
            f"`workers_together` of {raised[each].most} for "
            f"{f'project {each.project}' if each.owner is None else each.owner} (now {each.most})"
            for each in chosen
        )
        limits = tuple(raised.get(each, each) for each in snapshot.worker_limits)
        return Change(words, replace(snapshot, worker_limits=limits), "worker limit", less=change)

    return change(1.0)


def _is_about(limit: WorkerLimit, job: Job) -> bool:
    mine = limit.owner == job.owner if limit.owner is not None else limit.project == job.spec.project
    return mine and job.submitted_at >= limit.since


def _of_priority(snapshot: Snapshot, job: Job) -> Iterator[Change]:
    for factor in (2.0, 4.0, 16.0):
        priority = factor * job.spec.priority
        raised = _specified(snapshot, job, replace(job.spec, priority=priority))
        yield Change(f"a priority of {priority:g} (now {job.spec.priority:g})", raised, "priority")


def _of_terms(snapshot: Snapshot, job: Job) -> Iterator[Change]:
    spec, rule = job.spec, job.spec.convergence
    if spec.deadline_at is not None and spec.deadline_at > snapshot.now:
        left = spec.deadline_at - snapshot.now
        for factor, which in ((2.0, "a later"), (4.0, "a later"), (0.5, "an earlier")):
            at = math.floor(snapshot.now + factor * left)  # as exactly as it is said
            words = f"{which} deadline, {instant_words(at)} (now {instant_words(spec.deadline_at)})"
            yield Change(words, _specified(snapshot, job, replace(spec, deadline_at=at)), _DEADLINE)
    if rule.max_cost is not None:
        for factor in (2.0, 8.0):
            richer = replace(spec, convergence=replace(rule, max_cost=factor * rule.max_cost))
            words = f"a `max_cost` of {factor * rule.max_cost:g} (now {rule.max_cost:g})"
            yield Change(words, _specified(snapshot, job, richer), "budget")


def _of_quotas(snapshot: Snapshot, job: Job) -> Iterator[Change]:
    project = job.spec.project
    own = next((quota for quota in snapshot.quotas if quota.project == project), None)
    rest = tuple(quota for quota in snapshot.quotas if quota.project != project)
    if own is not None and not own.may_borrow:
        yield Change(
            f"leave to borrow for project {project}",
            replace(snapshot, quotas=(*rest, replace(own, may_borrow=True))),
            "borrow",
        )
    if own is not None:
        within, _ = _raised(own, job, snapshot)
        # An amount overrules the share for its resource: a larger share may be of no use.
        same_share = [each for each, _ in groupby(replace(each, share=own.share) for each in within) if each != own]
        for larger in (same_share, within):
            for below, raised in pairwise((own, *larger)):
                yield _of_quota(snapshot, own, below, raised)
    if rest:
        alone = () if own is None else (own,)
        yield Change("smaller quotas of other projects", replace(snapshot, quotas=alone), _QUOTAS_OF_OTHERS)


def _of_quotas_beyond(snapshot: Snapshot, job: Job) -> Iterator[Change]:
    """Larger quotas than the cluster could meet alone: they take a larger part of it from those of others."""
    own = next((quota for quota in snapshot.quotas if quota.project == job.spec.project), None)
    if own is None:
        return
    within, beyond = _raised(own, job, snapshot)
    for below, raised in pairwise(((own, *within)[-1], *beyond)):
        yield _of_quota(snapshot, own, below, raised, _QUOTA_BEYOND)


def _of_quota(snapshot: Snapshot, own: Quota, below: Quota, raised: Quota, kind: str = "quota") -> Change:
    """The quota `raised` in the place of a project's `own`, and smaller ones down to `below`."""
    rest = tuple(quota for quota in snapshot.quotas if quota.project != own.project)

    def change(part: float) -> Change:
        quota = _between(below, raised, part)
        quotas = (*rest, quota)
        words = f"a quota of project {own.project} of {quota_words(quota)} (now {quota_words(own)})"
        if kind == _QUOTA_BEYOND:
            comes_to = right_words(quota, guarantees(quotas, *room_of(snapshot))[own.project])
            words = (
                f"{words}, which is more than the open nodes have and comes to {comes_to} beside the quotas of others"
            )
        return Change(words, replace(snapshot, quotas=quotas), kind, less=change)

    return change(1.0)


def _between(low: Quota, high: Quota, part: float) -> Quota:
    """A quota so far on the way from `low` to `high`, beyond `low` in whole percents, cores, MiB and GPUs upwards."""
    if part == 0.0:
        return low

    def amount(least: float | None, most: float | None, unit: float) -> float | None:
        if least is None or most is None:
            return None
        # 1e-9: a whole number that was computed may be a little above itself.
        return min(math.ceil((least + part * (most - least)) / unit - 1e-9) * unit, most)

    memory = amount(low.memory_bytes, high.memory_bytes, 2**20)
    return replace(
        high,
        share=amount(low.share, high.share, 0.01),
        cpu=amount(low.cpu, high.cpu, 1.0),
        memory_bytes=None if memory is None else int(memory),
        gpus={kind: int(amount(low.gpus.get(kind, 0), most, 1.0) or 0) for kind, most in high.gpus.items()},
    )


def _raised(own: Quota, job: Job, snapshot: Snapshot) -> tuple[list[Quota], list[Quota]]:
    """Larger quotas, the smallest first: by what the job needs at least, then by multiples of it. First those that name
    no more than the cluster has, then those that do. More than the share that other projects leave would be refused."""
    capacity = snapshot.capacity
    free = 1.0 - sum(each.share or 0.0 for each in snapshot.quotas if each.project != own.project)
    worker, server = job.spec.worker, job.spec.server
    least = (worker.minimum, server.minimum) if job.allocation.is_empty else (1, min(server.maximum, 1))
    more = job.spec.demand(*least)
    share = more.dominant_share(capacity)
    raised = [
        replace(
            own,
            share=None if own.share is None else max(min(own.share + times * share, free), own.share),
            cpu=None if own.cpu is None else own.cpu + times * more.cpu,
            memory_bytes=None if own.memory_bytes is None else own.memory_bytes + times * more.memory_bytes,
            gpus={kind: count + times * more.gpus.get(kind, 0) for kind, count in own.gpus.items()},
        )
        for times in _RAISES
    ]
    within = [_within(each, own, capacity) for each in raised]
    beyond = [each for each, limited in zip(raised, within, strict=True) if each != limited]
    return [each for each, _ in groupby(within) if each != own], beyond


def _within(quota: Quota, own: Quota, capacity: Resources) -> Quota:
    """With no more of anything than the cluster has, but no less than the quota `own`."""
    cpu, memory = quota.cpu, quota.memory_bytes
    return replace(
        quota,
        cpu=None if cpu is None else max(min(cpu, capacity.cpu), own.cpu or 0.0),
        memory_bytes=None if memory is None else max(min(memory, capacity.memory_bytes), own.memory_bytes or 0),
        gpus={
            kind: max(min(count, capacity.gpus.get(kind, 0)), own.gpus.get(kind, 0))
            for kind, count in quota.gpus.items()
        },
    )


def _of_knowledge(snapshot: Snapshot, job: Job, decision: Decision) -> Iterator[Change]:
    """Speeds at its present size, as predicted, are measured by and by."""
    speed, size = decision.forecast.steps_per_second, job.allocation
    if decision.reason is not Reason.LEARNING_SPEED or size.is_empty or not speed or not math.isfinite(speed):
        return
    yield Change(MEASUREMENT, _measured(snapshot, job, speed), "knowledge")


def _measured(snapshot: Snapshot, job: Job, speed: float) -> Snapshot:
    """A little later, when the job has measured `speed`, in steps per second, at its present size."""
    later, size = snapshot.now + _MEASURED_AFTER_SECONDS, job.allocation
    sample = SpeedSample(
        size.workers, size.servers, speed, _MEASURED_STEPS, later, size.gpu_type, job.batch, exchange_seconds=None
    )
    known = replace(job, speed_samples=(*job.speed_samples, sample), step=job.step + 1)
    return replace(_with(snapshot, known), now=later)


def _is_measured(job: Job) -> bool:
    """Whether its speed at its present size was measured since it has that; so it is of a job without tasks."""
    size, since = job.allocation, job.allocated_at or 0.0
    return size.is_empty or any(
        (each.workers, each.servers) == (size.workers, size.servers) and each.at >= since for each in job.speed_samples
    )


def _of_nodes(snapshot: Snapshot) -> Iterator[Change]:
    for node in [node for node in snapshot.nodes if not node.schedulable][:_MOST_OTHERS]:
        again = replace(node, schedulable=True, emptied=False)
        opened = tuple(again if each is node else each for each in snapshot.nodes)
        words = f"node {node.name} open again (if it was closed: `optimus node uncordon {node.name}`)"
        yield Change(words, replace(snapshot, nodes=opened), _OPEN)
    there = {node.name for node in snapshot.nodes}
    kinds = {frozenset(node.capacity.gpus): node for node in sorted(snapshot.nodes, key=_size_of_node)}
    for node in sorted(kinds.values(), key=attrgetter("name")):
        name = f"{node.name}-more"
        if name in there:
            continue
        more = replace(node, name=name, schedulable=True)
        yield Change(f"one more node like {node.name}", replace(snapshot, nodes=(*snapshot.nodes, more)), "node")


def _size_of_node(node: Node) -> tuple[float, str]:
    return node.capacity.cpu, node.name


def _of_others(
    snapshot: Snapshot,
    others: list[Job],
    present: Mapping[str, Decision],
    names: Mapping[str, str],
    first_of: str | None,
) -> Iterator[Change]:
    """The end of another job: those first that end soonest; then of as few of these together as help. Not of those that
    wait: nobody can act by the ends of jobs that have yet to start (`_Tries.behind`). `first_of`: the project whose
    jobs are tried before others: they hold the quota or the workers that are waited for."""
    holding = sorted(
        (each for each in others if not each.allocation.is_empty),
        key=lambda each: (first_of is not None and each.spec.project != first_of, _end(present[each.id])),
    )
    tried = [each.id for each in holding[:_MOST_OTHERS]]
    yield from (_of_end(snapshot, each, names, present) for each in tried)
    for count in range(2, min(len(tried) + 1, len(others))):
        for ids in map(frozenset, combinations(tried, count)):
            yield _of_ends(snapshot, [each for each in tried if each in ids], names, present)
    for count in range(_MOST_OTHERS + 1, min(len(holding), _MOST_TOGETHER) + 1):
        yield _of_ends(snapshot, [each.id for each in holding[:count]], names, present)
    if len(holding) > _MOST_TOGETHER:
        ids = frozenset(each.id for each in holding)
        yield _ending("the ends of all jobs with tasks together", snapshot, ids, present, _OTHERS_TOGETHER)
    if 1 < len(holding) == len(others):
        ids = frozenset(each.id for each in others)
        yield _ending("the ends of all other jobs", snapshot, ids, present, _OTHERS_TOGETHER)


def _of_ends(
    snapshot: Snapshot, jobs: Sequence[str], names: Mapping[str, str], present: Mapping[str, Decision]
) -> Change:
    """Of two or more, before anything starts in their place."""
    *some, last = (names.get(each, each) for each in jobs)
    words = f"the ends of {', '.join(some)} and {last} together"
    return _ending(words, snapshot, frozenset(jobs), present, _OTHERS_TOGETHER)


def _of_end(snapshot: Snapshot, job_id: str, names: Mapping[str, str], present: Mapping[str, Decision]) -> Change:
    return _ending(f"the end of {names.get(job_id, job_id)}", snapshot, frozenset({job_id}), present, job_id)


def _ending(
    words: str, snapshot: Snapshot, ended: frozenset[str], present: Mapping[str, Decision], kind: str
) -> Change:
    after, cancelled = _without(snapshot, ended, present), _without(snapshot, ended, {})
    teaches = any(one is not other for one, other in zip(after.jobs, cancelled.jobs, strict=True))
    return Change(words, after, kind, ended, if_cancelled=cancelled if teaches else None)


def _end(decision: Decision) -> tuple[float, str]:
    left = decision.forecast.remaining_seconds
    return (math.inf if left is None else left.mean), decision.job_id


def _without(snapshot: Snapshot, ended: Collection[str], present: Mapping[str, Decision]) -> Snapshot:
    """As a round finds it when these jobs have ended. `present`: the plan before, by which those in it succeed and
    teach others of their task."""
    gone = [job for job in snapshot.jobs if job.id in ended and job.id in present]
    left = (job for job in snapshot.jobs if job.id not in ended)
    return replace(
        snapshot,
        jobs=taught_by_ends(left, gone, {job.id: present[job.id].forecast for job in gone}),
        tasks=tuple(task for task in snapshot.tasks if task.key.job_id not in ended),
    )
