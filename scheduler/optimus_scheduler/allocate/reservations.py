"""Reservations: claims of jobs are met first, under any policy.

A claim is a size that a job gets before others get anything. The policy is given jobs whose minimum is their claim,
and only so many others that all minima fit beside the claims: whatever it does, each of them can be served. The others
are taken in this order:

1. jobs that run, by priority, those first that a pause costs most work, then the longer running (of two that keep
   checkpoints the last started is the first to be paused);
2. waiting jobs that the policy by itself would have started now;
3. other waiting jobs, by priority and arrival. None passes one that has waited for `patience_seconds`.

A claim of a deadline yields to a running job that keeps no checkpoint, where its pause would lose more than the claim
gains by it, and where the claim can wait for an end: see `loses_more`. Guarantees of quotas wait for near ends only.

A policy that does not give minima first (`fifo`, `tiresias`, `srtf`) may still leave a claim unmet. Then all claims are
granted as they are, and the policy shares out the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from optimus_scheduler.allocate.deadline_budget import bounded, most_by_alike_runs
from optimus_scheduler.allocate.policy import AllocationInput, Grant, Policy
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import NOTHING, Allocation, Reason, Resources
from optimus_scheduler.model.resources import remaining
from optimus_scheduler.settings import Settings

Claims = Mapping[str, Allocation]
"""By job id."""
Grants = dict[str, Grant]


@dataclass(frozen=True, slots=True)
class ReservingPolicy:
    """A policy that meets claims first; one for all allocations of a round."""

    policy: Policy
    settings: Settings
    leaving: Resources = field(default_factory=Resources)
    now: float = 0.0

    def without_claims(self, competing: Sequence[Outlook], capacity: Resources) -> Grants:
        """What the policy does by itself."""
        if not competing:
            return {}
        inputs = AllocationInput(tuple(competing), capacity, self.leaving, self.now)
        return dict(self.policy.allocate(inputs, self.settings))

    def with_claims(
        self,
        competing: Sequence[Outlook],
        capacity: Resources,
        claims: Claims,
        waiting_reason: Reason = Reason.WAITING_FOR_RESOURCES,
        due_at: float | None = None,
        in_order: Callable[[Sequence[Outlook], Resources], Sequence[Outlook]] = lambda jobs, _room: jobs,
    ) -> Grants:
        """Grants in which every claim is met; the claims fit in `capacity`.

        `waiting_reason` is the reason of jobs that get nothing because of the claims. `due_at`: the claims are those of
        deadlines, at this time (POSIX seconds); they are not met where that would lose more work than it gains, nor
        where they leave a job that has just got its tasks the time to run. Those that do not fit beside what is kept so
        are met `in_order`, of jobs for so much room.
        """
        grants = self.without_claims(competing, capacity)
        if all(covers(grants[job_id].allocation, claim) for job_id, claim in claims.items()):
            return grants
        by_id, margin = {one.id: one for one in competing}, self.settings.deadline_margin
        due, stays, met = claims, dict[str, Allocation](), dict(claims)
        room_in = math.inf if due_at is None else room_by_ends(competing, claims, capacity)
        while True:
            sized = ((by_id[job_id], size) for job_id, size in met.items())
            claiming = [bounded(one, size, one.maximum)._replace(claimed=True) for one, size in sized]
            available = remaining(capacity, demand_of(claiming, met))
            kept, out = _admitted([one for one in competing if one.id not in met], available, grants, self.settings)
            due_jobs = [by_id[job_id] for job_id in due if job_id in met]
            if due_at is None or not due_jobs:
                break
            lacking = [one for one in due_jobs if not covers(one.present, met[one.id])]
            losing = [
                one
                for one in out
                if loses_more(one, due_jobs, due_at, room_in, margin)
                or _has_time_to_run(one, lacking, due_at, self.settings)
            ]
            if not losing:
                break
            # What these keep may take the room of others that lose more, too.
            stays.update((one.id, one.present) for one in losing)
            kept_first = [by_id[job_id] for job_id in stays]
            rest = [by_id[job_id] for job_id in due if job_id not in stays]
            room = remaining(capacity, demand_of(kept_first, stays))
            met = stays | fitting_claims(in_order(rest, room), due, room)
        claims = met
        shared = self.without_claims([*claiming, *kept], capacity)
        if not all(covers(shared[job_id].allocation, claim) for job_id, claim in claims.items()):
            granted = {one.id: _as_claimed(one, claims[one.id]) for one in claiming}
            shared = {**granted, **self.without_claims(kept, available)}
        for job_id, claim in claims.items():
            if not covers(grants[job_id].allocation, claim):
                shared[job_id] = shared[job_id]._replace(is_claimed=True)
        return {**shared, **{one.id: Grant(NOTHING, waiting_reason) for one in out}}


def room_by_ends(competing: Sequence[Outlook], claims: Claims, capacity: Resources) -> float:
    """Seconds until the predicted ends of jobs that have tasks leave room for all claims; infinite if they do not."""
    running = [one for one in competing if one.has_tasks]
    others = [one for one in running if one.id not in claims]
    needed = demand_of(competing, claims)
    available = remaining(capacity, sum((one.demand(one.present) for one in others), Resources()))
    if needed.fits_in(available):
        return 0.0
    ending = (one for one in others if one.forecast.remaining_steps is not None)
    for seconds, one in sorted(((one.remaining_seconds(one.present), one) for one in ending), key=itemgetter(0)):
        available = available + one.demand(one.present)
        if needed.fits_in(available):
            return seconds
    return math.inf


def loses_more(victim: Outlook, claiming: Sequence[Outlook], now: float, room_in: float, margin: float) -> bool:
    """Whether a pause loses more than the claims gain by it, in seconds of the same room, weighed with priorities.

    Lost is what it has trained since it began, which it would have to train again. Gained is that the claims are met
    before its end, and not after it: nothing where all would still be in time, by `margin` times what they need, with
    the room that comes in `room_in` seconds without a pause.
    """
    if not victim.has_tasks or victim.job.unsaved_seconds <= 0:
        return False
    seconds = victim.remaining_seconds(victim.present)
    by_its_end = seconds if victim.forecast.remaining_steps is not None else math.inf
    if all(_can_wait(one, now + min(by_its_end, room_in), margin) for one in claiming):
        return True
    priority = max((one.job.spec.priority for one in claiming), default=0.0)
    return victim.job.unsaved_seconds * victim.job.spec.priority > seconds * priority


def _has_time_to_run(young: Outlook, lacking: Sequence[Outlook], now: float, settings: Settings) -> bool:
    """Whether a job that has just got its tasks may run for `least_run_seconds`, and the jobs that lack their claims
    meet their deadlines all the same; one of which nothing is known, if it takes as long as is typical."""
    left, margin = settings.least_run_seconds - young.allocated_seconds, settings.deadline_margin
    if not young.has_tasks or left <= 0:
        return False
    return all(_can_wait(one, now + left, margin, margin * one.typical_seconds) for one in lacking)


def _can_wait(claiming: Outlook, until: float, margin: float, believed: float | None = None) -> bool:
    """Whether a job that has its claim only from `until` on meets its deadline. `believed`: the seconds that it takes
    where nothing tells them."""
    deadline = claiming.job.spec.deadline_at
    if deadline is None or claiming.has_tasks:
        return False
    if claiming.forecast.remaining_steps is not None:
        needed: float | None = margin * claiming.remaining_seconds(claiming.minimum)
    else:
        needed = most_by_alike_runs(claiming)
    needed = believed if needed is None else needed
    return needed is not None and until + claiming.stop_seconds + needed <= deadline


def demand_of(outlooks: Sequence[Outlook], sizes: Mapping[str, Allocation]) -> Resources:
    """What the jobs hold together with these sizes."""
    return sum((one.demand(sizes[one.id]) for one in outlooks if one.id in sizes), Resources())


def smaller(one: Resources, other: Resources) -> Resources:
    """The smaller amount of each resource."""
    gpus = {gpu_type: min(count, other.gpus.get(gpu_type, 0)) for gpu_type, count in one.gpus.items()}
    return Resources(min(one.cpu, other.cpu), min(one.memory_bytes, other.memory_bytes), gpus)


def fitting_claims(outlooks: Sequence[Outlook], claims: Claims, available: Resources) -> dict[str, Allocation]:
    """Those claims that fit in `available`, taken in the order of `outlooks`."""
    kept: dict[str, Allocation] = {}
    for outlook in outlooks:
        claim = claims.get(outlook.id)
        if claim is not None and outlook.demand(claim).fits_in(available):
            kept[outlook.id] = claim
            available = available - outlook.demand(claim)
    return kept


def covers(size: Allocation, claim: Allocation) -> bool:
    """Whether a job with `size` has what it claims."""
    return size.workers >= claim.workers and size.servers >= claim.servers


def _as_claimed(outlook: Outlook, claim: Allocation) -> Grant:
    return Grant(claim, Reason.UNCHANGED if claim == outlook.present else Reason.GRANTED_MORE)


def _admitted(
    others: Sequence[Outlook], available: Resources, grants: Mapping[str, Grant], settings: Settings
) -> tuple[list[Outlook], list[Outlook]]:
    """Jobs whose minima fit in `available` together, and those that are left out."""
    kept, out, blocked = [], [], False
    for outlook in sorted(others, key=_order(grants)):
        need = outlook.demand(outlook.minimum)
        if need.fits_in(available) and not (blocked and not outlook.has_tasks):
            kept.append(outlook)
            available = available - need
        else:
            out.append(outlook)
            blocked |= not outlook.has_tasks and outlook.waited_seconds > settings.patience_seconds
    return kept, out


def _order(grants: Mapping[str, Grant]) -> Callable[[Outlook], tuple[bool, bool, float, float, float, str]]:
    def key(outlook: Outlook) -> tuple[bool, bool, float, float, float, str]:
        job = outlook.job
        since = job.started_at if outlook.has_tasks and job.started_at is not None else job.submitted_at
        waits = grants[outlook.id].allocation.is_empty
        lost = job.unsaved_seconds if outlook.has_tasks else 0.0
        return (not outlook.has_tasks, waits and not outlook.has_tasks, -job.spec.priority, -lost, since, outlook.id)

    return key
