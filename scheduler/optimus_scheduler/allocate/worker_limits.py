"""Allocation under limits of how many workers the jobs of one owner, or of one project, hold together.

Sizes are first shared out as if there were no such limits. Where a limit is exceeded they are shared out again, with
each of its jobs bounded: those that have tasks keep their minima, those that wait are let in by priority and age while
their minima fit, and what is left goes to the jobs in turn, one worker at a time, up to what each would have had. The
bounds of a limit never add up to more than it allows.

A limit that is lowered pauses nobody: jobs shrink to their minima, or stay as they are under a policy that resizes no
running job, and nothing starts until enough have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from optimus_scheduler.allocate.allocate_with_quotas import NO_END_HELPS, allocate_with_quotas
from optimus_scheduler.allocate.deadline_budget import bounded
from optimus_scheduler.allocate.policy import AllocationInput, Grant, Policy
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import NOTHING, Quota, Reason, WorkerLimit
from optimus_scheduler.settings import Settings

_REPLACEABLE = frozenset({Reason.AT_MAXIMUM, Reason.NO_FURTHER_GAIN, Reason.UNCHANGED, Reason.BETTER_USED_ELSEWHERE})
"""Reasons of a bounded job that are true of what is left to it, where the bound is what holds it back."""


def allocate_within_limits(
    inputs: AllocationInput,
    policy: Policy,
    settings: Settings,
    *,
    now: float,
    quotas: Sequence[Quota] = (),
    finishing: Sequence[Outlook] = (),
    limits: Sequence[WorkerLimit] = (),
) -> Mapping[str, Grant]:
    """A grant for every competing job; see `allocate_with_quotas`. What `finishing` jobs hold counts."""

    def shared(among: AllocationInput) -> Mapping[str, Grant]:
        return allocate_with_quotas(among, policy, settings, now=now, quotas=quotas, finishing=finishing)

    ordered = sorted(limits, key=lambda limit: (limit.owner or "", limit.project or "", limit.most))
    groups = list(_groups(ordered, inputs.competing, finishing))
    never = {job_id: grant for group in groups for job_id, grant in group.never_let_in()}
    if never:  # whether there is room or not: no end of a job lets these start, and nothing is kept for them
        inputs = replace(inputs, competing=tuple(one for one in inputs.competing if one.id not in never))
        groups = list(_groups(ordered, inputs.competing, finishing))
    grants = _told(_shared_within(inputs, groups, shared), groups)
    return {**grants, **never} if never else grants


def _shared_within(
    inputs: AllocationInput, groups: Sequence[_Group], shared: Callable[[AllocationInput], Mapping[str, Grant]]
) -> Mapping[str, Grant]:
    """The grants of jobs each of which its limits could let in by itself."""
    grants = shared(inputs)
    if all(group.holds(grants) for group in groups):
        return grants
    bounds = {one.id: one.maximum.workers for one in inputs.competing}
    binding: dict[str, WorkerLimit] = {}
    for group in groups:
        for job_id, most in group.bounds(grants).items():
            if most < bounds[job_id]:
                bounds[job_id], binding[job_id] = most, group.limit
    again = shared(_within(inputs, bounds))
    exceeded = [group for group in groups if not group.holds(again)]
    for group in exceeded:
        bounds |= dict.fromkeys(group.waiting, 0)
        binding |= dict.fromkeys(group.waiting, group.limit)
    if exceeded:
        again = shared(_within(inputs, bounds))
    return {
        one.id: _limited(one, grants[one.id], again[one.id], binding.get(one.id))
        if one.id in again
        else _left_out(one, groups, again)
        for one in inputs.competing
    }


def _within(inputs: AllocationInput, bounds: Mapping[str, int]) -> AllocationInput:
    """The same jobs with so many workers at most, and without those that may have none."""
    kept = [
        bounded(one, one.minimum, one.size(bounds[one.id], one.maximum.servers))
        for one in inputs.competing
        if bounds[one.id] > 0
    ]
    return replace(inputs, competing=tuple(kept))


class _Group:
    """A limit with the jobs that it is about."""

    def __init__(self, limit: WorkerLimit, competing: Sequence[Outlook], finishing: Sequence[Outlook]) -> None:
        self.limit = limit
        self._jobs = competing
        self._most = max(limit.most - sum(one.present.workers for one in finishing), 0)

    def holds(self, grants: Mapping[str, Grant]) -> bool:
        """Whether what these have is no more than the limit."""
        return sum(grants[one.id].allocation.workers for one in self._jobs if one.id in grants) <= self._most

    def has_room_for(self, outlook: Outlook, grants: Mapping[str, Grant]) -> bool:
        """Whether the limit lets the job have its minimum beside what the others have."""
        if all(one.id != outlook.id for one in self._jobs):
            return True
        others = (grants[one.id].allocation.workers for one in self._jobs if one.id != outlook.id and one.id in grants)
        return sum(others) + outlook.minimum.workers <= self._most

    def grown_beside(self, outlook: Outlook, grants: Mapping[str, Grant]) -> tuple[str, ...]:
        """Jobs that have more workers than they need at least, where the limit has room for the job beside what they
        need; none: it has not."""
        having = [one for one in self._jobs if one.id in grants and not grants[one.id].allocation.is_empty]
        if sum(one.minimum.workers for one in having) + outlook.minimum.workers > self._most:
            return ()
        return tuple(one.id for one in having if grants[one.id].allocation.workers > one.minimum.workers)

    def not_let_in(self, grants: Mapping[str, Grant]) -> Iterator[Outlook]:
        """Those that wait and for whose minimum it has no room beside what the others have."""
        waiting = [one for one in self._jobs if not one.has_tasks and grants[one.id].allocation.is_empty]
        if waiting:
            left = self._most - sum(grants[one.id].allocation.workers for one in self._jobs)
            yield from (one for one in waiting if one.minimum.workers > left)

    def never_let_in(self) -> Iterator[tuple[str, Grant]]:
        """Those that wait and need more workers at least than the limit has, by id."""
        for one in self._jobs:
            if not one.has_tasks and is_beyond_limit(self.limit, one):
                note = f"{_words(self.limit)} The job has {one.minimum.workers} at least: {NO_END_HELPS}."
                yield one.id, Grant(NOTHING, Reason.WAITING_FOR_WORKER_LIMIT, note=note)

    @property
    def waiting(self) -> list[str]:
        return [one.id for one in self._jobs if not one.has_tasks]

    def bounds(self, grants: Mapping[str, Grant]) -> dict[str, int]:
        """The most workers of each job; 0: it has to wait."""
        found = dict.fromkeys((one.id for one in self._jobs), 0)
        left = self._most
        for one in sorted(self._jobs, key=lambda one: _turn(one, grants)):
            least = one.minimum.workers
            if one.has_tasks or least <= left:
                found[one.id] = least
                left -= least
        there = [one for one in self._jobs if found[one.id] > 0]
        wished = {one.id: grants[one.id].allocation.workers for one in there}
        left = _handed_out(found, wished, left)
        _handed_out(found, {one.id: one.maximum.workers for one in there}, left)
        return found


def is_about(limit: WorkerLimit, outlook: Outlook) -> bool:
    """Whether the job is one of those that may hold so many workers together."""
    job = outlook.job
    is_of = job.spec.project == limit.project if limit.owner is None else job.owner == limit.owner
    return is_of and job.submitted_at >= limit.since


def is_beyond_limit(limit: WorkerLimit, outlook: Outlook) -> bool:
    """Whether the limit never lets the job start, as its minimum is larger."""
    return is_about(limit, outlook) and outlook.minimum.workers > limit.most


def _groups(
    limits: Sequence[WorkerLimit], competing: Sequence[Outlook], finishing: Sequence[Outlook]
) -> Iterator[_Group]:
    """Each limit that is about a job, without a look at every job for every limit."""
    if not limits:
        return
    by_holder = [_by_holder(jobs) for jobs in (competing, finishing)]
    for limit in limits:
        of_limit = (jobs.get((limit.owner, limit.project), []) for jobs in by_holder)
        mine, leaving = ([one for one in jobs if one.job.submitted_at >= limit.since] for jobs in of_limit)
        if mine:
            yield _Group(limit, mine, leaving)


def _by_holder(jobs: Sequence[Outlook]) -> dict[tuple[str | None, str | None], list[Outlook]]:
    """By owner and no project, and by project and no owner."""
    found: dict[tuple[str | None, str | None], list[Outlook]] = {}
    for one in jobs:
        found.setdefault((one.job.owner, None), []).append(one)
        found.setdefault((None, one.job.spec.project), []).append(one)
    return found


def _turn(outlook: Outlook, grants: Mapping[str, Grant]) -> tuple[bool, bool, float, float, str]:
    job = outlook.job
    waits = grants[outlook.id].allocation.is_empty
    return not outlook.has_tasks, waits, -job.spec.priority, job.submitted_at, outlook.id


def _handed_out(found: dict[str, int], most: Mapping[str, int], left: int) -> int:
    """One worker at a time to those with fewest, up to `most` of each; how many are left."""
    while left > 0 and (below := [job_id for job_id in most if found[job_id] < most[job_id]]):
        found[min(below, key=lambda job_id: (found[job_id], job_id))] += 1
        left -= 1
    return left


def _left_out(outlook: Outlook, groups: Sequence[_Group], grants: Mapping[str, Grant]) -> Grant:
    """Of a job that took no part: those that go before it have what the limit allows, or wait for room themselves."""
    for group in groups:
        if not group.has_room_for(outlook, grants):
            grown = group.grown_beside(outlook, grants)
            return Grant(NOTHING, Reason.WAITING_FOR_WORKER_LIMIT, note=_words(group.limit), grown=grown)
    return Grant(NOTHING, Reason.WAITING_FOR_RESOURCES)


def _told(grants: Mapping[str, Grant], groups: Sequence[_Group]) -> Mapping[str, Grant]:
    """With their limit in the grants of waiting jobs that it would not let in now, whether there is room or not."""
    told: dict[str, Grant] = {}
    for group in groups:
        for one in group.not_let_in(grants):
            if one.id in told:
                continue
            # While the limit stops it, it does not go first: no room is kept for it.
            grant, words = grants[one.id]._replace(goes_first=False), _words(group.limit)
            if grant.reason is Reason.WAITING_FOR_RESOURCES:
                told[one.id] = grant._replace(
                    reason=Reason.WAITING_FOR_WORKER_LIMIT,
                    note=f"{words} {grant.note or ''}".strip(),
                    grown=group.grown_beside(one, grants),
                    lacks_room=True,
                )
            elif grant.reason is Reason.WAITING_FOR_QUOTA:
                told[one.id] = grant._replace(note=f"{grant.note or ''} {words}".strip())
    return {**grants, **told} if told else grants


def _limited(outlook: Outlook, without: Grant, grant: Grant, limit: WorkerLimit | None) -> Grant:
    """With the limit that holds the job back, if one does; `without`: what it would have had without limits."""
    has = grant.allocation.workers
    if limit is None or grant.allocation.is_empty or grant.reason not in _REPLACEABLE:
        return grant
    if has >= (outlook.maximum if grant.reason is Reason.AT_MAXIMUM else without.allocation).workers:
        return grant
    return grant._replace(reason=Reason.AT_WORKER_LIMIT, note=grant.note or _words(limit))


def _words(limit: WorkerLimit) -> str:
    whose = f"project {limit.project}" if limit.owner is None else limit.owner
    workers = "1 worker" if limit.most == 1 else f"{limit.most} workers"
    return f"All jobs of {whose} together may hold {workers} (workers_together)."
