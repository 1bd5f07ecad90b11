"""Allocation under quotas of projects and under limits of deadlines and budgets, with any policy.

* A project's **guarantee** is a fraction of everything, or amounts of single resources. Resources that are not named
  follow the largest fraction that is; GPU types that are not named are not guaranteed. Guarantees that the cluster
  cannot hold (a node is gone) shrink in proportion.
* **Borrowing**: what a project leaves idle goes to the jobs that the policy chooses.
* **Reclaim**: a project is *short* when it has less, by dominant share, than the policy would give its jobs on its
  guarantee alone. Then every project's jobs first get what the policy gives them on their project's guarantee, and only
  the rest is allocated. Borrowers shrink to their minima; where those do not fit either, the job of the
  lowest priority is paused first, of equals the one that loses least work (see `reservations`).
* **Ends that are near**: a script that keeps no checkpoint is not paused for a guarantee if it has trained longer than
  it still takes, and ends within the time that its tasks may take to leave (`drain_seconds`), unless another job would
  lose what it has instead.
* A project that **may not borrow** never holds more than its guarantee.
* **Closed nodes**: what a project's jobs hold there, as far as it is within the quota by all nodes, is guaranteed while
  they stay, whatever the open nodes have. Nobody else could have it; a node that is closed pauses nobody.
* Projects without a quota have no guarantee and may borrow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from optimus_scheduler.allocate.deadline_budget import Limits, in_step, limits_of, may_have_limits
from optimus_scheduler.allocate.filling import SizedJob, beyond_reach, by_latest_start
from optimus_scheduler.allocate.policy import AllocationInput, DeadlinePolicy, Grant, Policy
from optimus_scheduler.allocate.reservations import (
    Claims,
    Grants,
    ReservingPolicy,
    assumed_seconds,
    covers,
    demand_of,
    fitting_claims,
    smaller,
)
from optimus_scheduler.allocate.staying import NONE_CLOSED, OnClosed, Room, room_of
from optimus_scheduler.forecast.gpu_types import has_left_its_type
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import TOLERANCE, Allocation, Quota, Reason, Resources, Snapshot, total_of
from optimus_scheduler.model.format import instant_words, size_words, time_words
from optimus_scheduler.model.resources import remaining
from optimus_scheduler.settings import Settings

NO_END_HELPS = "no end of another job changes that"
"""In the words about a job that its quota or a limit of workers never lets start."""
RIGHT_OF_OTHERS = "Quotas of other projects give them a right to the room."
"""Its own project may have no quota. Which they are is not told: not everybody may know of all projects."""
CPU, MEMORY = "cpu", "memory"
Amounts = dict[str, float]
"""By resource: `cpu`, `memory`, and GPU types."""


def guarantees(quotas: Sequence[Quota], capacity: Resources, on_closed: OnClosed = NONE_CLOSED) -> dict[str, Resources]:
    """What each project is guaranteed; together they fit in `capacity`. GPUs and bytes are rounded down.

    `on_closed`: what jobs hold on closed nodes, which is part of `capacity`. What of that is within a quota is the
    project's; of the rest of its quota it gets what the open nodes have for it.
    """
    total, on_open = _amounts(capacity), _amounts(remaining(capacity, total_of(on_closed.held.values())))
    named = {quota.project: _named(quota, total) for quota in quotas}
    kept = {quota.project: _kept(quota, on_closed) for quota in quotas}
    explicit = _scaled({project: _beyond(amounts, kept[project]) for project, amounts in named.items()}, on_open)
    rest = {kind: on_open[kind] - sum(amounts.get(kind, 0.0) for amounts in explicit.values()) for kind in total}
    unnamed = {project: _beyond(_implied(amounts, total), kept[project]) for project, amounts in named.items()}
    implied = _scaled(unnamed, rest)
    return {
        project: _resources(_together(kept[project], {**implied[project], **explicit[project]}), capacity)
        for project in named
    }


def guarantee_alone(quota: Quota, capacity: Resources) -> Resources:
    """What the quota would guarantee if no other project had one: it may be more than `capacity`."""
    total = _amounts(capacity)
    named = _named(quota, total)
    return _resources({**_implied(named, total), **named}, capacity)


def borrows(snapshot: Snapshot, sizes: Mapping[str, Allocation], project: str) -> bool:
    """Whether a project would hold room with these sizes (by job id) that others are guaranteed and may take back."""
    typed = (replace(job, spec=job.spec.on(sizes.get(job.id, job.allocation).gpu_type)) for job in snapshot.jobs)
    snapshot = replace(snapshot, jobs=tuple(typed))
    (capacity, on_closed), held = room_of(snapshot), dict[str, Resources]()
    for job in snapshot.jobs:
        size = sizes.get(job.id, job.allocation)
        if not (size.is_empty or job.spec.tracked):
            demand = job.spec.demand(size.workers, size.servers)
            held[job.spec.project] = held.get(job.spec.project, Resources()) + demand
    rights, nothing = guarantees(snapshot.quotas, capacity, on_closed), Resources()
    if held.get(project, nothing).fits_in(rights.get(project, nothing)):
        return False
    unclaimed = (remaining(right, held.get(name, nothing)) for name, right in rights.items() if name != project)
    return not total_of(unclaimed).fits_in(remaining(capacity, total_of(held.values())))


def _amounts(resources: Resources) -> Amounts:
    return {CPU: resources.cpu, MEMORY: float(resources.memory_bytes)} | {
        kind: float(count) for kind, count in resources.gpus.items()
    }


def _named(quota: Quota, total: Mapping[str, float]) -> Amounts:
    """The amounts that the quota names, as far as the cluster has them."""
    amounts = {} if quota.share is None else {kind: quota.share * amount for kind, amount in total.items()}
    if quota.cpu is not None:
        amounts[CPU] = quota.cpu
    if quota.memory_bytes is not None:
        amounts[MEMORY] = float(quota.memory_bytes)
    amounts |= {kind: float(count) for kind, count in quota.gpus.items()}
    return {kind: amount for kind, amount in amounts.items() if kind in total}


def _implied(named: Amounts, total: Mapping[str, float]) -> Amounts:
    """Cores and memory that were not named: as large a part as the largest that was."""
    part = max((amount / total[kind] for kind, amount in named.items() if total[kind] > 0), default=0.0)
    return {kind: min(part, 1.0) * total[kind] for kind in (CPU, MEMORY) if kind not in named}


def _kept(quota: Quota, on_closed: OnClosed) -> Amounts:
    """What of the project's use of closed nodes is within its quota, by what all nodes have."""
    held = on_closed.held.get(quota.project)
    if held is None:
        return {}
    whole = _amounts(on_closed.whole)
    named = _named(quota, whole)
    most = {**_implied(named, whole), **named}
    return {kind: min(amount, most.get(kind, 0.0)) for kind, amount in _amounts(held).items()}


def _beyond(amounts: Amounts, kept: Amounts) -> Amounts:
    return {kind: max(amount - kept.get(kind, 0.0), 0.0) for kind, amount in amounts.items()}


def _together(one: Amounts, other: Amounts) -> Amounts:
    return {kind: one.get(kind, 0.0) + other.get(kind, 0.0) for kind in {**one, **other}}


def _scaled(by_project: Mapping[str, Amounts], available: Mapping[str, float]) -> dict[str, Amounts]:
    """The amounts, each resource shrunk in proportion as far as the capacity requires."""
    asked: Amounts = {}
    for amounts in by_project.values():
        for kind, amount in amounts.items():
            asked[kind] = asked.get(kind, 0.0) + amount
    factors = {
        kind: min(1.0, max(available[kind], 0.0) / amount) if amount > 0 else 1.0 for kind, amount in asked.items()
    }
    return {
        project: {kind: amount * factors[kind] for kind, amount in amounts.items()}
        for project, amounts in by_project.items()
    }


def _resources(amounts: Mapping[str, float], capacity: Resources) -> Resources:
    # A hair is added before rounding down: a third of three GPUs is one.
    gpus = {kind: math.floor(amounts.get(kind, 0.0) + 1e-6) for kind in capacity.gpus}
    return Resources(amounts.get(CPU, 0.0), math.floor(amounts.get(MEMORY, 0.0) + 1e-6), gpus)


def may_not_borrow(quotas: Iterable[Quota]) -> frozenset[str]:
    """Projects that never hold more than their guarantee."""
    return frozenset(quota.project for quota in quotas if not quota.may_borrow)


def confinements(quotas: Sequence[Quota], room: Room) -> dict[str, Resources]:
    """All that each project that may not borrow ever holds."""
    confined = may_not_borrow(quotas)
    return {project: right for project, right in guarantees(quotas, *room).items() if project in confined}


def is_beyond(confined: Mapping[str, Resources], outlook: Outlook) -> bool:
    """Whether not even the minimum of the job fits in all that its project may hold: no end of a job changes that."""
    right = confined.get(outlook.job.spec.project)
    return right is not None and not outlook.demand(outlook.minimum).fits_in(right)


REPLACEABLE = frozenset(
    {
        Reason.UNCHANGED,
        Reason.AT_MAXIMUM,
        Reason.NO_FURTHER_GAIN,
        Reason.BETTER_USED_ELSEWHERE,
        Reason.CLUSTER_FULL,
        Reason.MINIMUM_ELSEWHERE,
        Reason.AT_QUOTA,
        Reason.NOT_WORTH_RESCALING,
        Reason.GRANTED_MORE,
    }
)
"""Reasons that the reason of a deadline or budget replaces, and that no node is open."""


def allocate_with_quotas(
    inputs: AllocationInput,
    policy: Policy,
    settings: Settings,
    *,
    now: float,
    quotas: Sequence[Quota] = (),
    finishing: Sequence[Outlook] = (),
) -> Mapping[str, Grant]:
    """A grant for every competing job; together they fit in the capacity.

    Just the policy's, unless there are quotas or a job has a deadline or budget. `finishing`: jobs that keep what they
    have for the moment, which is `inputs.leaving`; it counts against their projects' quotas.
    """
    reserving = ReservingPolicy(policy, settings, inputs.leaving, now)
    grants = _under_limits(inputs, reserving, now, quotas, tuple(finishing))
    # Cheap check first: it spares most jobs the costly one.
    moved = {one.id: one for one in inputs.competing if one.present.gpu_type is not None and has_left_its_type(one.job)}
    if not moved:
        return grants
    return {
        job_id: _on_its_type(grant, moved[job_id]) if job_id in moved else grant for job_id, grant in grants.items()
    }


def _under_limits(
    inputs: AllocationInput,
    reserving: ReservingPolicy,
    now: float,
    quotas: Sequence[Quota],
    finishing: tuple[Outlook, ...],
) -> Mapping[str, Grant]:
    settings = reserving.settings
    limited = [one for one in inputs.competing if may_have_limits(one.job.spec)]
    found = {one.id: limits_of(one, inputs.capacity, now, settings) for one in limited}
    limits = {job_id: each for job_id, each in found.items() if each is not None}
    if not limits and not quotas:
        return reserving.policy.allocate(replace(inputs, now=now), settings)
    competing = tuple(limits[one.id].outlook if one.id in limits else one for one in inputs.competing)
    claims = {job_id: each.claim for job_id, each in limits.items() if each.claim is not None}
    if isinstance(reserving.policy, DeadlinePolicy):
        claims = {}
    late = frozenset(job_id for job_id, each in limits.items() if each.reason is Reason.DEADLINE_CANNOT_BE_MET)
    out = _QuotaAllocation(reserving, claims, late, inputs.capacity, finishing, now, inputs.on_closed)
    grants = out.under(quotas, competing) if quotas else out.by_deadline(competing, inputs.capacity)
    by_id = {one.id: one for one in competing}
    for job_id, claim in claims.items():
        grant = grants[job_id]
        if covers(grant.allocation, claim):
            continue
        if grant.again_at is not None:
            waits = f"It can wait until {instant_words(grant.again_at)} for what comes first: {_FIRST}."
            assumed = assumed_seconds(by_id[job_id], settings)
            if assumed is not None:
                waits += f" That is if it takes {time_words(assumed)}, an assumption: nothing tells how long it takes."
            limits[job_id] = replace(limits[job_id], note=f"{limits[job_id].note or ''} {waits}".strip())
        elif job_id in out.given_up:
            limits[job_id] = replace(limits[job_id], reason=Reason.DEADLINE_CANNOT_BE_MET, note=_GIVEN_UP)
    return {
        job_id: _with_limits(grant, limits[job_id], by_id[job_id]) if job_id in limits else grant
        for job_id, grant in grants.items()
    }


def _on_its_type(grant: Grant, outlook: Outlook) -> Grant:
    """What the policy would keep as it is: on the GPU type that the job is on from now on."""
    size = grant.allocation
    return grant if size.is_empty else grant._replace(allocation=outlook.size(size.workers, size.servers))


@dataclass(frozen=True, slots=True)
class _QuotaAllocation:
    """One round's sharing, with what deadlines ask for."""

    reserving: ReservingPolicy
    deadlines: Claims
    late: frozenset[str]
    """Jobs that miss their deadlines with their claims, too."""
    capacity: Resources
    finishing: tuple[Outlook, ...]
    now: float
    on_closed: OnClosed
    given_up: set[str] = field(default_factory=set)
    """Jobs whose claims were not met, in one of the sharings, so that more others are in time."""

    def by_deadline(self, competing: Sequence[Outlook], available: Resources) -> Grants:
        """The policy, but for the claims of deadlines, each if it fits beside those that come before it."""
        claims = self._claims(competing, available)
        grants, unmet = self.reserving.with_deadlines(
            competing, available, claims, lambda claiming: self._in_order(claiming, available, all_fit=True)
        )
        self.given_up.update(unmet)
        return grants

    def _claims(self, competing: Sequence[Outlook], available: Resources) -> dict[str, Allocation]:
        claiming = [one for one in competing if one.id in self.deadlines]
        if demand_of(claiming, self.deadlines).fits_in(available):
            return {one.id: self.deadlines[one.id] for one in claiming}
        return fitting_claims(self._in_order(claiming, available), self.deadlines, available)

    def _in_order(self, claiming: Sequence[Outlook], available: Resources, *, all_fit: bool = False) -> list[Outlook]:
        """Those whose claims are to be met in so much room, by precedence; the others are given up, where not
        `all_fit`."""
        margin = self.reserving.settings.deadline_margin
        jobs = [SizedJob(one, in_step(one), available, self.now, margin) for one in claiming]
        given_up, broken = beyond_reach([job for job in jobs if self._can_be_met(job)], available)
        given_up = frozenset() if all_fit else given_up
        self.given_up.update(given_up)
        # One that cannot wait, as far as is known, is in no plan.
        broken += tuple(job for job in jobs if job.is_promised and not (job.id in self.late or self._can_be_met(job)))
        until = max((job.outlook.job.promised_at or -math.inf for job in broken), default=-math.inf)
        in_order = sorted((job for job in jobs if job.id not in given_up), key=lambda job: self._precedence(job, until))
        return [job.outlook for job in in_order]

    def _can_be_met(self, job: SizedJob) -> bool:
        """Whether its deadline can be planned for; not where nothing tells how long the job takes. Until it tells that
        itself, ended jobs like it do."""
        is_known = job.outlook.forecast.remaining_steps is not None or job.outlook.is_told
        return job.id not in self.late and is_known and job.alone <= job.left

    def _precedence(self, job: SizedJob, until: float) -> tuple[float, bool, float, float, str]:
        """Those that have to begin first; those that are late whatever they get do not make others late, too.

        Jobs of promises `until` the last one that is in danger come before all others, in the order of their promises:
        none is broken by a later one.

        A job that has tasks is passed only by one that has to begin `least_run_seconds` sooner: while one waits and the
        other trains, their order would change again and again, with a stop each time.
        """
        is_late, promised_at = job.id in self.late, job.outlook.job.promised_at
        promised = promised_at if promised_at is not None and promised_at <= until and not is_late else math.inf
        begin, submitted_at, name = by_latest_start(job)
        runs = self.reserving.settings.least_run_seconds if job.outlook.has_tasks else 0.0
        return promised, is_late, begin - runs, submitted_at, name

    def under(self, quotas: Sequence[Quota], competing: Sequence[Outlook]) -> Grants:
        """The same for a cluster whose projects have quotas; see the head of this module."""
        grants, confined = self._shared(quotas, competing), may_not_borrow(quotas)
        ending = [
            one
            for one in competing
            if grants[one.id].allocation.is_empty and one.job.spec.project not in confined and self._ends_soon(one)
        ]
        if not ending:
            return grants
        kept = {one.id: Grant(one.present, Reason.UNCHANGED, note=_ENDS_SOON) for one in ending}
        held = demand_of(ending, _sizes(kept))
        others = [one for one in competing if one.id not in kept]
        beside = replace(
            self,
            reserving=replace(self.reserving, leaving=self.reserving.leaving + held),
            capacity=remaining(self.capacity, held),
            finishing=(*self.finishing, *ending),
        )
        waiting = beside._shared(quotas, others)
        # A guarantee waits for what it would be given now; nobody loses what it has to that.
        loses = any(
            not covers(waiting[one.id].allocation, _less(one.present, grants[one.id].allocation)) for one in others
        )
        fits = demand_of(others, _sizes(waiting)).fits_in(beside.capacity)
        return grants if loses or not fits else {**waiting, **kept}

    def _ends_soon(self, outlook: Outlook) -> bool:
        """Whether its end takes no longer than its tasks may take to leave, and less than what a pause would lose."""
        if not outlook.has_tasks or outlook.end_is_guessed or outlook.forecast.remaining_steps is None:
            return False
        seconds = outlook.remaining_seconds(outlook.present)
        return seconds < min(outlook.job.unsaved_seconds, self.reserving.settings.drain_seconds)

    def _shared(self, quotas: Sequence[Quota], competing: Sequence[Outlook]) -> Grants:
        entitled = {
            project: self.by_deadline(of_project, available)
            for project, available in self._guaranteed(quotas).items()
            if (of_project := [one for one in competing if one.job.spec.project == project])
        }
        confined = may_not_borrow(quotas)
        within = [entitled[project] for project in entitled if project in confined]
        fixed = {job_id: grant for grants in within for job_id, grant in grants.items()}
        free = [one for one in competing if one.job.spec.project not in confined]
        available = remaining(self.capacity, demand_of(competing, _sizes(fixed)))
        grants = self.by_deadline(free, available)
        borrowing = {project: entitled[project] for project in entitled if project not in confined}
        if any(self._is_short(competing, grants, rights) for rights in borrowing.values()):
            grants = self._reclaimed(free, available, borrowing)
        if sizes := _sizes(fixed):
            left = remaining(available, demand_of(free, _sizes(grants)))
            # Those that train would hold their minima without the quota, too.
            minima = {one.id: one.minimum for one in competing if one.id in sizes and one.has_tasks}
            without = left + remaining(demand_of(competing, sizes), demand_of(competing, minima))
            needs = {one.id: one.demand(one.minimum) for one in free}
            would_fit = {job_id for job_id, each in needs.items() if each.fits_in(without) and not each.fits_in(left)}
            losing = [one.id for one in free if one.has_tasks and grants[one.id].allocation.is_empty]
            if losing:  # to another job, maybe, that has what the quota left of the room
                room = remaining(self.capacity, demand_of(competing, minima))
                unconfined = replace(self, given_up=set()).by_deadline(free, room)  # what it gives up is not given up
                would_fit.update(each for each in losing if not unconfined[each].allocation.is_empty)
            grants = {job_id: _beside_the_confined(each, job_id in would_fit) for job_id, each in grants.items()}
        by_id = {one.id: one for one in competing}
        return {**grants, **{each: _confined(by_id[each], grant, self.capacity) for each, grant in fixed.items()}}

    def _guaranteed(self, quotas: Sequence[Quota]) -> dict[str, Resources]:
        """By project, without what its finishing jobs still hold; each fits in the capacity."""
        leaving = self.reserving.leaving
        available = guarantees(sorted(quotas, key=lambda quota: quota.project), self.capacity + leaving, self.on_closed)
        for one in self.finishing:
            project = one.job.spec.project
            if project in available:
                available[project] = remaining(available[project], one.demand(one.present))
        return {project: smaller(amount, self.capacity) for project, amount in available.items()}

    def _is_short(self, competing: Sequence[Outlook], grants: Grants, rights: Grants) -> bool:
        """Whether a project has less than its guarantee would give it."""
        has = demand_of(competing, _sizes({job_id: grants[job_id] for job_id in rights}))
        due = demand_of(competing, _sizes(rights))
        return has.dominant_share(self.capacity) < due.dominant_share(self.capacity) - TOLERANCE

    def _reclaimed(self, free: Sequence[Outlook], available: Resources, borrowing: Mapping[str, Grants]) -> Grants:
        """The guaranteed part of each project first, then deadlines as far as they fit, then the rest."""
        due = {job_id: size for grants in borrowing.values() for job_id, size in _sizes(grants).items()}
        rights = fitting_claims(sorted(free, key=_priority), due, available)
        left_over = remaining(available, demand_of(free, rights))
        without = [one for one in free if one.id not in rights]
        claims = {**rights, **self._claims(without, left_over)}
        grants = self.reserving.with_claims(free, available, claims, waiting_reason=Reason.WAITING_FOR_QUOTA)
        having = {one.job.spec.project for one in free if one.id in rights}
        # A project is not held back by its own right.
        alone = {one.id for one in free if not having - {one.job.spec.project}}
        return {
            job_id: grant
            if grant.reason is not Reason.WAITING_FOR_QUOTA
            else grant._replace(reason=Reason.WAITING_FOR_RESOURCES)
            if job_id in alone
            else grant._replace(note=RIGHT_OF_OTHERS, goes_first=False)
            for job_id, grant in grants.items()
        }


def _sizes(grants: Mapping[str, Grant]) -> dict[str, Allocation]:
    return {job_id: grant.allocation for job_id, grant in grants.items() if not grant.allocation.is_empty}


def _less(one: Allocation, other: Allocation) -> Allocation:
    """The smaller number of each."""
    return Allocation(min(one.workers, other.workers), min(one.servers, other.servers))


def _priority(outlook: Outlook) -> tuple[bool, float, float, str]:
    job = outlook.job
    return not outlook.has_tasks, -job.spec.priority, job.submitted_at, outlook.id


def _confined(outlook: Outlook, grant: Grant, capacity: Resources) -> Grant:
    """What a job gets within the guarantee of a project that may not borrow: all the room there is for it."""
    if grant.allocation.is_empty:
        return grant._replace(reason=Reason.WAITING_FOR_QUOTA)
    is_full = grant.reason in (Reason.CLUSTER_FULL, Reason.MINIMUM_ELSEWHERE)
    if grant.reason is Reason.CLUSTER_FULL and grant.ideal is not None:
        is_full = outlook.demand(grant.ideal).fits_in(capacity)  # else no quota gives it more
    return grant._replace(reason=Reason.AT_QUOTA) if is_full else grant


def _beside_the_confined(grant: Grant, would_fit: bool) -> Grant:
    """What a job gets beside jobs of projects that may not borrow: the policy has not seen these. `would_fit`: it
    would have room if these had no more than the minima of those that train."""
    if grant.reason is Reason.WAITING_FOR_RESOURCES and would_fit:
        return grant._replace(reason=Reason.WAITING_FOR_QUOTA, note=RIGHT_OF_OTHERS, grown=(), goes_first=False)
    return grant._replace(reason=Reason.MINIMUM_ELSEWHERE) if grant.reason is Reason.CLUSTER_FULL else grant


def _with_limits(grant: Grant, limits: Limits, outlook: Outlook) -> Grant:
    """The grant with what there is to say of deadline and budget."""
    reason, size = limits.reason, grant.allocation
    has_claim = limits.claim is not None and (size.workers, size.servers) == (
        limits.claim.workers,
        limits.claim.servers,
    )
    if has_claim and reason is not Reason.DEADLINE_CANNOT_BE_MET:
        reason = Reason.MEETING_DEADLINE
    if reason is Reason.WITHIN_BUDGET and size != outlook.maximum:
        reason = None  # it is not the budget that keeps it where it is
    replaces = reason is not None and grant.reason in REPLACEABLE and not size.is_empty
    reason_given = reason if replaces and reason is not None else grant.reason
    note = limits.note or grant.note
    if size.is_empty and grant.note and limits.note:
        note = f"{grant.note} {limits.note}"  # why it has nothing is no less true for its deadline
    if limits.claim is not None and not covers(size, limits.claim) and not size.is_empty and limits.outlook.measured:
        note = f"{note} {size_words(limits.claim).capitalize()} {_NO_ROOM_FOR_CLAIM}"
    return grant._replace(reason=reason_given, note=note)


_ENDS_SOON = "It is near its end and would begin anew after a pause: guarantees of projects wait for it."
_FIRST = "other deadlines, guarantees of projects, or jobs that have just got their tasks or would lose more by a pause"
_GIVEN_UP = f"Its deadline gives it no room now, beside what comes first: {_FIRST}."
_NO_ROOM_FOR_CLAIM = f"cannot be had now, beside what comes first: {_FIRST}."
