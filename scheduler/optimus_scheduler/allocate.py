"""Step 2 of a round: who takes part in the competition for resources, and what the policy gives each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optimus_scheduler.constraints.gpu_types import has_left_its_type
from optimus_scheduler.constraints.sharing_out import share_out
from optimus_scheduler.outlook import Outlook
from optimus_scheduler.place import Post, Request, fits_when_empty
from optimus_scheduler.policies.base import Contest, Grant, Policy
from optimus_scheduler.settings import Settings
from optimus_scheduler.types import NOTHING, Allocation, Directive, Node, Reason, Resources, Role, Snapshot, TaskPhase

Held = Mapping[str, Mapping[Post, str]]
"""Job id → the nodes of the tasks that it has and that may stay."""


def allocate(
    outlooks: Sequence[Outlook], snapshot: Snapshot, held: Held, policy: Policy, settings: Settings
) -> dict[str, Grant]:
    """A grant for every job.

    Jobs that end take no part: cancelled ones get nothing, converged ones keep what they have. Nor do jobs that could
    not run on this cluster even alone: they must not hold up the queue.
    """
    grants: dict[str, Grant] = {}
    contenders: list[Outlook] = []
    capacity, leaving = usable_capacity(snapshot, held), Resources()
    feasible = _Feasibility(snapshot.nodes, policy)
    for outlook in outlooks:
        if outlook.job.directive is Directive.CANCEL:
            grants[outlook.id] = Grant(NOTHING, Reason.CANCELLING)
        elif outlook.forecast.converged and outlook.is_held:
            grants[outlook.id] = Grant(outlook.present, Reason.CONVERGED)
            leaving = leaving + outlook.demand(outlook.present)
        elif not outlook.is_held and not feasible.of(outlook):
            grants[outlook.id] = Grant(NOTHING, Reason.NO_FEASIBLE_NODE)
        else:
            contenders.append(outlook)
    contest = Contest(tuple(contenders), _what_is_left(capacity, leaving), leaving)
    finishing = [outlook for outlook in outlooks if outlook.id in grants and not grants[outlook.id].allocation.is_empty]
    now, quotas = snapshot.now, snapshot.quotas
    return {**grants, **share_out(contest, policy, settings, now=now, quotas=quotas, finishing=finishing)}


def held_posts(snapshot: Snapshot) -> Held:
    """Where each job has tasks that may stay: on nodes that exist, and on cordoned ones only while they live.

    Workers of a job that changes its GPU type do not stay.
    """
    live = {task.key for task in snapshot.tasks if task.phase is not TaskPhase.EXITED}
    schedulable = {node.name: node.schedulable for node in snapshot.nodes}
    return {
        job.id: {
            (placed.key.role, placed.key.rank): placed.node
            for placed in job.wanted_tasks
            if schedulable.get(placed.node, False) or (placed.node in schedulable and placed.key in live)
            if placed.key.role is not Role.WORKER or not has_left_its_type(job)
        }
        for job in snapshot.jobs
    }


def usable_capacity(snapshot: Snapshot, held: Held) -> Resources:
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


def _what_is_left(capacity: Resources, leaving: Resources) -> Resources:
    """Never below nothing, though a cluster that has just lost nodes may hold less than jobs still have."""
    left = capacity - leaving
    gpus = {kind: max(count, 0) for kind, count in left.gpus.items()}
    return Resources(max(left.cpu, 0.0), max(left.memory_bytes, 0), gpus)


def request_for(outlook: Outlook, allocation: Allocation, held: Mapping[Post, str], policy: Policy) -> Request:
    """What is to be placed so that the job has `allocation`."""
    stays = policy.keeps_places or allocation == outlook.present
    return Request(
        job_id=outlook.id,
        worker=outlook.job.spec.worker.resources,
        server=outlook.job.spec.server.resources,
        allocation=allocation,
        minimum=outlook.minimum,
        held=held if stays else {},
    )


class _Feasibility:
    """Whether a job's minimum fits the empty cluster, remembered for jobs that ask for the same."""

    def __init__(self, nodes: Sequence[Node], policy: Policy) -> None:
        self._nodes, self._policy = nodes, policy
        self._known: dict[object, bool] = {}

    def of(self, outlook: Outlook) -> bool:
        key = (outlook.minimum, *(_fingerprint(outlook.demand(one)) for one in _ONE_OF_EACH))
        if key not in self._known:
            request = request_for(outlook, outlook.minimum, {}, self._policy)
            self._known[key] = fits_when_empty(request, self._nodes, self._policy.spread)
        return self._known[key]


_ONE_OF_EACH = (Allocation(1, 0), Allocation(0, 1))


def _fingerprint(resources: Resources) -> tuple[float, int, tuple[tuple[str, int], ...]]:
    return resources.cpu, resources.memory_bytes, tuple(sorted(resources.gpus.items()))
