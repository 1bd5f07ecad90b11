"""Step 2 of a round: the jobs that compete for resources, the grant of each, its batch and its placement request."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from optimus_scheduler.allocate.policy import AllocationInput, Grant, Policy
from optimus_scheduler.allocate.worker_limits import allocate_within_limits
from optimus_scheduler.forecast.gpu_types import has_left_its_type
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import (
    LIMIT_RULES,
    NOTHING,
    Allocation,
    Directive,
    Job,
    JobSpec,
    Nodes,
    PlacedTask,
    Reason,
    Resources,
    Role,
    Snapshot,
    TaskKey,
    TaskPhase,
)
from optimus_scheduler.model.resources import remaining
from optimus_scheduler.place.place import Placer
from optimus_scheduler.place.requests import CurrentNodes, Request, TaskSlot
from optimus_scheduler.settings import Settings

_NAMED = 3
"""Closed nodes that are named."""
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


class CurrentSlots:
    """Finds where each job has tasks that may stay, and keeps what it found in the round before.

    A job with the same tasks on nodes that are still open has the very same mapping. Belongs to one shell; not to be
    shared between threads.
    """

    def __init__(self) -> None:
        self._is_open: Mapping[str, bool] = {}
        self._known: dict[str, tuple[tuple[PlacedTask, ...], Mapping[TaskSlot, str], Allocation, JobSpec]] = {}
        """Of jobs that leave nothing behind: with the tasks that they want, and what says whether they have left their
        GPU type."""

    def of(self, snapshot: Snapshot) -> dict[str, Mapping[TaskSlot, str]]:
        """On nodes that are not being emptied, on cordoned ones while the tasks live.

        By job id, an entry for every job. Workers of a job that changes its GPU type do not stay.
        """
        is_open = Nodes.of(snapshot.nodes).is_open
        if is_open is not self._is_open and is_open != self._is_open:
            self._known = {}
        before, self._is_open, self._known = self._known, is_open, {}
        kept = self._known
        live: frozenset[TaskKey] = frozenset()
        if not all(is_open.values()):
            live = frozenset(task.key for task in snapshot.tasks if task.phase is not TaskPhase.EXITED)
        found: dict[str, Mapping[TaskSlot, str]] = {}
        for job in snapshot.jobs:
            job_id, wanted = job.id, job.wanted_tasks
            known = before.get(job_id)
            if known is None:
                slots = None
            elif known[0] is wanted and known[2] is job.allocation and known[3] is job.spec:  # most, without a call
                found[job_id] = known[1]
                kept[job_id] = known
                continue
            else:
                slots = known[1] if known[0] == wanted and not has_left_its_type(job) else None
            if slots is None:
                slots = _current(job, is_open, live)
                stay = len(slots) == len(wanted) and all(is_open[node] for node in slots.values())
                if not stay:
                    found[job_id] = slots
                    continue
            found[job_id] = slots
            kept[job_id] = wanted, slots, job.allocation, job.spec
        return found


def _current(job: Job, is_open: Mapping[str, bool], live: frozenset[TaskKey]) -> dict[TaskSlot, str]:
    leaves = has_left_its_type(job)
    return {
        (role, rank): node
        for key, node in job.wanted_tasks
        for _, role, rank, _ in (key,)
        if (is_open.get(node, False) or (node in is_open and key in live)) and not (leaves and role is Role.WORKER)
    }


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
    capacity, leaving = usable_capacity(snapshot, current), Resources()
    feasible = _Feasibility(snapshot, policy, placer)
    names = sorted(Nodes.of(snapshot.nodes).closed_names)
    closed = f"Closed or lost: {', '.join(names[:_NAMED])}{' and others' * (len(names) > _NAMED)}." if names else None
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
        elif not outlook.has_tasks and not feasible(outlook):
            grants[outlook.id] = Grant(NOTHING, Reason.NO_FEASIBLE_NODE, note=closed)
        else:
            competing.append(outlook)
    inputs = AllocationInput(tuple(competing), remaining(capacity, leaving), leaving)
    shared = allocate_within_limits(
        inputs,
        policy,
        settings,
        now=snapshot.now,
        quotas=snapshot.quotas,
        finishing=finishing,
        limits=snapshot.worker_limits,
    )
    return {**grants, **shared}


def usable_capacity(snapshot: Snapshot, current: CurrentNodes) -> Resources:
    """What the schedulable nodes offer, and what jobs hold on cordoned ones: that is theirs while they stay."""
    total = snapshot.capacity
    cordoned = Nodes.of(snapshot.nodes).closed_names
    if not cordoned:
        return total
    for job in snapshot.jobs:
        for (role, _), node in current[job.id].items():
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
