"""Step 2 of a round: the jobs that compete for resources, the grant of each, its batch and its placement request."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from optimus_scheduler.allocate.allocate_with_quotas import REPLACEABLE
from optimus_scheduler.allocate.deadline_budget import bounded
from optimus_scheduler.allocate.policy import AllocationInput, Grant, Policy
from optimus_scheduler.allocate.staying import closed_words, room_of, size_of
from optimus_scheduler.allocate.worker_limits import allocate_within_limits
from optimus_scheduler.forecast.gpu_types import has_left_its_type
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import (
    LIMIT_RULES,
    NOTHING,
    Allocation,
    Directive,
    Nodes,
    Reason,
    Resources,
    Role,
    Snapshot,
)
from optimus_scheduler.model.resources import remaining
from optimus_scheduler.place.place import Placer
from optimus_scheduler.place.requests import CurrentNodes, Request, TaskSlot
from optimus_scheduler.settings import Settings

_DOUBLED = 2
"""A job that grows so many times will not fit beside the tasks that it has."""


def request_for(outlook: Outlook, allocation: Allocation, current: Mapping[TaskSlot, str], policy: Policy) -> Request:
    """What is to be placed so that the job has `allocation`: the very same for the very same values."""
    known = outlook.steady.request
    if known is not None and known[0] is allocation and known[1] is current and known[2] is policy:
        request: Request = known[3]
        return request
    request = _request(outlook, allocation, current, policy)
    outlook.steady.request = allocation, current, policy, request
    return request


def _request(outlook: Outlook, allocation: Allocation, current: Mapping[TaskSlot, str], policy: Policy) -> Request:
    spec, present = outlook.job.spec, outlook.present
    # Jobs without tasks keep nothing.
    stays = current and (
        allocation is present
        or allocation == present
        or (policy.keeps_places and _may_stay(outlook, allocation, current))
    )
    kept, before = (current, _NOWHERE) if stays else (_NOWHERE, current)
    asked = (outlook.id, spec.worker.resources, spec.server.resources, allocation, outlook.minimum, kept, before)
    return tuple.__new__(Request, asked)  # in half the time that `Request` itself takes: there are thousands


_NOWHERE: Mapping[TaskSlot, str] = {}


def _may_stay(outlook: Outlook, allocation: Allocation, current: Mapping[TaskSlot, str]) -> bool:
    """Whether a job that changes its size keeps its tasks where they are, and only looks for what is missing.

    Workers without servers form a new ring whenever there are others: then they may as well sit closer together.
    So may jobs that are on several nodes, or are going to be: what was added task by task, wherever there was room,
    sends more between nodes than it has to.
    """
    if not outlook.job.spec.architecture.has_servers:
        return False
    tasks, before = (size.workers + size.servers for size in (allocation, outlook.present))
    return len(set(current.values())) <= 1 and tasks < _DOUBLED * before


def batch_for(outlook: Outlook, allocation: Allocation, settings: Settings) -> int | None:
    """The batch that goes with `allocation`; None for a job without an elastic batch.

    The one with the highest goodput; what the job has stays as long as it has its size and another batch would not be
    clearly better. A job without tasks keeps the batch that it had.
    """
    job = outlook.job
    if job.spec.elastic_batch is None or allocation.is_empty:
        return job.batch
    if not settings.scale_batches:
        return job.spec.global_batch_size
    best, present = outlook.speeds.batch_at(allocation.workers), job.batch
    if best is None or present is None or allocation != outlook.present:
        return best
    better = outlook.speeds.with_batch(allocation.workers, best)
    worth_it = better >= outlook.speeds.with_batch(allocation.workers, present) * (1.0 + settings.least_batch_gain)
    return best if worth_it else present


def allocate(
    outlooks: Sequence[Outlook],
    snapshot: Snapshot,
    current: CurrentNodes,
    policy: Policy,
    settings: Settings,
    placer: Placer,
    placeless: Collection[str] = (),
) -> dict[str, Grant]:
    """A grant for every job. `placeless`: jobs that get nothing, for which no node has room now.

    Jobs that end take no part: cancelled ones get nothing, converged ones keep what they have. Nor do jobs that their
    owner paused, that wait for a retry, or could not run on this cluster even alone: they must not hold up the queue.
    """
    grants: dict[str, Grant] = {}
    competing: list[Outlook] = []
    finishing: list[Outlook] = []
    (capacity, on_closed), leaving = room_of(snapshot, current), Resources()
    feasible = _Feasibility(snapshot, policy, placer)
    nodes = Nodes.of(snapshot.nodes)
    closed = closed_words(nodes)
    for outlook in outlooks:
        job = outlook.job
        if job.directive is Directive.CANCEL:
            grants[outlook.id] = Grant(NOTHING, Reason.CANCELLING)
        elif job.owner_paused:
            grants[outlook.id] = Grant(NOTHING, Reason.PAUSED_BY_OWNER)
        elif job.retry is not None and not job.retry.is_due(snapshot.now):
            grants[outlook.id] = Grant(NOTHING, Reason.WAITING_FOR_RETRY)
        elif outlook.forecast.converged and outlook.has_tasks:
            is_limit = outlook.forecast.rule in LIMIT_RULES
            grants[outlook.id] = Grant(outlook.present, Reason.LIMIT_REACHED if is_limit else Reason.CONVERGED)
            finishing.append(outlook)
            leaving = leaving + outlook.demand(outlook.present)
        elif outlook.id in placeless:
            grants[outlook.id] = Grant(NOTHING, Reason.NO_FEASIBLE_NODE)
        elif not (feasible.again(outlook, current[outlook.id]) if outlook.has_tasks else feasible(outlook)):
            grants[outlook.id] = Grant(NOTHING, Reason.NO_FEASIBLE_NODE, note=closed)
        else:
            competing.append(outlook)
    inputs = AllocationInput(tuple(competing), remaining(capacity, leaving), leaving, on_closed=on_closed)
    stays = {} if nodes.open_names else {one.id: size_of(one, current[one.id]) for one in competing}
    shared = allocate_within_limits(
        _without_growth(inputs, stays) if stays else inputs,
        policy,
        settings,
        now=snapshot.now,
        quotas=snapshot.quotas,
        finishing=finishing,
        limits=snapshot.worker_limits,
    )
    if stays:
        shared = {one.id: _as_on_closed(one, shared[one.id], stays[one.id], closed) for one in competing}
    return {**grants, **shared}


def _without_growth(inputs: AllocationInput, stays: Mapping[str, Allocation]) -> AllocationInput:
    """The same where no node is open: nobody can have more than stays, nor what another one gives up."""
    competing = tuple(bounded(one, one.minimum, stays[one.id]) for one in inputs.competing)
    return replace(inputs, competing=competing)


def _as_on_closed(outlook: Outlook, grant: Grant, stays: Allocation, closed: str | None) -> Grant:
    """The grant of a job that has all that `stays` where no node is open: its owner may allow more."""
    size, present, most = grant.allocation, outlook.present, outlook.maximum
    is_why = grant.reason in REPLACEABLE or (grant.reason is Reason.LEARNING_SPEED and size != present)
    if not is_why or size != stays or size == present == most:
        return grant
    note = " ".join(filter(None, (closed, grant.note)))
    ideal = most if size == present else present
    return grant._replace(reason=Reason.NO_FEASIBLE_NODE, ideal=ideal, note=note or None)


class _Feasibility:
    """Whether jobs could run on this cluster alone; computed once for jobs with the same specification."""

    def __init__(self, snapshot: Snapshot, policy: Policy, placer: Placer) -> None:
        self._snapshot, self._policy, self._placer = snapshot, policy, placer
        self._known: dict[int, bool] = {}

    def __call__(self, outlook: Outlook) -> bool:
        spec = id(outlook.job.spec)  # of a value that lives as long as the snapshot
        if spec not in self._known:
            request = request_for(outlook, outlook.minimum, {}, self._policy)
            self._known[spec] = self._hosts(request)
        return self._known[spec]

    def again(self, outlook: Outlook, current: Mapping[TaskSlot, str]) -> bool:
        """The same of a job that has tasks, of which those of `current` may stay: whether what it lacks of its minimum
        would have room. Where none of its nodes was closed or lost it has what it needs."""
        present = outlook.present
        if len(current) == present.workers + present.servers or has_left_its_type(outlook.job):
            return True
        closed = Nodes.of(self._snapshot.nodes).closed_names
        kept = [role for (role, _), node in current.items() if node in closed]
        least = outlook.minimum
        lacks = least._replace(
            workers=max(least.workers - kept.count(Role.WORKER), 0),
            servers=max(least.servers - kept.count(Role.SERVER), 0),
        )
        return lacks.is_empty or self._hosts(request_for(outlook, least, {}, self._policy)._replace(minimum=lacks))

    def _hosts(self, request: Request) -> bool:
        return self._placer.hosts(request, self._snapshot.nodes, self._policy.spread)
