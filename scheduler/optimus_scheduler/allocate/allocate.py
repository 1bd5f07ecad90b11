"""Step 2 of a round: the jobs that compete for resources, and the grant of each."""

from __future__ import annotations

from collections.abc import Sequence

from optimus_scheduler.allocate.allocate_with_quotas import allocate_with_quotas
from optimus_scheduler.allocate.placement_requests import request_for
from optimus_scheduler.allocate.policy import AllocationInput, Grant, Policy
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import NOTHING, Directive, Reason, Resources, Role, Snapshot
from optimus_scheduler.model.resources import remaining
from optimus_scheduler.place.place import Placer
from optimus_scheduler.place.requests import CurrentNodes
from optimus_scheduler.settings import Settings


def allocate(
    outlooks: Sequence[Outlook],
    snapshot: Snapshot,
    held: CurrentNodes,
    policy: Policy,
    settings: Settings,
    placer: Placer,
) -> dict[str, Grant]:
    """A grant for every job.

    Jobs that end take no part: cancelled ones get nothing, converged ones keep what they have. Nor do jobs that wait
    for a retry, or could not run on this cluster even alone: they must not hold up the queue.
    """
    grants: dict[str, Grant] = {}
    competing: list[Outlook] = []
    finishing: list[Outlook] = []
    capacity, leaving = usable_capacity(snapshot, held), Resources()
    feasible = _Feasibility(snapshot, policy, placer)
    for outlook in outlooks:
        if outlook.job.directive is Directive.CANCEL:
            grants[outlook.id] = Grant(NOTHING, Reason.CANCELLING)
        elif outlook.job.retry is not None and not outlook.job.retry.is_due(snapshot.now):
            grants[outlook.id] = Grant(NOTHING, Reason.WAITING_FOR_RETRY)
        elif outlook.forecast.converged and outlook.has_tasks:
            grants[outlook.id] = Grant(outlook.present, Reason.CONVERGED)
            finishing.append(outlook)
            leaving = leaving + outlook.demand(outlook.present)
        elif not outlook.has_tasks and not feasible(outlook):
            grants[outlook.id] = Grant(NOTHING, Reason.NO_FEASIBLE_NODE)
        else:
            competing.append(outlook)
    inputs = AllocationInput(tuple(competing), remaining(capacity, leaving), leaving)
    now, quotas = snapshot.now, snapshot.quotas
    return {**grants, **allocate_with_quotas(inputs, policy, settings, now=now, quotas=quotas, finishing=finishing)}


def usable_capacity(snapshot: Snapshot, held: CurrentNodes) -> Resources:
    """What the schedulable nodes offer, and what jobs hold on cordoned ones: that is theirs while they stay."""
    total = snapshot.capacity
    cordoned = {node.name for node in snapshot.nodes if not node.schedulable}
    if not cordoned:
        return total
    for job in snapshot.jobs:
        for (role, _), node in held[job.id].items():
            if node in cordoned:
                total = total + (job.spec.worker if role is Role.WORKER else job.spec.server).resources
    return total


class _Feasibility:
    """Whether jobs could run on this cluster alone; computed once for jobs with the same specification."""

    def __init__(self, snapshot: Snapshot, policy: Policy, placer: Placer) -> None:
        self._snapshot, self._policy, self._placer = snapshot, policy, placer
        self._known: dict[int, bool] = {}

    def __call__(self, outlook: Outlook) -> bool:
        spec = id(outlook.job.spec)  # of a value that lives as long as the snapshot
        if spec not in self._known:
            request = request_for(outlook, outlook.minimum, {}, self._policy)
            self._known[spec] = self._placer.hosts(request, self._snapshot.nodes, self._policy.spread)
        return self._known[spec]
