"""Step 2 of a round with all that limits it: terms of jobs, quotas of projects, and the policy in their midst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optimus_scheduler.allocate.deadline_budget import Terms, may_have_terms, terms_of
from optimus_scheduler.allocate.policy import Contest, Grant, Policy
from optimus_scheduler.allocate.quotas import guarantees, may_not_borrow
from optimus_scheduler.allocate.reservations import Claims, Grants, Sharing, demand_of, fitting_claims, smaller
from optimus_scheduler.forecast.gpu_types import has_left_its_type
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import Allocation, Quota, Reason, Resources
from optimus_scheduler.model.resources import remaining
from optimus_scheduler.settings import Settings

_REPLACEABLE = frozenset(
    {
        Reason.UNCHANGED,
        Reason.AT_MAXIMUM,
        Reason.NO_FURTHER_GAIN,
        Reason.BETTER_USED_ELSEWHERE,
        Reason.NOT_WORTH_RESCALING,
        Reason.GRANTED_MORE,
    }
)
"""Reasons that a deadline or budget may speak in the place of."""


def share_out(
    contest: Contest,
    policy: Policy,
    settings: Settings,
    *,
    now: float,
    quotas: Sequence[Quota] = (),
    finishing: Sequence[Outlook] = (),
) -> Mapping[str, Grant]:
    """A grant for every contender; together they fit in the capacity.

    Just the policy's, unless there are quotas or a job has a deadline or budget. `finishing`: jobs that keep what they
    have for the moment, which is `contest.leaving`; it counts against their projects' quotas.
    """
    grants = _shared_out(contest, Sharing(policy, settings, contest.leaving), now, quotas, tuple(finishing))
    # Of many jobs nothing is asked that can be told at a glance.
    moved = {
        one.id: one
        for one in contest.contenders
        if one.job.allocation.gpu_type is not None and has_left_its_type(one.job)
    }
    if not moved:
        return grants
    return {
        job_id: _on_its_type(grant, moved[job_id]) if job_id in moved else grant for job_id, grant in grants.items()
    }


def _shared_out(
    contest: Contest, sharing: Sharing, now: float, quotas: Sequence[Quota], finishing: tuple[Outlook, ...]
) -> Mapping[str, Grant]:
    settings = sharing.settings
    limited = [one for one in contest.contenders if may_have_terms(one.job.spec)]
    found = {one.id: terms_of(one, contest.capacity, now, settings) for one in limited}
    terms = {job_id: each for job_id, each in found.items() if each is not None}
    if not terms and not quotas:
        return sharing.policy.allocate(contest, settings)
    contenders = tuple(terms[one.id].outlook if one.id in terms else one for one in contest.contenders)
    claims = {job_id: each.claim for job_id, each in terms.items() if each.claim is not None}
    out = _SharingOut(sharing, claims, contest.capacity, finishing)
    grants = out.under(quotas, contenders) if quotas else out.by_deadline(contenders, contest.capacity)
    by_id = {one.id: one for one in contenders}
    return {
        job_id: _with_terms(grant, terms[job_id], by_id[job_id]) if job_id in terms else grant
        for job_id, grant in grants.items()
    }


def _on_its_type(grant: Grant, outlook: Outlook) -> Grant:
    """What the policy would keep as it is: on the GPU type that the job is on from now on."""
    size = grant.allocation
    return grant if size.is_empty else grant._replace(allocation=outlook.size(size.workers, size.servers))


@dataclass(frozen=True, slots=True)
class _SharingOut:
    """One round's sharing, with what deadlines ask for."""

    sharing: Sharing
    deadlines: Claims
    capacity: Resources
    finishing: tuple[Outlook, ...]

    def by_deadline(self, contenders: Sequence[Outlook], room: Resources) -> Grants:
        """The policy, but for the claims of deadlines: the earliest first, each if it fits beside those before."""
        return self.sharing.with_claims(contenders, room, self._claims(contenders, room))

    def _claims(self, contenders: Sequence[Outlook], room: Resources) -> dict[str, Allocation]:
        return fitting_claims(sorted(contenders, key=_deadline), self.deadlines, room)

    def under(self, quotas: Sequence[Quota], contenders: Sequence[Outlook]) -> Grants:
        """The same for a cluster whose projects have quotas; see `quotas`."""
        entitled = {
            project: self.by_deadline(of_project, room)
            for project, room in self._guaranteed(quotas).items()
            if (of_project := [one for one in contenders if one.job.spec.project == project])
        }
        confined = may_not_borrow(quotas)
        within = [entitled[project] for project in entitled if project in confined]
        fixed = {job_id: grant for grants in within for job_id, grant in grants.items()}
        free = [one for one in contenders if one.job.spec.project not in confined]
        room = remaining(self.capacity, demand_of(contenders, _sizes(fixed)))
        grants = self.by_deadline(free, room)
        borrowing = {project: entitled[project] for project in entitled if project not in confined}
        if any(self._is_short(contenders, grants, rights) for rights in borrowing.values()):
            grants = self._reclaimed(free, room, borrowing)
        return {**grants, **{job_id: _confined(grant) for job_id, grant in fixed.items()}}

    def _guaranteed(self, quotas: Sequence[Quota]) -> dict[str, Resources]:
        """By project, without what its finishing jobs still hold; each fits in the capacity."""
        leaving = self.sharing.leaving
        room = guarantees(sorted(quotas, key=lambda quota: quota.project), self.capacity + leaving)
        for one in self.finishing:
            project = one.job.spec.project
            if project in room:
                room[project] = remaining(room[project], one.demand(one.present))
        return {project: smaller(amount, self.capacity) for project, amount in room.items()}

    def _is_short(self, contenders: Sequence[Outlook], grants: Grants, rights: Grants) -> bool:
        """Whether a project has less than its guarantee would give it."""
        has = demand_of(contenders, _sizes({job_id: grants[job_id] for job_id in rights}))
        due = demand_of(contenders, _sizes(rights))
        return has.dominant_share(self.capacity) < due.dominant_share(self.capacity) - 1e-9

    def _reclaimed(self, free: Sequence[Outlook], room: Resources, borrowing: Mapping[str, Grants]) -> Grants:
        """Everybody's right first, then deadlines as far as they fit, then the rest."""
        due = {job_id: size for grants in borrowing.values() for job_id, size in _sizes(grants).items()}
        rights = fitting_claims(sorted(free, key=_priority), due, room)
        left_over = remaining(room, demand_of(free, rights))
        without = [one for one in free if one.id not in rights]
        claims = {**rights, **self._claims(without, left_over)}
        return self.sharing.with_claims(free, room, claims, held_back=Reason.WAITING_FOR_QUOTA)


def _sizes(grants: Mapping[str, Grant]) -> dict[str, Allocation]:
    return {job_id: grant.allocation for job_id, grant in grants.items() if not grant.allocation.is_empty}


def _deadline(outlook: Outlook) -> tuple[float, float, str]:
    deadline = outlook.job.spec.deadline_at
    return deadline if deadline is not None else float("inf"), outlook.job.submitted_at, outlook.id


def _priority(outlook: Outlook) -> tuple[bool, float, float, str]:
    job = outlook.job
    return not outlook.is_held, -job.spec.priority, job.submitted_at, outlook.id


def _confined(grant: Grant) -> Grant:
    waits = grant.allocation.is_empty and grant.reason in (Reason.WAITING_FOR_RESOURCES, Reason.BETTER_USED_ELSEWHERE)
    return grant._replace(reason=Reason.WAITING_FOR_QUOTA) if waits else grant


def _with_terms(grant: Grant, terms: Terms, outlook: Outlook) -> Grant:
    """The grant with what there is to say of deadline and budget."""
    reason, size = terms.reason, grant.allocation
    if terms.claim is not None and (size.workers, size.servers) == (terms.claim.workers, terms.claim.servers):
        reason = Reason.MEETING_DEADLINE
    if reason is Reason.WITHIN_BUDGET and size != outlook.maximum:
        reason = None  # it is not the budget that keeps it where it is
    replaces = reason is not None and grant.reason in _REPLACEABLE and not size.is_empty
    return grant._replace(reason=reason if replaces and reason is not None else grant.reason, note=terms.note)
