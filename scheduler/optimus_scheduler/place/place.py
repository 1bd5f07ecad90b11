"""Step 3 of a round: which task goes to which node.

Tasks that are wanted already stay where they are; only what is missing is placed. A size that does not fit is made
smaller, task by task, down to the job's minimum. If not even that fits, other jobs are preempted down to
their own minima as far as that helps. What remains is `Unplaced`, with the reason.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial

from optimus_scheduler.model import NOTHING, Allocation, Node, Nodes, Resources, Role
from optimus_scheduler.place.assignment import Assignment, Assignments
from optimus_scheduler.place.bottleneck import Extra
from optimus_scheduler.place.free_capacity import FreeCapacity
from optimus_scheduler.place.network_cost import Spread
from optimus_scheduler.place.preempt import displace, preempt
from optimus_scheduler.place.requests import MovesForOthers, Placed, Placements, Request, TaskSlot, Unplaced, task_slots

__all__ = [
    "Placed",
    "Placements",
    "Placer",
    "Request",
    "TaskSlot",
    "Unplaced",
    "task_slots",
]

_DOES_NOT_FIT = Unplaced("no combination of nodes has room for its smallest size")

_MOST_WAITING, _MOST_MOVABLE = 4, 256
"""For so many waiting jobs of a round so many others are tried: a round must not take seconds for it."""
_MOST_HOSTED = 4096
"""Different minima of which is known whether the empty cluster holds them: far more than wait at a time."""


class Placer:
    """Places round after round and keeps the assignment: only jobs that changed since the last round are placed anew.

    Returns what a new one returns, sooner. Belongs to one shell; not to be shared between threads.
    """

    def __init__(self) -> None:
        self._nodes = Nodes()
        self._spread: Spread | None = None
        self._assignments: Assignments | None = None
        self._empty: FreeCapacity | None = None
        self._hosted: dict[object, bool] = {}

    def place(
        self,
        requests: Sequence[Request],
        nodes: Sequence[Node],
        spread: Spread,
        *,
        smallest_first: bool = True,
        moves: MovesForOthers | None = None,
    ) -> Placements:
        """Place every request; by job id. Jobs choose in the order of `requests`; with `smallest_first` if equal.

        Without `moves` no job moves for another one.
        """
        assignments = self._on(nodes, spread)
        assignments.touched.clear()
        jobs, found = assignments.jobs, dict[str, Placed | Unplaced]()
        unsettled: list[Request] = []
        for request in requests:
            job_id, _, _, allocation, _, current, _ = request
            job = jobs.get(job_id)
            # Of most jobs these are the very same objects as in the round before; `knows` compares the others.
            if job is not None and job.request is request and job.outcome is not None:
                size, there = found[job_id] = job.outcome
                if size is allocation and there is current:
                    continue
            found[job_id] = _DOES_NOT_FIT  # for now
            if job is not None and assignments.knows(request) and job.outcome is not None:
                found[job_id] = job.outcome
            else:
                unsettled.append(request)
        for job_id in [job_id for job_id in jobs if job_id not in found]:
            assignments.dismiss(job_id)
        changed = [request for request in unsettled if not assignments.keeps(request)]
        for request in changed:
            if request.job_id in jobs:
                assignments.dismiss(request.job_id)
        if not assignments.admit(changed):  # some jobs have to shrink, so all jobs are placed together
            assignments = self._assignments = Assignments(nodes, spread)
            assignments.admit_in_part(requests)
            unsettled = list(requests)
        _settle(assignments, unsettled, moves, smallest_first=smallest_first)
        jobs, touched = assignments.jobs, assignments.touched
        for job_id in [job_id for job_id in found if job_id in touched]:
            job = jobs[job_id]
            found[job_id] = job.outcome or _outcome(assignments, job)
        return found

    def hosts(self, request: Request, nodes: Sequence[Node], spread: Spread) -> bool:
        """Whether the minimum fits on the nodes when no other job has a task."""
        assignments = self._on(nodes, spread)
        key = (request.minimum, _fingerprint(request.worker), _fingerprint(request.server))
        if key not in self._hosted:
            if len(self._hosted) >= _MOST_HOSTED:
                self._hosted.clear()
            self._hosted[key] = self._can_host(assignments, request, spread)
        return self._hosted[key]

    def _can_host(self, assignments: Assignments, request: Request, spread: Spread) -> bool:
        """Cheap check first: a minimum that fits beside all other jobs fits alone; else try the empty cluster."""
        amounts, least = assignments.free_capacity.amounts, request.minimum
        extra = Extra(least.workers, least.servers, amounts.need(request.worker), amounts.need(request.server))
        if spread(assignments.free_capacity, extra, {}) is not None:
            return True
        if not assignments.jobs:
            return False
        if self._empty is None:
            self._empty = FreeCapacity(self._nodes)
        return spread(self._empty, extra, {}) is not None

    def _on(self, nodes: Sequence[Node], spread: Spread) -> Assignments:
        """The task slots of the round before, if it had the same nodes."""
        if nodes is not self._nodes:  # compare once a round: there are many calls
            before, self._nodes = self._nodes, Nodes.of(nodes)
            self._assignments = self._assignments if self._nodes == before else None
        if self._assignments is None or self._spread is not spread:
            self._spread = spread
            self._assignments, self._empty, self._hosted = Assignments(self._nodes, spread), None, {}
        return self._assignments


def _fingerprint(resources: Resources) -> tuple[float, int, tuple[tuple[str, int], ...]]:
    return resources.cpu, resources.memory_bytes, tuple(sorted(resources.gpus.items()))


def _settle(
    assignments: Assignments, requests: Sequence[Request], moves: MovesForOthers | None, *, smallest_first: bool
) -> None:
    """Assign the missing task slots of these requests; other jobs may be preempted, or move, for a minimum."""
    jobs = assignments.jobs
    incomplete = [request for request in requests if not jobs[request.job_id].are_complete]
    ordered = sorted(incomplete, key=_growth) if smallest_first else incomplete
    unplaced = [request for request in ordered if not _place_shrinking(assignments, jobs[request.job_id])]
    if unplaced:
        others = assignments.above_minimum()
        stuck = [
            request
            for request in unplaced
            if not preempt(assignments, jobs[request.job_id], map(jobs.__getitem__, others))  # mostly the first will do
        ]
        if moves is not None and (waiting := [request.job_id for request in stuck if _waits(request)]):
            _move(assignments, waiting[:_MOST_WAITING], moves)


def _waits(request: Request) -> bool:
    return not request.current and not request.before


def _move(assignments: Assignments, waiting: Sequence[str], moves: MovesForOthers) -> None:
    """Have jobs that keep their tasks move where that lets one of these start."""
    movable = [assignments.jobs[job_id] for job_id in moves.movable() if job_id in assignments.jobs]
    settled = [each for each in movable if len(each.request.current) == len(each.taken) and each.are_complete]
    for job_id in waiting:
        still = [each for each in settled[:_MOST_MOVABLE] if each.request.job_id not in moves.made]
        moved = displace(assignments, assignments.jobs[job_id], still, partial(moves.pay, job_id))
        moves.made |= dict.fromkeys(moved, job_id)


def _growth(request: Request) -> tuple[bool, bool, int]:
    """Jobs that have no task yet choose first (they ask for little), then those that grow.

    Of these, jobs that need GPUs, as others can go elsewhere, too; the smallest growth first.
    """
    size = request.allocation
    return bool(request.current), not request.worker.gpus, size.workers + size.servers - len(request.current)


def _place_shrinking(assignments: Assignments, assignment: Assignment) -> bool:
    """Seat the request or as much of it as fits; gives everything up when that is less than the minimum."""
    if assignments.complete(assignment, assignment.request.allocation):
        return True
    sizes = list(_smaller(assignment.request))
    workers = sum([role is Role.WORKER for role, _ in assignment.taken])
    servers = len(assignment.taken) - workers
    growing = [size for size in sizes if size.workers >= workers and size.servers >= servers]
    # What fits at one size fits at every smaller one: the largest is found by bisection.
    first = bisect_left(growing, True, key=lambda size: assignments.ways(assignment, size) is not None)
    for size in sizes[first:]:
        assignments.release(assignment, size)
        if assignments.complete(assignment, size):
            return True
    assignments.release(assignment, NOTHING)
    return False


def _outcome(assignments: Assignments, assignment: Assignment) -> Placed | Unplaced:
    return assignments.outcome(assignment) if assignment.taken else _DOES_NOT_FIT


def _smaller(request: Request) -> Iterator[Allocation]:
    """One task less at a time, keeping the proportion, down to the minimum."""
    workers, servers = request.allocation.workers, request.allocation.servers
    least, gpu_type = request.minimum, request.allocation.gpu_type
    while workers > least.workers or servers > least.servers:
        # The role that is further above its minimum gives; workers on ties, as servers serve them all.
        if (workers - least.workers) * max(least.servers, 1) >= (servers - least.servers) * max(least.workers, 1):
            workers -= 1
        else:
            servers -= 1
        yield Allocation(workers, servers, gpu_type)
